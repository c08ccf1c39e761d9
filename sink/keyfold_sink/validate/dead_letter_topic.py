"""Send dead letters, and hold back commits beyond their offsets until Kafka has confirmed them.

    main thread       send ──► the client's queue ──► Kafka
    a serial queue    Delivery.wait, before the commit; it also serves the client's callbacks

A dead letter that Kafka does not accept for the moment (no answer, a change of leader) is sent again until Kafka
accepts it. Meanwhile `has_room` limits further rejections. A dead letter that Kafka refuses (no right to write, too
large) fails the partition. It may be in the topic twice after a crash between its delivery and the commit, or if an
answer was lost together with the client's state. It is never missing, because no commit passes its offset before Kafka
has confirmed it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException

from keyfold.errors import LogError
from keyfold.runtime.clock import Clock
from keyfold_sink.kafka.cluster import FORBIDDEN
from keyfold_sink.kafka.contact import BrokerContact, why_refused
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.validate.dead_letter import DeadLetter
from keyfold_sink.validate.error_counts import ErrorCounts
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.skips import DeadLettersPending

_POLL_S: Final = 0.05
_POLLS: Final = 20
_AGAIN_S: Final = 1.0

# The client's errors that may pass. They are rare with the settings of `keyfold_sink.validate.dead_letter_producer`.
_NOT_NOW: Final = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._QUEUE_FULL,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    }
)
_HINT: Final = "correct the cause of Kafka's error"
_HINTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "give the sink's user the right to write to {topic}",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of {topic}",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "restart the sink to create {topic}, if it was deleted",
    KafkaError._UNKNOWN_TOPIC: "restart the sink to create {topic}, if it was deleted",
}


class Producer(Protocol):
    """The methods of `confluent_kafka.Producer` that the sink uses, as documented there."""

    def produce(self, topic: str, **dead_letter: object) -> None: ...  # noqa: D102 - the class is documented as a whole
    def poll(self, timeout: float) -> int: ...  # noqa: D102 - the class is documented as a whole


OpenProducer = Callable[[Callable[[KafkaError], None]], Producer]
"""Open a producer, given the callback for errors of the client as a whole."""


class DeadLetterRefused(LogError):
    """Kafka refuses a dead letter; the log does not pass the record's offset."""


@dataclass(eq=False, slots=True)
class _Posted:
    """A dead letter in flight."""

    dead_letter: DeadLetter
    delivery: DeadLetterBatch
    with_timestamp: bool = True


class DeadLetterBatch:
    """The dead letters of one batch of one partition. A `keyfold_sink.write.skips.Delivery`."""

    def __init__(self, key: TopicPartitionKey, dead_letters: Sequence[DeadLetter], post: DeadLetterTopic) -> None:
        self.key = key
        self.first_offset = dead_letters[0].offset
        self.last_offset = dead_letters[-1].offset
        self.left = len(dead_letters)
        self.error: DeadLetterRefused | None = None
        self._post = post

    def wait(self) -> None:
        """See `Delivery.wait`."""
        for _ in range(_POLLS):
            if self.error is not None:
                raise self.error
            if self.left == 0:
                return
            self._post.serve(_POLL_S)
        raise DeadLettersPending(
            f"{self.left} dead letters of {self.key[0]}-{self.key[1]} are not in {self._post.topic} yet"
        )


