"""A log against a topic, both in memory: an explained difference is no finding, any other is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.log.manifest import Gap
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.verify.compare import ALL, Comparison, Extent, absent_partitions, compare_partition
from keyfold.verify.findings import FindingKind
from tests.support.logs import MadeLog, record, records


@dataclass
class FakeTopic:
    """A topic as lists of records; `clean` is Kafka's own cleaner."""

    records: list[Record] = field(default_factory=list)
    start: int = 0
    end: int = 0
    policy: str = "compact"
    id: str = ""
    reads: int = 0
    numbers: list[int] = field(default_factory=lambda: [0])

    def topic_id(self) -> str:
        return self.id

    def partitions(self) -> list[int]:
        return self.numbers

    def settings(self) -> Mapping[str, str]:
        return {"cleanup.policy": self.policy}

    def ends(self, partition: int) -> tuple[int, int]:
        return self.start, self.end or (self.records[-1].offset + 1 if self.records else 0)

    def read(self, partition: int, from_offset: int, to_offset: int) -> Iterator[Record]:
        assert self.start <= from_offset <= to_offset <= self.ends(partition)[1]
        self.reads += 1
        yield from [r for r in self.records if from_offset <= r.offset < to_offset]

    def without(self, *offsets: int) -> FakeTopic:
        return replace(self, records=[r for r in self.records if r.offset not in offsets], end=self.ends(0)[1])


def opened(made: MadeLog) -> Log:
    return Log(made.store, "topics", "users", clock=made.clock, random=made.random)


def compare(made: MadeLog, topic: FakeTopic, extent: Extent = ALL, rows_at_once: int = 5) -> Comparison:
    return compare_partition(opened(made), 0, topic, random=Random(1), extent=extent, rows_at_once=rows_at_once)


def found(comparison: Comparison) -> list[tuple[str, int]]:
    return [(f.kind.value, f.offset) for f in comparison.findings if f.kind.is_damage]


def both(text: str, *, compact: bool = False) -> tuple[MadeLog, FakeTopic]:
    made, batch = MadeLog(), records(text)
    made.append(batch)
    if compact:
        made.compact()
    return made, FakeTopic(list(batch))


def test_equal_sides_have_no_findings() -> None:
    made, topic = both("a=1 b=2 a= =x c=3")
    comparison = compare(made, topic)
    assert comparison == Comparison((), 5)


@pytest.mark.parametrize(
    "change",
    [
        {"key": b"z"}, {"key": None}, {"value": b"other"}, {"value": None}, {"timestamp": 7},
        {"timestamp_type": "LogAppendTime"}, {"headers": (("h", None),)},
    ],
)  # fmt: skip
def test_a_record_differing_in_one_field_is_found(change: dict[str, object]) -> None:
    made, topic = both("a=1 b=2 c=3")
    topic.records[1] = replace(topic.records[1], **change)  # type: ignore[arg-type]  # fields by name, of any type
    (finding,) = compare(made, topic).findings
    assert (finding.kind, finding.offset) == (FindingKind.RECORD_DIFFERS, 1)
    assert next(iter(change)) in finding.what
    assert finding.object == made.place.key(made.manifest.segments[0].name)


def test_an_unknown_leader_epoch_is_no_difference() -> None:
    made, topic = both("a=1 b=2")
    topic.records[0] = replace(topic.records[0], leader_epoch=3)
    assert compare(made, topic).findings == ()


def test_a_record_removed_by_a_pass_is_explained_by_its_successor() -> None:
    made, topic = both("a=1 b=2 a=2 b= c=3", compact=True)
    assert [r.offset for r in Log(made.store, "topics", "users").read()] == [2, 3, 4]
    assert found(compare(made, topic)) == []


def test_a_record_compacted_by_kafka_is_explained_by_its_successor() -> None:
    made, topic = both("a=1 b=2 a=2 b= c=3")
    assert found(compare(made, topic.without(0, 1, 3))) == []


def test_records_compacted_by_a_topic_ahead_of_the_log_are_no_findings() -> None:
    made, topic = both("a=1 b=2")
    topic.records += records("a=9 c=1", 2)
    assert found(compare(made, topic.without(0))) == []


def test_a_purged_tombstone_and_the_records_it_deleted_are_explained() -> None:
    made, topic = both("a=1 b=2 a=", compact=True)
    made.compact(purge=True)
    assert [r.offset for r in Log(made.store, "topics", "users").read()] == [1]
    assert found(compare(made, topic)) == []
    assert found(compare(made, topic.without(0))) == []
    assert found(compare(made, topic.without(0, 2))) == []


