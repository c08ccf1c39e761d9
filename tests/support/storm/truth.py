"""Each partition as Kafka has it: read once by a plain consumer, in the background, committed records only.

    with Truth(bootstrap_servers, places) as truth:
        history = truth.wait(place, offset)     everything below `offset` is known in it

Nothing of keyfold is imported here.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

PartitionKey = tuple[str, int]
WAIT_S: Final = 300.0
"""How long a snapshot may be ahead of this consumer, which a frozen broker holds up; a net, no measure."""
_TIMESTAMP_TYPES: Final = ("NoTimestampType", "CreateTime", "LogAppendTime")


class Row(NamedTuple):
    """One record."""

    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class History:
    """The committed records of one partition, in offset order. `known_to`: nothing more comes below this offset."""

    rows: list[Row] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    known_to: int = 0

    def between(self, start: int, end: int) -> list[Row]:
        """Return the records with offsets in `[start, end)`."""
        return self.rows[bisect_left(self.offsets, start) : bisect_left(self.offsets, end)]

    def at(self, offset: int) -> Row | None:
        """Return the record at an offset."""
        place = bisect_left(self.offsets, offset)
        return self.rows[place] if place < len(self.offsets) and self.offsets[place] == offset else None


class Truth(threading.Thread):
    """The consumer."""

    def __init__(self, bootstrap_servers: str, places: Iterable[PartitionKey]) -> None:
        super().__init__(daemon=True, name="truth")
        self._histories = {place: History() for place in places}
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "truth",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join(60)

    def run(self) -> None:
        """Consume until it is stopped."""
        try:
            self._consumer.assign([TopicPartition(*place, 0) for place in self._histories])
            while not self._is_over.is_set():
                messages = self._consumer.consume(2_000, 0.2)
                with self._changed:
                    for message in messages:
                        self._take(message)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the waiting caller raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._consumer.close()

    def wait(self, place: PartitionKey, offset: int) -> History:
        """Return a partition's history when all below `offset` is known. Raise `AssertionError` where Kafka ends first.

        A partition's end moves past the markers of transactions too.
        """
        history = self._histories[place]
        deadline_s = time.monotonic() + WAIT_S
        with self._changed:
            while history.known_to < offset:
                if self._error is not None:
                    raise self._error
                self._changed.wait(1.0)
                assert history.known_to >= offset or time.monotonic() < deadline_s, (
                    f"{place} was read up to offset {offset}, and Kafka has nothing beyond {history.known_to}"
                )
        return history

    def _take(self, message: Message) -> None:
        error, offset = message.error(), message.offset() or 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            # A broker that does not answer is asked again by the client itself.
            is_lasting = error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET
            assert not is_lasting, f"the consumer of the truth: {error}"
            return
        history = self._histories[message.topic() or "", message.partition() or 0]
        if error is not None:
            history.known_to = max(history.known_to, offset)
            return
        kind, timestamp = message.timestamp()
        headers = tuple((header[0], header[1]) for header in message.headers() or ())
        key, value = message.key(), message.value()
        history.rows.append(Row(offset, timestamp, _TIMESTAMP_TYPES[kind], key, value, headers))  # type: ignore[arg-type]  # the client returns lists of pairs
        history.offsets.append(offset)
        history.known_to = max(history.known_to, offset + 1)
