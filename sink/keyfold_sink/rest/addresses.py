"""Where REST listens: `listeners`, Connect's key, as values.

    http://127.0.0.1:8083   http://[::1]:0   http://0.0.0.0:8083   http://:8083 (all addresses, as in Connect)

An address is loopback if nobody but this machine can reach it. Names are not looked up here: a name other than
`localhost` may be anything, so it counts as an address that others reach.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from keyfold.errors import ConfigError

KEY: Final = "listeners"
DEFAULT_LISTENER: Final = "http://127.0.0.1:8083"
_ANY: Final = "0.0.0.0"  # noqa: S104 - only where the configuration says so
_LISTENER: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>\[[^\]]*\]|[^\[\]:/@?#]*):(?P<port>[0-9]{1,5})/?"
)
_EXAMPLE: Final = f"write it as {DEFAULT_LISTENER}"


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on; port 0: any that is free."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"http://{host_in_url(self.host)}:{self.port}"


def parse_listeners(values: Iterable[str]) -> tuple[Listener, ...]:
    """Read `listeners`. Raises `ConfigError`."""
    found = tuple(map(_parse, values))
    taken = [(listener.host, listener.port) for listener in found if listener.port]
    if len(set(taken)) != len(taken):
        raise ConfigError(KEY, "names an address twice")
    return found


def _parse(value: str) -> Listener:
    match = _LISTENER.fullmatch(value.strip())
    if match is None:
        raise ConfigError(KEY, f"{value!r} is no address to listen on", hint=_EXAMPLE)
    if match["scheme"].lower() == "https":
        raise ConfigError(
            KEY,
            "the sink does not speak https itself",
            hint="listen on loopback and let a proxy in front of it end TLS (nginx, Envoy, an ingress)",
        )
    if match["scheme"].lower() != "http":
        raise ConfigError(KEY, f"{match['scheme']!r} is no protocol to listen with", hint=_EXAMPLE)
    host, port = match["host"].strip("[]") or _ANY, int(match["port"])
    if port > 65535:
        raise ConfigError(KEY, f"{port} is no port", hint="ports end at 65535")
    if match["host"].startswith("["):
        _require_ipv6(host)
    return Listener(host, port)


def _require_ipv6(host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        raise ConfigError(KEY, f"{host!r} is no IPv6 address", hint="write it as http://[::1]:8083") from error


def is_loopback(host: str) -> bool:
    """Whether a host, as a URL has it, is this machine as only itself can see it."""
    plain = host.strip("[]").lower().rstrip(".")
    if plain == "localhost" or plain.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(plain).is_loopback
    except ValueError:
        return False


def host_in_url(host: str) -> str:
    """An IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host


def require_token(listeners: Iterable[Listener], token: str | None) -> None:
    """Raise `ConfigError` where others could reach the API and no token protects it, or the token cannot be sent."""
    if token is not None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError("rest.token", "must be printable ASCII without spaces, and not empty")
        return
    for listener in listeners:
        if not listener.is_loopback:
            raise ConfigError(
                "rest.token",
                f"is missing, and `{KEY}` has {listener}, which others can reach",
                hint="give a token, best as ${env:...} or ${file:...}, or listen on 127.0.0.1 alone",
            )
