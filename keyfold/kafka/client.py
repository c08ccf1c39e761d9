"""Creation of Kafka clients, and translation of their errors. The only module that imports confluent-kafka first.

librdkafka retries for ever: for a call, a wrong password and an unavailable broker look the same, because both time
out. The brokers' refusals only reach the error callback. `BrokerErrors` receives it, so that an error can name the
reason.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, TypeVar

from keyfold.config.config_file import without_secrets
from keyfold.errors import ConfigError, KeyfoldError
from keyfold.kafka.errors import KafkaRefused, KafkaTopicMissing, KafkaUnavailable
from keyfold.runtime.extras import needs_extra

with needs_extra("the Kafka client", "kafka"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
    from confluent_kafka.admin import AdminClient

__all__ = [
    "BrokerErrors",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "answer",
    "make_admin",
    "make_consumer",
    "make_producer",
    "plain",
]  # fmt: skip

T = TypeVar("T")

QUIET: Final = {"log_level": 2}
_KEY: Final = re.compile(r"\b(?:sasl|ssl|security|client|enable|group)(?:\.[a-z]+)+")
_STATE: Final = re.compile(r"\s*\(after \d+ms in state [^)]*\)")
_TLS_WORDS: Final = re.compile(r"SSL routines|SSL handshake failed|tls alert", re.IGNORECASE)
_STEP_S: Final = 0.2
_BELIEVED_AFTER_S: Final = 5.0

# The client's own codes start with an underscore.
_LOGIN: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
_RIGHTS: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
    }
)
_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


# Transient errors: unavailable brokers, and brokers that are taking over a partition.
_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)


class BrokerErrors:
    """The errors that one client receives from its brokers. Used by the client's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why: KafkaRefused | None = None
        self._last = ""

    def heard(self, error: KafkaError) -> None:
        """The client's `error_cb`."""
        with self._lock:
            self._last = _STATE.sub("", error.str())
            self._why = _refusal(error) or self._why

    def answered(self) -> None:
        """Note that a broker has answered, which ends earlier refusals."""
        with self._lock:
            self._why, self._last = None, ""

    def refusal(self) -> KafkaRefused | None:
        """What brokers last said against us, since any of them answered."""
        with self._lock:
            return self._why

    @property
    def last_words(self) -> str:
        """What the client last reported, empty where it reported nothing."""
        with self._lock:
            return self._last


def make_admin(settings: Mapping[str, str], contact: BrokerErrors) -> AdminClient:
    """A client for topics, settings and offsets. Raises `ConfigError`."""
    return _made(AdminClient, settings, {"error_cb": contact.heard})


def make_consumer(settings: Mapping[str, str], contact: BrokerErrors, own: Mapping[str, object]) -> Consumer:
    """A consumer of no group that reads what it is assigned. `own` goes before the user's settings."""
    without_group = {
        "group.id": "keyfold-reads-without-a-group",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }
    return _made(Consumer, settings, {**without_group, **own, "error_cb": contact.heard})


def make_producer(settings: Mapping[str, str], contact: BrokerErrors, own: Mapping[str, object]) -> Producer:
    """A producer. `own` goes before the user's settings."""
    return _made(Producer, settings, {**own, "error_cb": contact.heard})


def _made(kind: Callable[[dict[str, Any]], T], settings: Mapping[str, str], own: Mapping[str, object]) -> T:
    try:
        return kind({**QUIET, **settings, **own})
    except KafkaException as error:
        text = " ".join(error.args[0].str().split())
        named = [key for key in settings if key in text] or _KEY.findall(text) or ["--kafka-config"]
        key = max(named, key=len)
        message = without_secrets(f"rejected by the Kafka client: {text}", settings)
        raise ConfigError(
            key, message, hint="use librdkafka's keys, or the equivalent keys of the Java clients"
        ) from None


def answer(what: str, future: Future[T], contact: BrokerErrors, timeout_s: float = 30.0) -> T:
    """The result of one of the admin client's futures; `what` says what was asked.

    Raises `KafkaUnavailable`, `KafkaRefused`, `KafkaTopicMissing`, or `KeyfoldError` for any other refusal.
    """
    waited_s = 0.0
    while True:
        try:
            found = future.result(_STEP_S)
        except FutureTimeout:
            waited_s += _STEP_S
            refused = contact.refusal()
            if refused is not None and waited_s >= _BELIEVED_AFTER_S:
                raise refused from None
            if waited_s >= timeout_s:
                raise _late(what, contact, waited_s) from None
        except KafkaException as error:
            raise plain(error.args[0], what, contact) from error
        else:
            contact.answered()
            return found


def _late(what: str, contact: BrokerErrors, waited_s: float) -> KafkaUnavailable:
    said = f"; last error of the client: {contact.last_words}" if contact.last_words else ""
    return KafkaUnavailable(
        f"no answer from Kafka for {what} within {waited_s:.0f} s{said}", hint="check bootstrap.servers"
    )


def plain(error: KafkaError, what: str, contact: BrokerErrors | None = None) -> KeyfoldError:
    """What a Kafka error means; `what` was asked or done."""
    text = _STATE.sub("", error.str())
    refused = _refusal(error) or (contact.refusal() if contact is not None and _is_passing(error) else None)
    if refused is not None:
        return refused
    if error.code() in _GONE:
        return KafkaTopicMissing(f"Kafka does not know {what}: {text}")
    if error.code() in _RIGHTS or "AUTHORIZATION" in error.name():
        return KafkaRefused(f"Kafka denied access to {what}: {text}", hint="check the client's credentials and ACLs")
    if _is_passing(error):
        return KafkaUnavailable(f"no answer from Kafka for {what}: {text}", hint="check bootstrap.servers")
    return KeyfoldError(f"Kafka returned an error for {what}: {text}")


def _is_passing(error: KafkaError) -> bool:
    return bool(error.retriable()) or error.code() in _PASSING


def _refusal(error: KafkaError) -> KafkaRefused | None:
    """What an error says about credentials, certificates and protocols; None where it says nothing about them."""
    text = _STATE.sub("", error.str())
    if error.code() in _LOGIN:
        return KafkaRefused(
            f"Kafka rejected the login: {text}",
            hint="check sasl.username, sasl.password and sasl.mechanism in --kafka-config against the brokers' users",
        )
    if error.code() == KafkaError._SSL or _TLS_WORDS.search(text):
        return KafkaRefused(
            f"the TLS connection to Kafka failed: {text}",
            hint="check security.protocol, ssl.ca.location and, if the brokers require it, "
            "ssl.certificate.location and ssl.key.location",
        )
    return None
