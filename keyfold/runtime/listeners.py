"""Parse listeners, the addresses that a server listens on, written as for Kafka Connect.

    http://127.0.0.1:8083   http://[::1]:0   http://0.0.0.0:8083   http://:8083 (all addresses, as in Connect)

An address is loopback if only this machine can reach it. Names are not resolved here: a name other than `localhost` may
stand for any address, so it counts as one that other machines can reach.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from keyfold.errors import ConfigError

_ANY: Final = "0.0.0.0"  # noqa: S104 - only where the configuration says so
_LISTENER: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>\[[^\]]*\]|[^\[\]:/@?#]*):(?P<port>[0-9]{1,5})/?"
)
_EXAMPLE: Final = "write it as http://127.0.0.1:8083"


@dataclass(frozen=True, slots=True)
class SettingNames:
    """How users write the settings of a server: keys of a configuration, or options of a command."""

    listeners: str
    token: str
    own_host: str


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on; port 0 is any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"http://{host_in_url(self.host)}:{self.port}"


def parse_listeners(values: Iterable[str], names: SettingNames) -> tuple[Listener, ...]:
    """Parse listeners. Raise `ConfigError` on the first mistake."""
    found = tuple(_parse(value, names.listeners) for value in values)
    taken = [(listener.host, listener.port) for listener in found if listener.port]
    if len(set(taken)) != len(taken):
        raise ConfigError(names.listeners, "lists the same address twice")
    return found


def _parse(value: str, key: str) -> Listener:
    match = _LISTENER.fullmatch(value.strip())
    if match is None:
        raise ConfigError(key, f"{value!r} is not a valid listener", hint=_EXAMPLE)
    if match["scheme"].lower() == "https":
        raise ConfigError(
            key,
            "https is not supported",
            hint="listen on loopback, and terminate TLS in a proxy (nginx, Envoy, an ingress)",
        )
    if match["scheme"].lower() != "http":
        raise ConfigError(key, f"the protocol {match['scheme']!r} is not supported", hint=_EXAMPLE)
    host, port = match["host"].strip("[]") or _ANY, int(match["port"])
    if port > 65535:
        raise ConfigError(key, f"{port} is not a valid port", hint="the highest port is 65535")
    if match["host"].startswith("["):
        _require_ipv6(host, key)
    return Listener(host, port)


def _require_ipv6(host: str, key: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        raise ConfigError(key, f"{host!r} is not a valid IPv6 address", hint="write it as http://[::1]:8083") from error


def is_loopback(host: str) -> bool:
    """Whether the host of a URL is a loopback address or a name that always stands for one."""
    plain = host.strip("[]").lower().rstrip(".")
    if plain == "localhost" or plain.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(plain).is_loopback
    except ValueError:
        return False


def host_in_url(host: str) -> str:
    """Return the host as a URL spells it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def require_token(listeners: Iterable[Listener], token: str | None, names: SettingNames) -> None:
    """Raise `ConfigError` if other machines can reach a server without a token, or if clients cannot send it."""
    if token is not None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(names.token, "must be printable ASCII without spaces, and not empty")
        return
    for listener in listeners:
        if not listener.is_loopback:
            raise ConfigError(
                names.token,
                f"a token is required, because other machines can reach {listener} of `{names.listeners}`",
                hint="set a token, preferably as ${env:...} or ${file:...}, or listen on 127.0.0.1 only",
            )