@pytest.mark.parametrize("gone", [(), (0,)])
@pytest.mark.parametrize("rows_at_once", [1, 100])
def test_a_tombstone_below_purged_to_is_lost_if_its_records_remain(gone: tuple[int, ...], rows_at_once: int) -> None:
    made, topic = MadeLog(), FakeTopic(records("a=1 b=2 a= c="))
    made.append(records("a=1 b=2 _ c="))  # what the passes were given had lost the tombstone of a already
    made.compact()
    made.compact(purge=True)
    assert made.manifest.purged_to == 3
    comparison = compare(made, topic.without(*gone), rows_at_once=rows_at_once)
    assert found(comparison) == [("tombstone-lost", 2)]
    assert "the log still has the value that it deletes, at offset 0" in comparison.findings[0].what


def test_a_record_missing_inside_a_sinks_segment_is_lost_even_if_superseded() -> None:
    made, topic = MadeLog(), FakeTopic(records("a=1 b=2 a=2"))
    made.append(records("_ b=2 a=2"))
    assert found(compare(made, topic)) == [("record-lost", 0)]
    made, topic = MadeLog(), FakeTopic(records("a=1 b= a=2"))
    made.append(records("a=1 _ a=2"))
    assert found(compare(made, topic)) == [("tombstone-lost", 1)]


def test_a_record_and_a_tombstone_lost_by_a_pass_are_found() -> None:
    made = MadeLog()
    made.append(records("a=1 _ b=2 _ d=1"))  # what the pass was given had lost two already
    made.compact()
    topic = FakeTopic(records("a=1 c=1 b=2 b= d=1"))
    comparison = compare(made, topic)
    assert found(comparison) == [("record-lost", 1), ("tombstone-lost", 3)]
    assert "the tombstone of key b'b'" in comparison.findings[1].lost


def test_only_the_newest_record_of_a_lost_key_is_named() -> None:
    made = MadeLog()
    made.append(records("a=1 _ _ d=1"))
    made.compact()
    assert found(compare(made, FakeTopic(records("a=1 c=1 c=2 d=1")))) == [("record-lost", 2)]


def test_a_record_superseded_only_beyond_the_logs_end_is_lost() -> None:
    made = MadeLog()
    made.append(records("a=1 _ d=1"))
    made.compact()
    assert found(compare(made, FakeTopic(records("a=1 c=1 d=1 c=2")))) == [("record-lost", 1)]


def test_a_gap_explains_missing_records_up_to_its_count() -> None:
    made = MadeLog()
    for count, expected in ((-1, []), (2, []), (1, [("record-lost", 3)])):
        made = MadeLog()
        first, rest = records("a=1"), records("b=1 _ _ e=1", 1)
        made.append(first)
        made.append(rest)
        sink = made.log.claim_sink()
        sink.advance(6, gaps=[Gap(2, 4, "skipped", count)])
        topic = FakeTopic(records("a=1 b=1 c=1 d=1 e=1 f=1"))
        assert [f for f in found(compare(made, topic)) if f[1] < 5] == expected


def test_a_gap_ends_before_its_end_offset() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    made.append(records("b=1 _ _ _ f=1", 1))
    made.log.claim_sink().advance(7, gaps=[Gap(2, 4, "skipped")])
    topic = FakeTopic(records("a=1 b=1 c=1 d=1 e=1 f=1 g=1"))
    assert [f for f in found(compare(made, topic)) if f[1] < 6] == [("record-lost", 4)]


def test_a_key_deleted_and_forgotten_by_kafka_is_explained() -> None:
    made, topic = both("a=1 b=2 c=3")
    comparison = compare(made, topic.without(1))
    assert found(comparison) == [("key-resurrected", 1)]
    assert "Kafka has no record of this key any more" in comparison.findings[0].what


def test_a_record_that_an_uncompacted_topic_never_had_is_found() -> None:
    made, topic = both("a=1 b=2 a=3 =x")
    topic.policy = "delete"
    assert found(compare(made, topic.without(0, 3))) == [("record-unexpected", 3), ("record-unexpected", 0)]
    assert found(compare(made, replace(topic.without(0), start=1))) == []


