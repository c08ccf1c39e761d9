"""Kafka's own cleaner, made deterministic for comparison; keyfold's side is in `tests.support.kafka_cleaner_twin`.

`Lab` drives a real broker whose cleaner is held (`min.cleanable.dirty.ratio=1`: the test is a strict "above") until a
round is complete, and then let go until its checkpoint says that the pass is over. Rolls are deterministic too:
`segment.ms` is a day, a round's records lie within less than that above the segment's first batch, and the sentinel
that closes a round comes ten days later, alone in its batch. So Kafka's active segment is the sentinel, and its offset
is where the pass ends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in the list of exports
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from keyfold.log.record import TIMESTAMP_TYPES, Record
from tests.support.kafka import KafkaBroker

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
BASE_MS: Final = 1_500_000_000_000
"""Where the records' timestamps begin: in 2017, so all that is not young on purpose is old."""
SENTINEL_STEP_MS: Final = 10 * DAY_MS

HELD: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1",
    "segment.ms": str(DAY_MS),
    "file.delete.delay.ms": "0",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
"""Settings of a topic whose cleaner waits."""

_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Message:
    """What is produced; it gets its offset from the broker."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


Chunks = Sequence[Sequence[Message]]
"""Messages by batches: each chunk is flushed before the next is begun."""


class Lab:
    """A broker with a quick cleaner, and a canary topic that shows when the cleaner has visited all others."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self._producer = Producer({
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.size": 1_500,  # a batch must fit into the smallest segment
            "log_level": 2,
        })  # fmt: skip
        self._canary = f"canary-{uuid.uuid4().hex[:12]}"  # a broker may have had another lab
        self._canary_rounds = 0

    def create(self, topic: str, config: Mapping[str, str] | None = None) -> None:
        """A topic of one partition whose cleaner is held."""
        self.broker.create_topic(topic, 1, {**HELD, **(config or {})})

    def produce(self, by_topic: Mapping[str, Chunks]) -> None:
        """Produce chunk by chunk, all topics side by side. Every record is acknowledged afterwards."""
        errors: list[str] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                errors.append(error.str())

        for at in range(max(map(len, by_topic.values()), default=0)):
            for topic, chunks in by_topic.items():
                for m in chunks[at] if at < len(chunks) else ():
                    self._producer.produce(
                        topic, key=m.key, value=m.value, timestamp=m.timestamp, partition=0,
                        headers=list(m.headers), on_delivery=delivered,
                    )  # fmt: skip
            assert self._producer.flush(_WAIT_S) == 0
        assert errors == []

    def set(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        """Change settings of topics, and wait until the broker goes by them."""
        resources = [
            ConfigResource(
                ConfigResource.Type.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                    for key, value in config.items()
                ],
            )
            for topic, config in topics.items()
        ]
        if not resources:
            return
        for future in self.broker.admin.incremental_alter_configs(resources).values():
            future.result(_WAIT_S)
        last = resources[-1].name
        self._until(lambda: _says(self._described(last), topics[last]), f"settings of {last}")
        time.sleep(0.1)  # what is described is known to the broker; a moment later its logs follow it too

    def hold(self, topics: Iterable[str]) -> None:
        """Let the cleaner leave these topics alone."""
        self.set({topic: {"min.cleanable.dirty.ratio": "1"} for topic in topics})

    def checkpoints(self) -> dict[str, int]:
        """First dirty offset by topic, from the broker's own file; a topic that was never cleaned is not in it."""
        path = self.broker.folder / "data" / "cleaner-offset-checkpoint"
        rows = [line.split() for line in path.read_text().splitlines()[2:]] if path.exists() else []
        return {topic: int(offset) for topic, partition, offset in rows if partition == "0"}

    def wait_for_passes(self, ends: Mapping[str, int]) -> None:
        """Wait until each topic's checkpoint is where its pass must end."""
        self._until(lambda: ends.items() <= self.checkpoints().items(), f"passes up to {ends}", self.checkpoints)

    def wait_for_looks(self) -> None:
        """Wait until the cleaner has visited every topic and found nothing to clean.

        The canary is made due with a tiny dirty ratio, twice; Kafka takes the highest ratio first, so when the canary
        has been cleaned, no other topic was due.
        """
        if not self._canary_rounds:
            self.create(self._canary, {"min.cleanable.dirty.ratio": "0"})
            self._chirp(200)
        self._chirp(1)
        self._chirp(1)

    def _chirp(self, count: int) -> None:
        at = BASE_MS + self._canary_rounds * SENTINEL_STEP_MS
        end = self.ends([self._canary])[self._canary][1] + count
        rows = [Message(b"%d-%d" % (self._canary_rounds, i), bytes(500), at) for i in range(count)]
        self._canary_rounds += 1
        self.produce({self._canary: [rows, [sentinel(self._canary_rounds)]]})
        self.wait_for_passes({self._canary: end})

    def ends(self, topics: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Log start and log end offset by topic."""
        consumer = self._consumer()
        try:
            found = {t: consumer.get_watermark_offsets(TopicPartition(t, 0), timeout=_WAIT_S) for t in topics}
        finally:
            consumer.close()
        return found

    def read(self, starts: Mapping[str, int]) -> dict[str, list[Record]]:
        """What a plain consumer reads, by topic, from an offset to the end."""
        consumer = self._consumer()
        found: dict[str, list[Record]] = {topic: [] for topic in starts}
        waiting = set(starts)
        try:
            consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in starts.items()])
            deadline = time.monotonic() + _WAIT_S
            while waiting:
                assert time.monotonic() < deadline, f"not read to the end: {waiting}"
                for m in consumer.consume(10_000, 0.1):
                    error = m.error()
                    if error is None:
                        found[m.topic() or ""].append(_record(m))
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        waiting.discard(m.topic() or "")
        finally:
            consumer.close()
        return found

    def dirty_ratio(self, topic: str, first_dirty: int, active_base: int) -> float:
        """Kafka's ratio (LogToClean), from the sizes of its files."""
        sizes = self.segments(topic)
        clean_bytes = sum(size for base, size in sizes.items() if base < first_dirty)
        dirty_bytes = sum(size for base, size in sizes.items() if first_dirty <= base < active_base)
        total = clean_bytes + dirty_bytes
        return dirty_bytes / total if total else 0.0

    def segments(self, topic: str) -> dict[int, int]:
        """Bytes of Kafka's segments by base offset, ascending; the last one is active."""
        files = sorted((self.broker.folder / "data" / f"{topic}-0").glob("*.log"))
        return {int(path.stem): path.stat().st_size for path in files}

    def wait_for_log_start(self, topic: str, offset: int) -> None:
        """Wait until retention has moved the log start to an offset; that it stays there is for the caller to see."""
        self._until(lambda: self.ends([topic])[topic][0] >= offset, f"log start of {topic} at {offset}")

    def _consumer(self) -> Consumer:
        return Consumer({
            "bootstrap.servers": self.broker.bootstrap_servers,
            "group.id": "lab",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        })  # fmt: skip

    def _described(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (future,) = self.broker.admin.describe_configs([resource]).values()
        return {name: entry.value for name, entry in future.result(_WAIT_S).items()}

    def _until(self, condition: Callable[[], bool], what: str, state: Callable[[], object] = str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {_WAIT_S} s: {what}; {state()}"
            time.sleep(0.03)


def _says(described: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all wanted settings are there; the broker writes numbers its own way (`0` as `0.0`)."""

    def same(had: str, value: str) -> bool:
        return had == value or (value.replace(".", "", 1).isdigit() and float(had) == float(value))

    return all(key in described and same(described[key], value) for key, value in wanted.items())


def _record(m: Any) -> Record:
    kind, timestamp = m.timestamp()
    epoch = m.leader_epoch()
    headers = tuple(m.headers() or ())
    return Record(
        m.offset(), timestamp, TIMESTAMP_TYPES[kind], m.key(), m.value(), headers, -1 if epoch is None else epoch
    )


def sentinel(number: int) -> Message:
    """The record that closes round `number` (from 1): it rolls Kafka's active segment and begins the next one."""
    return Message(b"\x00sentinel-%d" % number, b"", BASE_MS + number * SENTINEL_STEP_MS)
