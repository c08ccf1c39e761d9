"""Check with the Kafka client, key by key, whether it knows the key and accepts the value.

librdkafka checks settings one by one before it makes a client. So each setting is passed alone, followed by a key that
librdkafka does not know. If the error is about the unknown key, the setting is right. No client is ever made here, so
no file is opened, no library loaded, no command run and no connection made, whatever the configuration contains.
Mistakes in combinations (a key without its certificate, a missing file) show only when a client is made:
`keyfold_sink.config.client_construction_check`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException

from keyfold.errors import ConfigError
from keyfold_sink.config.client_settings import is_told_apart, translated

CLIENT_PREFIXES: Final = ("consumer.override.", "producer.override.", "admin.override.")
"""Keys that are passed to one client, the prefix taken off."""
SECURITY_KEYS: Final = ("security.protocol", "sasl.", "ssl.")
"""Keys that are passed to every client."""

_END: Final = "keyfold.end"
_KEY: Final = re.compile(r"\b(?:sasl|ssl|security|client|enable|group)(?:\.[a-z]+)+")
# The client also logs what it refuses; this module reports it instead.
_SILENT: Final = {"log_level": 0}
# librdkafka loads libraries as soon as it gets their names, and the sink sets the brokers itself.
_NOT_SET: Final = frozenset({"plugin.library.paths", "bootstrap.servers", "metadata.broker.list"})


def client_mistakes(values: Mapping[str, str], known: Collection[str] = ()) -> Iterator[ConfigError]:
    """Yield a mistake for each of a configuration's keys that librdkafka refuses, under its name in the configuration.

    Keys that are `known` to be wrong are not checked.
    """
    for key, value in values.items():
        own = client_key(key)
        if own is None or key in known or is_told_apart(own):
            continue
        message = _refusal(own, value)
        if message is not None:
            yield ConfigError(key, message)


def client_refusal(what: str, settings: Iterable[str], text: str) -> ConfigError:
    """Return the mistake of a client that could not be made with `settings`.

    `what` is the prefix of their keys in the configuration, `text` is librdkafka's message.
    """
    named = [key for key in settings if key in text] or _KEY.findall(text) or ["*"]
    return ConfigError(f"{what}{max(named, key=len)}", f"the Kafka client refuses this setting: {_one_line(text)}")


def client_key(key: str) -> str | None:
    """Return the client's own name of a key of the configuration, or None if the key is not for a client."""
    for prefix in CLIENT_PREFIXES:
        if key.startswith(prefix) and len(key) > len(prefix):
            return key.removeprefix(prefix)
    return key if key.startswith(SECURITY_KEYS) else None


def _refusal(key: str, value: str) -> str | None:
    if key in _NOT_SET:
        return None
    ((name, text),) = translated({key: value}).items()
    try:
        Consumer({"group.id": _END, **_SILENT, name: text, _END: ""})
    except KafkaException as error:
        said = _one_line(error.args[0].str())
    except (TypeError, ValueError) as error:
        said = str(error)
    if _END in said:
        return None
    if said.startswith("No such configuration property"):
        return "is not a setting of the Kafka client (librdkafka)"
    return f"the Kafka client refuses this setting: {said}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
