"""Connection settings of commands: `--bootstrap-servers` and a file of client settings, as for Kafka's own tools.

    keyfold restore ... --bootstrap-servers host:9092 --kafka-config client.properties

The file is .properties or JSON and may contain `${env:VARIABLE}` and `${file:/path:key}`. Keys are librdkafka's.
Equivalent keys of the Java clients are translated, and keys that only matter to Java (serializers, interceptors) are
ignored. Keys that this client cannot honour (Java's trust stores) are refused with an alternative. librdkafka itself
checks keys and values when a client is created (`keyfold.kafka.client`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from keyfold.config.config_file import read_config
from keyfold.errors import ConfigError
from keyfold.kafka.java_client_keys import JAAS, translated, user_of_jaas

BOOTSTRAP: Final = "bootstrap.servers"

_SERVER: Final = re.compile(r"(?:[A-Za-z0-9_+-]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+)(?::\d{1,5})?")
_ONLY_JAVA: Final = frozenset(
    {
        *("key.deserializer", "value.deserializer", "key.serializer", "value.serializer", "max.poll.records"),
        *("interceptor.classes", "metric.reporters", "default.api.timeout.ms", "max.block.ms", "buffer.memory"),
        *("ssl.keystore.type", "ssl.protocol", "ssl.enabled.protocols", "auto.include.jmx.reporter"),
    }
)
_PEM: Final = "write its certificates to a PEM file and name it in ssl.ca.location"
_REFUSED: Final = {
    "ssl.truststore.location": ("it cannot read Java trust stores", _PEM),
    "ssl.truststore.password": ("it cannot read Java trust stores", _PEM),
    "ssl.truststore.type": ("it cannot read Java trust stores", _PEM),
    "sasl.login.callback.handler.class": ("it cannot run Java classes", "use sasl.oauthbearer.method=oidc"),
    "sasl.client.callback.handler.class": ("it cannot run Java classes", "use sasl.oauthbearer.method=oidc"),
}


def client_settings(
    bootstrap_servers: str | None, config: Path | str | None = None, *, owned: Collection[str] = ()
) -> dict[str, str]:
    """Settings for librdkafka, `bootstrap.servers` among them.

    `bootstrap_servers` goes before the file's. `owned` are keys that the command decides about: given in the file with
    any value they are refused. Raises `ConfigError`.
    """
    given = {} if config is None else read_config(config)
    if bootstrap_servers is not None:
        given[BOOTSTRAP] = bootstrap_servers
    return checked(given, owned)


def checked(given: Mapping[str, str], owned: Collection[str] = ()) -> dict[str, str]:
    """The same, from a mapping."""
    for key, value in given.items():
        if key in _REFUSED:
            why, what = _REFUSED[key]
            raise ConfigError(key, f"is not supported by this client: {why}", hint=what)
        if key in owned:
            raise ConfigError(key, "cannot be set: the command sets it itself", hint="remove it")
        if key == JAAS and user_of_jaas(value) is None:
            raise ConfigError(
                key,
                "cannot be parsed: only PlainLoginModule and ScramLoginModule with username and password are supported",
                hint="set sasl.username and sasl.password instead",
            )
    _check_servers(given.get(BOOTSTRAP, ""))
    return translated({key: value for key, value in given.items() if key not in _ONLY_JAVA})


def _check_servers(text: str) -> None:
    servers = [part.strip() for part in text.split(",")]
    if not text.strip():
        raise ConfigError(
            BOOTSTRAP, f"missing required key `{BOOTSTRAP}`", hint="set --bootstrap-servers host:port[,host:port...]"
        )
    for server in servers:
        if _SERVER.fullmatch(server) is None:
            raise ConfigError(BOOTSTRAP, f"{server!r} is not host:port", hint="separate several servers by commas")
