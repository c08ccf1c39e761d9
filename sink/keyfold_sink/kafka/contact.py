"""Tell a wrong password or certificate from brokers that do not answer.

librdkafka retries without end in both cases, and reports each failed attempt through its error callback. Brokers that
do not answer may return, so the sink waits. A refusal does not go away by itself, so the sink ends once refusals have
been the only reports for a while. That while is short if no broker has ever answered. It is much longer otherwise,
because brokers that restart may refuse for a moment.

The client's errors are logged here, each text once in a while. The client's own log would repeat them three times a
second, so `QUIET` limits it to messages worse than an error. Messages that the client logs (all of them, if `log_level`
or `debug` is set for it) go to the logger `keyfold.sink.kafka`, never directly to standard error.

A client can also be left without any broker. A cluster that has just lost its controllers may answer a request for
metadata with no broker at all. librdkafka from 2.10 then forgets every broker, has none left to ask, and is silent for
ever (its issue 5301). Only its statistics show that, so `watch_brokers` reads them; a new client is the only cure.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import structlog
from confluent_kafka import KafkaError

from keyfold.runtime.clock import Clock
from keyfold_sink.kafka.source import SourceForbidden

REFUSAL_LASTS_AT_FIRST_S: Final = 10.0
REFUSAL_LASTS_S: Final = 300.0
CLIENT_LOG: Final = logging.getLogger("keyfold.sink.kafka")
"""The logger of a client's own messages. The client passes them on when it is polled."""
QUIET: Final[Mapping[str, object]] = MappingProxyType({"log_level": 2, "logger": CLIENT_LOG})
"""Settings of a client whose errors are logged here."""

NO_BROKERS: Final = "the client has forgotten all brokers, because Kafka has answered a request for metadata with none"

_STATISTICS_INTERVAL_MS: Final = 15_000
# One report may show a client that has dropped its brokers and is about to return to those in bootstrap.servers.
_REPORTS_WITHOUT_BROKERS: Final = 2
_BROKER: Final = re.compile(r'"source": ?"(?:learned|configured)"')
_SAY_AGAIN_S: Final = 60.0
_TEXTS_MAX: Final = 200

_REFUSED_LOGIN: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
_TLS: Final = KafkaError._SSL
# Some TLS errors are reported as a broken connection.
_TLS_WORDS: Final = re.compile(r"SSL routines|SSL handshake failed|tls alert", re.IGNORECASE)
_STATE: Final = re.compile(r"\s*\(after \d+ms in state [^)]*\)")


def why_refused(error: KafkaError) -> SourceForbidden | None:
    """Return the refusal that an error is about (credentials, certificates, protocols), None for other errors."""
    text = _STATE.sub("", error.str())
    if error.code() in _REFUSED_LOGIN:
        return SourceForbidden(
            f"Kafka refuses the login: {text}",
            hint="check sasl.username, sasl.password and sasl.mechanism, at the top level or in consumer.override.* "
            "and admin.override.*, against the brokers' users",
        )
    if error.code() == _TLS or _TLS_WORDS.search(text):
        return SourceForbidden(f"the TLS connection to Kafka failed: {text}", hint=_tls_hint(text.lower()))
    return None


def _tls_hint(text: str) -> str:
    if "certificate verify failed" in text:
        return (
            "set ssl.ca.location to the PEM file of the authority that signed the brokers' certificates, and check "
            "that the certificates are valid for the hosts in bootstrap.servers"
        )
    if "plaintext broker" in text or "wrong version number" in text:
        return "the listener does not use TLS; check security.protocol and the port in bootstrap.servers"
    return (
        "the brokers require a client certificate, or refuse this one; check ssl.certificate.location and "
        "ssl.key.location, or ssl.keystore.location"
    )


def watch_brokers(on_none_left: Callable[[], None]) -> dict[str, object]:
    """Return settings of a client that calls `on_none_left`, once, after it has forgotten all brokers.

    The client must be polled even when it is idle, because its statistics wait for that.
    """
    reports_without = 0

    def heard(statistics: str) -> None:
        nonlocal reports_without
        reports_without = 0 if _BROKER.search(statistics) else reports_without + 1
        if reports_without == _REPORTS_WITHOUT_BROKERS:
            on_none_left()

    return {"statistics.interval.ms": _STATISTICS_INTERVAL_MS, "stats_cb": heard}


class BrokerContact:
    """The answers and refusals of brokers to one client. Thread-safe."""

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
        """Record that a broker has answered."""
        with self._lock:
            self._has_answered = True
            self._refused_since_s = self._why = None

    def on_error(self, error: KafkaError) -> None:
        """Record and log an error that the client reports."""
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
        """Return the last refusal since a broker last answered."""
        with self._lock:
            return self._why

    def believed_refusal(self, waited_s: float = 0.0) -> SourceForbidden | None:
        """Return the last refusal once refusals have lasted long enough, by themselves or while a call waited."""
        with self._lock:
            if self._refused_since_s is None:
                return None
            lasts_min_s = REFUSAL_LASTS_S if self._has_answered else REFUSAL_LASTS_AT_FIRST_S
            lasted_s = max(waited_s, self._refused_at_s - self._refused_since_s)
            return self._why if lasted_s >= lasts_min_s else None

    def _log(self, error: KafkaError) -> None:
        text, now_s = _STATE.sub("", error.str()), self._clock.monotonic_s()
        with self._lock:
            if text in self._said_s and now_s - self._said_s[text] < _SAY_AGAIN_S:
                return
            if len(self._said_s) >= _TEXTS_MAX:
                self._said_s.clear()
            self._said_s[text] = now_s
        self._events.warning("kafka client error", error=text)
