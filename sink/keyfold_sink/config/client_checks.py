"""Whether the Kafka client knows a key and takes its value, asked of the client itself, without a connection.

librdkafka checks settings one by one before it makes a client. So each is given alone, followed by a key that it does
not know: when that one is the complaint, the first was right. What hangs together (a key without its certificate, a
file that is not there) shows only when a client is made; it is made without brokers, and closed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from keyfold.errors import ConfigError
from keyfold_sink.config.client_keys import is_told_apart, translated

_END: Final = "keyfold.end"
_KEY: Final = re.compile(r"\b(?:sasl|ssl|security|client|enable|group)(?:\.[a-z]+)+")
_PREFIXES: Final = ("consumer.override.", "producer.override.", "admin.override.")
_SECURITY: Final = ("security.protocol", "sasl.", "ssl.")
# The client says what it refuses on its log as well; that is ours to say.
_SILENT: Final = {"log_level": 0}
# A configuration that is only looked at (somebody may send it to the REST API) connects to nothing, and neither loads
# libraries nor runs commands.
_NOT_SET: Final = frozenset({"plugin.library.paths", "bootstrap.servers", "metadata.broker.list"})
_NOT_MADE: Final = _NOT_SET | {"ssl.engine.location", "ssl.providers", "sasl.kerberos.kinit.cmd", "debug"}
_KERBEROS: Final = "gssapi"


def client_mistakes(values: Mapping[str, str], known: Collection[str] = ()) -> Iterator[ConfigError]:
    """What librdkafka refuses of a configuration's keys for it, each named as it stands there.

    It is not asked about keys that are `known` to be wrong; and about all together only where each is right.
    """
    all_right = True
    for key, value in values.items():
        own = _own_key(key)
        if own is None:
            continue
        message = None if key in known or is_told_apart(own) else _refusal(own, value)
        all_right = all_right and message is None and key not in known
        if message is not None:
            yield ConfigError(key, message)
    if all_right:
        yield from _made_mistakes(values)


def client_refusal(what: str, settings: Mapping[str, Any], error: KafkaException) -> ConfigError:
    """The mistake of a client that could not be made; `what` says which keys it was made of."""
    text = error.args[0].str()
    named = [key for key in settings if key in text] or _KEY.findall(text) or ["*"]
    return ConfigError(f"{what}{max(named, key=len)}", f"the Kafka client refuses it: {_one_line(text)}")


def _own_key(key: str) -> str | None:
    for prefix in _PREFIXES:
        if key.startswith(prefix) and len(key) > len(prefix):
            return key.removeprefix(prefix)
    return key if key.startswith(_SECURITY) else None


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
        return "is no setting that the Kafka client (librdkafka) knows"
    return f"the Kafka client refuses it: {said}"


def _made_mistakes(values: Mapping[str, str]) -> Iterator[ConfigError]:
    """Make each client once, without brokers: what it reads and what hangs together is looked at only then."""
    shared = translated({key: value for key, value in values.items() if key.startswith(_SECURITY)})
    kinds: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...] = (
        ("consumer.override.", lambda settings: Consumer({"group.id": _END, **settings}).close()),
        ("producer.override.", Producer),
        ("admin.override.", AdminClient),
    )
    for prefix, make in kinds:
        own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        settings = {**shared, **translated(own)}
        mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))
        if not (own or (shared and prefix == _PREFIXES[0])):
            continue
        if not mechanism and settings.get("security.protocol", "").lower().startswith("sasl"):
            key = f"{prefix if 'security.protocol' in own else ''}sasl.mechanism"
            yield ConfigError(key, "is missing", hint="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI")
            continue
        if mechanism.lower() == _KERBEROS:
            continue
        settings = {key: value for key, value in settings.items() if key not in _NOT_MADE}
        try:
            make({**settings, **_SILENT})
        except KafkaException as error:
            yield client_refusal(prefix if own else "", settings, error)


def _one_line(text: str) -> str:
    return " ".join(text.split())
