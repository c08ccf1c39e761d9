"""A topic for restores without a broker: records land in order and late, and a process can die in between.

`lag` records are under way before the first of them lands. A process that dies leaves a prefix of what was under way to
land; how much is drawn from `random`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from keyfold.log.record import CREATE_TIME, Record
from keyfold.restore.errors import TargetMoved
from keyfold.restore.rows import Row
from keyfold.restore.target import TargetEnds, TargetTopic
from keyfold.store.wrappers.faults import SimulatedCrash


@dataclass
class FakeTopic:
    """`Topics` and `Target` in one."""

    random: Random = field(default_factory=lambda: Random(7))
    lag: int = 5
    settings: dict[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})
    count: int = 1
    exists: bool = True
    topic_id: str = "id-1"
    records_of: dict[int, list[Record | None]] = field(default_factory=dict)
    start_of: dict[int, int] = field(default_factory=dict)
    sends: int = 0
    dies_at: int | None = None
    on_send: Callable[[int], None] = lambda _: None
    channels: list[FakeChannel] = field(default_factory=list)
    created: list[tuple[str, int, Mapping[str, str]]] = field(default_factory=list)
    name: str = "users"

    def describe(self, name: str) -> TargetTopic | None:
        if not self.exists:
            return None
        return TargetTopic(name, self.topic_id, "cluster", self.count, dict(self.settings), 1)

    def imagine(self, name: str, partitions: int, settings: Mapping[str, str]) -> TargetTopic:
        return TargetTopic(name, "", "cluster", partitions, dict(settings), exists=False)

    def create(self, name: str, partitions: int, settings: Mapping[str, str], replication_factor: int) -> TargetTopic:
        self.created.append((name, partitions, dict(settings)))
        self.exists, self.count, self.settings = True, partitions, dict(settings)
        found = self.describe(name)
        assert found is not None
        return found

    def compression(self, topic: TargetTopic) -> str:
        return "none"

    def open(self, topic: TargetTopic, *, send_s: float, largest_bytes: int) -> FakeTopic:
        return self

    def log(self, partition: int) -> list[Record | None]:
        return self.records_of.setdefault(partition, [])

    def ends(self, partition: int) -> TargetEnds:
        return TargetEnds(self.start_of.get(partition, 0), len(self.log(partition)))

    def records(self, partition: int, start: int, end: int) -> Iterator[Record]:
        return (r for r in self.log(partition)[start:end] if r is not None)

    def channel(self, partition: int, next_offset: int) -> FakeChannel:
        made = FakeChannel(self, partition, next_offset)
        self.channels.append(made)
        return made

    def foreign(self, partition: int, key: bytes = b"foreign") -> None:
        """Let another producer write a record."""
        self.log(partition).append(Record(len(self.log(partition)), 1, CREATE_TIME, key, b"x"))

    def die(self) -> None:
        """Let every process die: a prefix of the records in flight lands."""
        for channel in self.channels:
            channel.land(self.random.randint(0, len(channel.under_way)))
            channel.under_way.clear()
        self.channels.clear()


@dataclass
class FakeChannel:
    topic: FakeTopic
    partition: int
    landed: int
    under_way: list[Record] = field(default_factory=list)
    failure: Exception | None = None
    dead: bool = False

    @property
    def landed_offset(self) -> int:
        return self.landed

    def send(self, rows: list[Row], fresh_until_s: float) -> int:
        for _, timestamp, key, value, headers in rows:
            self.topic.sends += 1
            self.topic.on_send(self.topic.sends)
            if self.topic.dies_at == self.topic.sends:
                self.dead = True
                raise SimulatedCrash
            if self.failure is not None:
                raise self.failure
            self.under_way.append(Record(-1, timestamp, CREATE_TIME, key, value, tuple(headers or ())))
            if len(self.under_way) > self.topic.lag:
                self.land(1)
        return len(rows)

    def settle(self) -> None:
        self.land(len(self.under_way))
        if self.failure is not None:
            raise self.failure

    def close(self) -> bool:
        if not self.dead:
            self.under_way.clear()
        return not self.dead

    def land(self, count: int) -> None:
        log = self.topic.log(self.partition)
        for record in self.under_way[:count]:
            if len(log) != self.landed and self.failure is None:
                self.failure = TargetMoved(f"a record landed at {len(log)}, not at {self.landed}")
            log.append(replace(record, offset=len(log), leader_epoch=0))
            self.landed += 1
        del self.under_way[:count]
