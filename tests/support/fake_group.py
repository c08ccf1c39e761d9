"""A fake Kafka consumer with the calls that the sink uses: a group's callbacks, and a position for each partition.

It is strict where the client is: what is unassigned must be assigned, callbacks come inside `consume` and `close`. And
it remembers, as the client does (librdkafka 2.16), that a partition was paused when that is unassigned and assigned.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from keyfold_sink.kafka.source import SourceFacts

Key = tuple[str, int]


class FakeSource:
    """The cluster behind the admin client."""

    def __init__(self, kafka: FakeConsumer, topic_id: str = "T") -> None:
        self.kafka, self.id = kafka, topic_id

    def facts(self, topic: str, partition: int) -> SourceFacts:
        return SourceFacts(self.id, "C", 0, self.kafka.end((topic, partition)), self.settings(topic))

    def topic_id(self, topic: str) -> str:
        return self.id

    def settings(self, topic: str) -> Mapping[str, str]:
        return {"cleanup.policy": "delete"}

    def end_offsets(self, keys: Iterable[Key]) -> dict[Key, int]:
        return {key: self.kafka.end(key) for key in keys}

    def stable_end_offsets(self, keys: Iterable[Key]) -> dict[Key, int]:
        return {key: self.kafka.stable_end(key) for key in keys}

    def topics(self) -> frozenset[str]:
        return frozenset(topic for topic, _ in self.kafka.records)


class FakeConsumer:
    """`GroupConsumer` over lists of messages."""

    def __init__(self, *, idle_s: float = 0.002, batch: int = 1_000_000) -> None:
        self._idle_s, self._batch = idle_s, batch
        self.records: dict[Key, list[Message]] = {}
        self.fetched: dict[Key, int] = {}
        self.paused: set[Key] = set()
        self.handed_over: Counter[Key] = Counter()
        self.subscribed: list[list[str]] = []
        self.group_offsets: dict[Key, int] = {}
        self.refuse: Callable[[TopicPartition], KafkaError | None] = lambda _offset: None
        self.closed = False
        self.rounds = 0
        self.on_commit: Callable[[Any, Any], None] = lambda _error, _offsets: None
        self.on_error: Callable[[Any], None] = lambda _error: None
        self._calls: deque[Callable[[], None]] = deque()
        self._told_end: set[Key] = set()
        self._has_assigned = False
        self._errors: list[Message] = []
        self._ends: Counter[Key] = Counter()
        self._unreadable: Counter[Key] = Counter()
        self._lock = threading.Lock()
        self._on: dict[str, Callable[[Any, list[TopicPartition]], None]] = {}

    def produce(self, key: Key, offsets: range, value: bytes = b"v") -> None:
        """Produce records at these offsets."""
        fresh = [
            Message(
                topic=key[0], partition=key[1], offset=n, key=b"k%d" % n, value=value, timestamp=(1, n), leader_epoch=0
            )
            for n in offsets
        ]
        with self._lock:
            self.records.setdefault(key, []).extend(fresh)
            self._ends[key] = max(self._ends[key], offsets.stop)
            self._told_end.discard(key)

    def hole(self, key: Key, offsets: int) -> None:
        """Append unreadable offsets, such as a transaction's markers."""
        with self._lock:
            self._ends[key] += offsets
            self._told_end.discard(key)

    def open_transaction(self, key: Key, offsets: int) -> None:
        """Append offsets of an open transaction, which nobody may read yet; 0 ends it, and they become holes."""
        with self._lock:
            self._ends[key] += offsets
            self._unreadable[key] = offsets
            self._told_end.discard(key)

    def end(self, key: Key) -> int:
        """Return the end offset."""
        with self._lock:
            return self._ends[key]

    def stable_end(self, key: Key) -> int:
        """Return the last stable offset."""
        with self._lock:
            return self._ends[key] - self._unreadable[key]

    def tell(self, what: str, *keys: Key) -> None:
        """Let the next `consume` call `on_assign`, `on_revoke` or `on_lost`."""
        places = [TopicPartition(*key) for key in keys]
        self._calls.append(lambda: self._call(what, places))

    def _call(self, what: str, places: list[TopicPartition]) -> None:
        """Assign as the client does: partitions that a callback does not assign start at the group's offsets."""
        self._has_assigned = False
        self._on[what](self, places)
        if what == "on_assign" and not self._has_assigned:
            self.fetched |= {(p.topic, p.partition): self.group_offsets.get((p.topic, p.partition), 0) for p in places}

    def inject(self, key: Key, code: int, error: KafkaError | None = None) -> None:
        """Let the client report an error of a fetched partition."""
        with self._lock:
            self._errors.append(Message(topic=key[0], partition=key[1], offset=0, error=error or KafkaError(code)))

    def say(self, code: int, text: str) -> None:
        """Let the client report an error of its own, within the next `consume`."""
        self._calls.append(lambda: self.on_error(KafkaError(code, text)))

    # What the sink calls

    def subscribe(self, topics: list[str], **callbacks: Callable[[Any, list[TopicPartition]], None]) -> None:
        self._on = callbacks
        self.subscribed.append(topics)

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        while self._calls:
            self._calls.popleft()()
        self.rounds += 1
        batch: list[Any] = []
        with self._lock:
            batch, self._errors = self._errors, []
            for key, position in self.fetched.items():
                if key in self.paused:
                    continue
                most = min(num_messages // 2 + 1, self._batch)
                rows = [m for m in self.records.get(key, []) if (m.offset() or 0) >= position][:most]
                batch += rows
                self.handed_over[key] += len(rows)
                if rows:
                    self.fetched[key] = (rows[-1].offset() or 0) + 1
                elif key not in self._told_end:
                    self._told_end.add(key)
                    error = KafkaError(KafkaError._PARTITION_EOF)
                    end = max(position, self._ends[key] - self._unreadable[key])
                    batch.append(Message(topic=key[0], partition=key[1], offset=end, error=error))
        if not batch:
            time.sleep(min(timeout, self._idle_s))
        return batch

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._has_assigned = True
        for place in partitions:
            key = (place.topic, place.partition)
            assert key not in self.fetched, f"{key} is assigned already"
            self.fetched[key] = place.offset
            self._told_end.discard(key)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            del self.fetched[place.topic, place.partition]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        for offset in offsets:
            error = self.refuse(offset)
            if error is None:
                self.group_offsets[offset.topic, offset.partition] = offset.offset
            if asynchronous:
                self._calls.append(lambda error=error, offset=offset: self.on_commit(error, [offset]))  # type: ignore[misc]  # mypy does not infer a lambda with a default

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {(place.topic, place.partition) for place in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {(place.topic, place.partition) for place in partitions}

    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool) -> tuple[int, int]:
        key = (partition.topic, partition.partition)
        assert cached, "the main loop must not ask the broker"
        return (0, self.end(key)) if key in self._told_end or self.fetched.get(key, 0) else (-1001, -1001)

    def close(self) -> None:
        self.closed = True