def test_only_the_range_that_both_can_have_is_compared() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2 c=3 d=4"))
    comparison = compare(made, FakeTopic(records("c=3 d=4 e=5", 2), start=2))
    assert [f.kind for f in comparison.findings] == [FindingKind.NOT_COMPARED]
    assert "offsets [0, 2) are no longer in Kafka" in comparison.findings[0].what
    assert comparison.compared == 2
    nothing = compare(made, FakeTopic([], start=9, end=9))
    assert (nothing.compared, {f.kind for f in nothing.findings}) == (0, {FindingKind.NOT_COMPARED})


def test_a_different_topic_and_a_truncated_one_are_found() -> None:
    made, topic = both("a=1 b=2 c=3")
    made.sink.follow({}, topic_id="one", cluster_id="")
    topic.id = "other"
    assert [f.kind for f in compare(made, topic).findings] == [FindingKind.TOPIC_DIFFERS]
    (fewer,) = compare(made, replace(topic, id="one", numbers=[])).findings
    assert "has 0 partitions and no partition 0" in fewer.what
    topic.id, topic.end = "one", 2
    topic.records = topic.records[:2]
    assert [(f.kind, f.offset) for f in compare(made, topic).findings] == [(FindingKind.TOPIC_DIFFERS, -1)]


def test_a_suspect_that_disappears_on_the_second_read_is_dropped() -> None:
    class Cleaned(FakeTopic):
        def read(self, partition: int, from_offset: int, to_offset: int) -> Iterator[Record]:
            yield from super().read(partition, from_offset, to_offset)
            self.records = [r for r in self.records if r.offset != 1]

    made = MadeLog()
    made.append(records("a=1 _ d=1"))
    made.compact()
    assert found(compare(made, Cleaned(records("a=1 c=1 d=1")))) == []


def long_log(count: int) -> tuple[MadeLog, list[Record]]:
    made = MadeLog(block_bytes=4096)
    batch = [record(i, f"k{i % 500}", f"v{i}") for i in range(count)]
    for start in range(0, count, 20_000):
        made.append(batch[start : start + 20_000])
    return made, batch


def test_a_range_and_a_sample_read_only_their_part() -> None:
    made, batch = long_log(60_000)
    topic = FakeTopic(list(batch))
    part = compare(made, topic, Extent(100, 300))
    assert part == Comparison((), 200)
    sample = compare(made, topic, Extent(sample=0.2))
    assert sample.findings == ()
    assert 5_000 < sample.compared < 40_000
    topic.records[150] = replace(topic.records[150], value=b"x")
    assert found(compare(made, topic, Extent(100, 300))) == [("record-differs", 150)]
    assert found(compare(made, topic, Extent(200, 300))) == []


def test_a_sample_of_a_compacted_log_concludes_nothing_from_unread_records() -> None:
    made, batch = long_log(60_000)
    made.compact()
    assert found(compare(made, FakeTopic(list(batch)), Extent(sample=0.2))) == []
    latest = {r.key: r for r in batch}
    cleaned = FakeTopic(sorted(latest.values(), key=lambda r: r.offset))
    made, _ = long_log(60_000)
    assert found(compare(made, cleaned, Extent(sample=0.2))) == []
    assert found(compare(made, cleaned)) == []


def test_damage_ends_the_comparison_with_a_note() -> None:
    log, topic = both("a=1 b=2")
    log.store.delete(log.place.key(log.manifest.segments[0].name))
    comparison = compare(log, topic)
    assert [f.kind for f in comparison.findings] == [FindingKind.NOT_COMPARED]
    assert "stopped at damage" in comparison.findings[0].what


def test_a_partition_without_a_log_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A listing of the bucket cannot miss it; the topic can."""
    made, topic = both("a=1 b=2")
    world = CliContext(lambda _url: (made.store, "topics"), made.clock, made.random)
    monkeypatch.setattr("keyfold.cli.verify._kafka_topic", lambda *_: nullcontext(topic))
    command = ["log", "verify", "s3://bucket/topics", "users", "--bootstrap-servers", "kafka:9092"]
    assert run(command, world) == 0
    topic.numbers = [0, 1]
    assert run([*command, "--partition", "0"], world) == 0
    capsys.readouterr()
    assert run(command, world) == 1
    out = capsys.readouterr().out
    assert "users-1 topic-differs: topics/users/partition=1/_manifest.avro: Kafka's topic has partition 1 with" in out
    assert "offsets [0, 2), but it has no log" in out
    topic.records.clear()  # a partition that nobody has written to
    topic.end = 2
    assert [one.place.partition for one in absent_partitions(opened(made), [0], topic)] == []