class DeadLetterTopic:
    """The sender of one task's dead letters.

    A dead letter counts twice in `in_flight` until it has arrived, because the client copies it.
    """

    def __init__(
        self,
        topic: str,
        open_producer: OpenProducer,
        *,
        limit_bytes: int,
        in_flight: InFlight,
        counts: ErrorCounts,
        clock: Clock,
    ) -> None:
        self.topic = topic
        self._open_producer = open_producer
        self._limit_bytes = limit_bytes
        self._in_flight = in_flight
        self._counts = counts
        self._clock = clock
        self._contact = BrokerContact(clock)
        self._lock = threading.RLock()
        self._out: dict[int, _Posted] = {}
        self._waiting: list[_Posted] = []
        self._again_s = 0.0
        self._size_bytes = 0
        self._serial = 0
        self._is_broken = False
        self._events = structlog.get_logger("keyfold.sink")
        self._producer = open_producer(self._on_error)

    def has_room(self, size_bytes: int) -> bool:
        """Whether this number of bytes may be sent now. A batch larger than the limit may be sent alone."""
        return self._size_bytes == 0 or self._size_bytes + size_bytes <= self._limit_bytes

    def send(self, key: TopicPartitionKey, dead_letters: Sequence[DeadLetter]) -> DeadLetterBatch:
        """Send dead letters in offset order, without blocking. The returned batch knows when they have arrived."""
        delivery = DeadLetterBatch(key, dead_letters, self)
        self._counts.dead_letters_sent(len(dead_letters))
        size_bytes = sum(dead_letter.size_bytes for dead_letter in dead_letters)
        self._in_flight.add(size_bytes * 2)
        with self._lock:
            self._size_bytes += size_bytes
            for dead_letter in dead_letters:
                self._post(_Posted(dead_letter, delivery))
        return delivery

    def serve(self, timeout_s: float = 0.0) -> None:
        """Run the client's callbacks; wait at most `timeout_s` for the first. Thread-safe."""
        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:  # the client raises this after a fatal error
            self._on_error(error.args[0])
        with self._lock:
            if self._is_broken:
                self._replace_producer()
            refusal = self._contact.believed_refusal()
            if refusal is not None:
                self._refuse_all(str(refusal))
            if self._waiting and self._clock.monotonic_s() >= self._again_s:
                waiting, self._waiting = self._waiting, []
                for posted in waiting:
                    self._post(posted)

    def _post(self, posted: _Posted) -> None:
        dead_letter = posted.dead_letter
        optional = (
            {"timestamp": dead_letter.timestamp} if posted.with_timestamp and dead_letter.timestamp is not None else {}
        )
        self._serial += 1
        self._out[self._serial] = posted
        try:
            self._producer.produce(
                self.topic,
                key=dead_letter.key,
                value=dead_letter.value,
                headers=dead_letter.headers,
                on_delivery=partial(self._on_delivery, self._serial),
                **optional,
            )
        except BufferError:
            self._later(self._out.pop(self._serial))
        except KafkaException as error:
            self._judge(self._out.pop(self._serial), error.args[0])

    def _on_delivery(self, serial: int, error: KafkaError | None, _message: object) -> None:
        with self._lock:
            posted = self._out.pop(serial, None)
            if posted is None:
                return  # from a replaced producer, whose dead letters were sent again
            if error is not None:
                self._judge(posted, error)
                return
            self._contact.answered()
            self._end(posted)

    def _judge(self, posted: _Posted, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_broken = True
            self._later(posted)
        elif error.code() == KafkaError.INVALID_TIMESTAMP and posted.with_timestamp:
            posted.with_timestamp = False  # the topic refuses timestamps this far from its own time
            self._post(posted)
        elif error.retriable() or error.code() in _NOT_NOW:
            self._later(posted)
        else:
            self._refuse(posted, error.str(), _HINTS.get(error.code(), _HINT).format(topic=self.topic))

    def _later(self, posted: _Posted) -> None:
        self._again_s = self._clock.monotonic_s() + _AGAIN_S
        self._waiting.append(posted)

    def _refuse(self, posted: _Posted, why: str, hint: str = "") -> None:
        self._counts.dead_letter_refused()
        posted.delivery.error = DeadLetterRefused(
            *posted.delivery.key,
            f"the record at offset {posted.dead_letter.offset} failed its check and could not be sent to the dead "
            f"letter topic {self.topic}: {why}",
            hint=f"{hint or _HINT}, then restart the task, which reads the record again",
        )
        self._end(posted)

    def _end(self, posted: _Posted) -> None:
        posted.delivery.left -= 1
        self._size_bytes -= posted.dead_letter.size_bytes
        self._in_flight.add(-posted.dead_letter.size_bytes * 2)

    def _on_error(self, error: KafkaError) -> None:
        """Handle an error that the client reports about itself."""
        self._contact.on_error(error)
        with self._lock:
            self._is_broken = self._is_broken or error.fatal()
            if error.code() in FORBIDDEN and why_refused(error) is None:
                self._refuse_all(error.str())  # the client reports only once that it has no right to write at all

    def _refuse_all(self, why: str) -> None:
        refused = [*self._out.values(), *self._waiting]
        self._out.clear()
        self._waiting.clear()
        for posted in refused:
            self._refuse(posted, why)

    def _replace_producer(self) -> None:
        """Replace a producer that has lost its sequence or its brokers, and send unconfirmed dead letters again."""
        self._is_broken = False
        self._events.warning("dead letter producer replaced", letters=len(self._out))
        self._waiting = [*self._out.values(), *self._waiting]
        self._out.clear()
        self._again_s = self._clock.monotonic_s() + _AGAIN_S
        self._producer = self._open_producer(self._on_error)
