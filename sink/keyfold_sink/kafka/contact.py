"""Whether Kafka talks to us: a wrong password or certificate is told from brokers that are away.

librdkafka goes on for ever in both cases and reports each failed attempt through its error callback. Being away passes,
so it is waited for. Being refused does not, so it is believed when nothing else has been heard for a while: sooner
where no broker has ever answered, much later where they did, for brokers that restart may refuse for a moment.

What the client reports is logged here, each text once in a while: the client's own log would say it three times a
second, so `QUIET` keeps it to what is worse than an error. What it does log (all of it, where `log_level` or `debug` is
set for it) goes the way of all events, as `keyfold.sink.kafka`, never past them to standard error.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError

from keyfold.clock import Clock
from keyfold_sink.kafka.source import SourceForbidden

PATIENCE_AT_FIRST_S: Final = 10.0
PATIENCE_S: Final = 300.0
CLIENT_LOG: Final = logging.getLogger("keyfold.sink.kafka")
"""Where a client's own log goes. The client hands over what it has when it is polled, or asked for records."""
QUIET: Final[Mapping[str, Any]] = MappingProxyType({"log_level": 2, "logger": CLIENT_LOG})
"""Settings of a client whose errors are heard here."""

_SAY_AGAIN_S: Final = 60.0
_TEXTS_MAX: Final = 200

_REFUSED_LOGIN: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - the client's own codes begin with an underscore
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
_TLS: Final = KafkaError._SSL  # noqa: SLF001
# Some of what TLS says comes as a broken connection.
_TLS_WORDS: Final = re.compile(r"SSL routines|SSL handshake failed|tls alert", re.IGNORECASE)
_STATE: Final = re.compile(r"\s*\(after \d+ms in state [^)]*\)")


def why_refused(error: KafkaError) -> SourceForbidden | None:
    """What an error says about credentials, certificates and protocols; None where it says nothing about them."""
    text = _STATE.sub("", error.str())
    if error.code() in _REFUSED_LOGIN:
        return SourceForbidden(
            f"Kafka refuses the login: {text}",
            hint="check sasl.username, sasl.password and sasl.mechanism, at the top or in consumer.override.* and "
            "admin.override.*, against the brokers' users",
        )
    if error.code() == _TLS or _TLS_WORDS.search(text):
        return SourceForbidden(f"there is no TLS connection to Kafka: {text}", hint=_tls_hint(text.lower()))
    return None


def _tls_hint(text: str) -> str:
    if "certificate verify failed" in text:
        return (
            "name the PEM file of the authority that signed the brokers' certificates in ssl.ca.location, and check "
            "that the certificates are valid and made out to the hosts in bootstrap.servers"
        )
    if "plaintext broker" in text or "wrong version number" in text:
        return "the listener does not speak TLS: check security.protocol and the port of bootstrap.servers"
    return (
        "the brokers ask for a client's certificate, or do not accept this one: check ssl.certificate.location and "
        "ssl.key.location, or ssl.keystore.location"
    )


class Contact:
    """What one client hears of its brokers. Used by the client's threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._has_answered = False
        self._refused_since_s: float | None = None
        self._refused_at_s = 0.0
        self._why: SourceForbidden | None = None
        self._said_s: dict[str, float] = {}
        self._events = structlog.get_logger("keyfold.sink")

    def answered(self) -> None:
        """A broker has answered."""
        with self._lock:
            self._has_answered = True
            self._refused_since_s = self._why = None

    def heard(self, error: KafkaError) -> None:
        """The client reports an error."""
        self._log(error)
        why = why_refused(error)
        if why is None:
            return
        with self._lock:
            self._why = why
            self._refused_at_s = self._clock.monotonic_s()
            if self._refused_since_s is None:
                self._refused_since_s = self._refused_at_s

    def refusal(self) -> SourceForbidden | None:
        """What brokers last said against us, since any of them answered."""
        with self._lock:
            return self._why

    def believed_refusal(self, waited_s: float = 0.0) -> SourceForbidden | None:
        """The same, once it has lasted long enough to be believed: by itself, or as long as a call has waited."""
        with self._lock:
            if self._refused_since_s is None:
                return None
            patience_s = PATIENCE_S if self._has_answered else PATIENCE_AT_FIRST_S
            lasted_s = max(waited_s, self._refused_at_s - self._refused_since_s)
            return self._why if lasted_s >= patience_s else None

    def _log(self, error: KafkaError) -> None:
        text, now_s = _STATE.sub("", error.str()), self._clock.monotonic_s()
        with self._lock:
            if text in self._said_s and now_s - self._said_s[text] < _SAY_AGAIN_S:
                return
            if len(self._said_s) >= _TEXTS_MAX:
                self._said_s.clear()
            self._said_s[text] = now_s
        self._events.warning("kafka client reports", error=text)
