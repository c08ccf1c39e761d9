"""One partition's writer over the in-memory store: appended records are in the log once, whatever fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import pytest

from keyfold.errors import AlreadyExists, Fenced, SourceError, UploadLost
from keyfold.log.manifest import Gap, Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Chaos, Fault, FaultKind, FaultyStore, kinds_of
from keyfold_sink.config.rolling import RollPolicy, RollReason
from keyfold_sink.kafka.source import SourceFacts, TopicGone
from keyfold_sink.write import partition
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.partition import Committed, PartitionWriter, WriterResources
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue
from tests.support.logs import columns
from tests.support.proof import read_segments

PLACE = Place("topics", "t", 0)
SETTINGS = {"cleanup.policy": "compact"}


class FakeSource:
    """A cluster with one topic."""

    def __init__(self, topic_id: str = "T") -> None:
        self.id: str | None = topic_id

    def facts(self, topic: str, partition: int) -> SourceFacts:
        return SourceFacts(self.topic_id(topic), "C", 0, 0, SETTINGS)

    def topic_id(self, topic: str) -> str:
        if self.id is None:
            raise TopicGone(f"{topic} is gone")
        return self.id

    def settings(self, topic: str) -> Mapping[str, str]:
        return SETTINGS


@dataclass
class Bench:
    """A writer with all its resources."""

    store: ObjectStore
    pool: ThreadPoolExecutor
    policy: RollPolicy = field(default_factory=lambda: RollPolicy(10_000_000, 60_000))
    source: FakeSource = field(default_factory=FakeSource)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.random = Random(1)
        self.in_flight = InFlight()
        self.reports: list[Committed] = []
        self.crashes: list[BaseException] = []
        self.queue = SerialQueue(self.pool, self.crashes.append)
        log = PartitionLog(
            self.store, PLACE, clock=self.clock, random=self.random, backoff=Backoff(1, 2), retry_timeout_s=1
        )
        log.create(topic_id="T", cluster_id="C")
        self.session = log.claim_sink()
        resources = WriterResources(self.store, self.source, self.clock, self.in_flight, self.reports.append)
        retry = QueueRetry(self.queue, self.random, Backoff(1, 2))
        self.writer = PartitionWriter(self.session, self.queue, retry, self.policy, resources)

    def append(self, begin: int, end: int, *, step: int = 1, value: bytes = b"value") -> list[Record]:
        batch = [Record(n, 5, "CreateTime", b"k%d" % n, value, (), 3) for n in range(begin, end, step)]
        self.writer.append(columns(batch), 100.0)
        return batch

    def settle(self) -> Manifest:
        assert self.queue.wait_idle(60)
        return self.session.manifest


MakeBench = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[MakeBench]:
    with ThreadPoolExecutor(2) as pool:
        yield lambda store=None, **options: Bench(store or MemoryStore(), pool, **options)


def test_records_are_rolled_uploaded_and_committed(make: MakeBench) -> None:
    bench = make()
    batch = bench.append(0, 100)
    assert bench.writer.position == 100
    assert bench.writer.held_bytes > 0
    bench.writer.roll(RollReason.REQUEST)
    manifest = bench.settle()
    assert (manifest.next_offset, manifest.last_leader_epoch, manifest.settings) == (100, 3, SETTINGS)
    assert read_segments(bench.store, "t", 0) == batch
    assert [(r.next_offset, r.record_count, r.reason) for r in bench.reports] == [(100, 100, RollReason.REQUEST)]
    assert bench.in_flight.size_bytes == bench.writer.held_bytes == 0


def test_records_below_the_position_are_dropped(make: MakeBench) -> None:
    bench = make()
    first = bench.append(0, 10)
    bench.append(5, 20)
    bench.append(3, 8)
    bench.writer.roll(RollReason.REQUEST)
    bench.settle()
    found = read_segments(bench.store, "t", 0)
    assert found[:10] == first
    assert [r.offset for r in found] == list(range(20))


def test_flush_size_cuts_exactly_also_inside_a_batch(make: MakeBench) -> None:
    bench = make(policy=RollPolicy(10_000_000, 60_000, flush_size=7))
    bench.append(0, 30)
    bench.writer.roll(RollReason.REQUEST)
    assert [s.record_count for s in bench.settle().segments] == [7, 7, 7, 7, 2]


def test_what_is_not_durable_is_counted_until_its_commit(make: MakeBench) -> None:
    bench = make()
    assert (bench.writer.buffered_records, bench.writer.roll_due_s) == (0, None)
    bench.append(0, 3)
    bench.writer.roll(RollReason.REQUEST)
    bench.append(3, 7)
    assert bench.writer.buffered_records == 7
    assert bench.writer.roll_due_s == bench.clock.monotonic_s() + 60
    bench.settle()
    bench.writer.note_durable(3)
    assert bench.writer.buffered_records == 4


def test_an_idle_segment_is_rolled_by_time(make: MakeBench) -> None:
    bench = make()
    bench.append(0, 3)
    bench.clock.advance(59_999)
    bench.writer.roll_if_due()
    assert bench.settle().segments == ()
    bench.clock.advance(1)
    bench.writer.roll_if_due()
    assert bench.settle().next_offset == 3


def test_holes_belong_to_the_segment_before_or_after_them(make: MakeBench) -> None:
    bench = make()
    bench.append(5, 20, step=5)
    bench.writer.read_to(30)
    bench.writer.roll(RollReason.REQUEST)
    bench.append(40, 41)
    bench.writer.roll(RollReason.REQUEST)
    ranges = [(s.base_offset, s.last_offset, s.next_offset) for s in bench.settle().segments]
    assert ranges == [(0, 15, 30), (30, 40, 41)]


def test_a_hole_without_records_moves_the_log_end(make: MakeBench) -> None:
    bench = make()
    bench.writer.roll(RollReason.REQUEST)
    assert bench.settle().version == 2  # nothing to say, nothing committed
    bench.writer.read_to(9)
    bench.writer.roll(RollReason.REQUEST)
    assert bench.writer.is_rolled
    assert bench.settle().next_offset == 9
    bench.append(9, 10)
    bench.writer.read_to(5)  # an old end of the partition
    bench.writer.roll(RollReason.REQUEST)
    assert bench.settle().next_offset == 10


def test_gaps_are_recorded_by_the_next_commit(make: MakeBench) -> None:
    bench = make()
    bench.writer.record_gap(Gap(0, 5, "why"))
    bench.append(5, 6)
    bench.writer.roll(RollReason.REQUEST)
    assert bench.settle().gaps == (Gap(0, 5, "why"),)


def test_a_large_segment_is_uploaded_in_parts(make: MakeBench) -> None:
    store = FaultyStore(MemoryStore())
    bench = make(store, policy=RollPolicy(1 << 40, 60_000))
    random = Random(3)
    expected = []
    for number in range(30):
        expected += bench.append(number, number + 1, value=random.randbytes(1024 * 1024))
        assert bench.writer.held_bytes < 12 * 1024 * 1024
    bench.writer.roll(RollReason.REQUEST)
    bench.settle()
    assert read_segments(bench.store, "t", 0) == expected
    assert bench.in_flight.size_bytes == 0
    assert [c.operation for c in store.calls].count("upload.write") >= 3


def test_a_repeated_part_has_the_same_bytes(make: MakeBench) -> None:
    kinds = (FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER)
    faults = [Fault(lambda call: call.operation == "upload.write", kind) for kind in kinds]
    bench = make(FaultyStore(MemoryStore(), faults), policy=RollPolicy(1 << 40, 60_000))
    random = Random(3)
    expected = [r for n in range(20) for r in bench.append(n, n + 1, value=random.randbytes(1024 * 1024))]
    bench.writer.roll(RollReason.REQUEST)
    bench.settle()
    assert read_segments(bench.store, "t", 0) == expected


def completing(kind: FaultKind) -> Fault:
    return Fault(lambda call: call.operation == "upload.complete", kind)


def append_a_large_segment(bench: Bench) -> list[Record]:
    random = Random(3)
    expected = [r for n in range(20) for r in bench.append(n, n + 1, value=random.randbytes(1024 * 1024))]
    bench.writer.roll(RollReason.REQUEST)
    return expected


def test_a_completed_upload_whose_answer_was_lost_is_committed(make: MakeBench) -> None:
    """S3 answers 409 to a repeated completion while the first, whose answer was lost, is still in progress."""
    store = FaultyStore(MemoryStore(), [completing(FaultKind.LOST_ANSWER), completing(FaultKind.CONFLICT)])
    bench = make(store, policy=RollPolicy(1 << 40, 60_000))
    expected = append_a_large_segment(bench)
    assert bench.settle().next_offset == 20
    assert bench.crashes == []
    assert read_segments(bench.store, "t", 0) == expected


def test_parts_of_an_upload_that_is_lost_are_deleted(make: MakeBench) -> None:
    inner = MemoryStore()
    bench = make(FaultyStore(inner, [completing(FaultKind.CONFLICT)]), policy=RollPolicy(1 << 40, 60_000))
    append_a_large_segment(bench)
    assert bench.settle().next_offset == 0
    assert [type(error) for error in bench.crashes] == [UploadLost]
    assert list(inner.list_uploads("")) == []
    assert bench.in_flight.size_bytes == 0


SMALL_PART_BYTES, SMALL_BLOCK_BYTES = 100_000, 64 * 1024
KINDS = (FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.CONFLICT)
CALLS = {"start_upload": 1, "upload.write": 3, "upload.complete": 1, "put": 1}
UPLOAD_FAULTS = [
    pytest.param(operation, kind, nth, id=f"{operation}-{nth}-{kind.value}")
    for operation, calls in CALLS.items()
    for kind in KINDS
    if kind in kinds_of(operation)
    for nth in range(calls)
]


def append_in_small_parts(bench: Bench) -> list[Record]:
    random = Random(3)
    expected = [r for n in range(8) for r in bench.append(n, n + 1, value=random.randbytes(SMALL_BLOCK_BYTES))]
    bench.writer.roll(RollReason.REQUEST)
    bench.settle()
    return expected


@pytest.mark.parametrize(("operation", "kind", "nth"), UPLOAD_FAULTS)
def test_a_segment_in_parts_is_committed_once_after_any_fault_of_its_upload(
    make: MakeBench, operation: str, kind: FaultKind, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "PART_BYTES", SMALL_PART_BYTES)
    inner = MemoryStore(min_part_bytes=SMALL_PART_BYTES)
    bench = make(inner, policy=RollPolicy(1 << 40, 60_000))
    matching = count()
    fault = Fault(lambda call: call.operation == operation and next(matching) == nth, kind)
    faulty = FaultyStore(inner, [fault])
    bench.writer._resources = replace(bench.writer._resources, store=faulty, block_bytes=lambda: SMALL_BLOCK_BYTES)
    expected = append_in_small_parts(bench)
    assert next(matching) > nth, "the fault has happened"
    faulty.land()
    assert bench.in_flight.size_bytes == 0
    assert [type(error) for error in bench.crashes] in ([], [UploadLost])
    assert read_segments(inner, "t", 0) == ([] if bench.crashes else expected)
    assert bool(bench.crashes) is (operation == "upload.complete" and kind is FaultKind.CONFLICT)
    assert len(list(inner.list_uploads(""))) <= (operation == "start_upload" and kind is not FaultKind.UNAVAILABLE)


def test_another_object_under_a_segments_name_is_not_committed(make: MakeBench) -> None:
    inner = MemoryStore()

    def take_the_name(call: Call) -> None:
        if call.operation == "put" and call.key.endswith(".avro") and call.key != PLACE.manifest_key:
            with contextlib.suppress(AlreadyExists):
                inner.put(call.key, b"of somebody else", Create())

    bench = make(FaultyStore(inner, on_call=take_the_name))
    bench.append(0, 5)
    bench.writer.roll(RollReason.REQUEST)
    assert bench.settle().next_offset == 0
    assert ["never reuses object names" in str(error) for error in bench.crashes] == [True]


def test_a_hole_whose_commit_had_no_answer_is_committed_eventually(make: MakeBench) -> None:
    """The outage lasts longer than a commit is retried, and nothing has landed."""
    is_away: list[bool] = []
    fault = Fault(lambda call: bool(is_away) and call.operation == "put", FaultKind.UNAVAILABLE, times=1500)
    bench = make(FaultyStore(MemoryStore(), [fault]))
    is_away.append(True)
    bench.writer.record_gap(Gap(0, 5, "why"))
    bench.writer.read_to(5)
    bench.writer.roll(RollReason.REQUEST)
    manifest = bench.settle()
    assert bench.crashes == []
    assert (manifest.next_offset, manifest.gaps) == (5, (Gap(0, 5, "why"),))


def test_another_topic_id_stops_the_commit_and_a_deleted_topic_does_not(make: MakeBench) -> None:
    bench = make()
    bench.append(0, 5)
    bench.source.id = "X"
    bench.writer.roll(RollReason.REQUEST)
    assert bench.settle().next_offset == 0
    assert [type(error) for error in bench.crashes] == [SourceError]

    gone = make()
    gone.append(0, 5)
    gone.source.id = None
    gone.writer.roll(RollReason.REQUEST)
    assert gone.settle().next_offset == 5  # these records were read from the topic that the log continues
    assert [type(error) for error in gone.crashes] == [TopicGone]


def test_nothing_is_committed_after_another_claim(make: MakeBench) -> None:
    bench = make()
    bench.append(0, 5)
    other = PartitionLog(bench.store, PLACE, clock=bench.clock, random=bench.random).claim_sink()
    bench.writer.roll(RollReason.REQUEST)
    bench.append(5, 9)
    bench.writer.roll(RollReason.REQUEST)
    bench.settle()
    assert [type(error) for error in bench.crashes] == [Fenced]
    assert other.refresh().next_offset == 0
    assert bench.in_flight.size_bytes == 0


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(40))
def test_a_randomly_failing_store_gets_every_record_once(make: MakeBench, seed: int) -> None:
    inner = MemoryStore()
    bench = make(inner, policy=RollPolicy(10_000_000, 60_000, flush_size=9))
    faulty = FaultyStore(inner, chaos=Chaos(Random(seed), rate=0.3))
    bench.session._log.store = faulty
    bench.session._log.committer = type(bench.session._log.committer)(faulty, PLACE, bench.session._log.retry)
    bench.writer._resources = WriterResources(faulty, bench.source, bench.clock, bench.in_flight, bench.reports.append)
    random = Random(seed)
    expected: list[Record] = []
    position = 0
    for _ in range(12):
        position += random.randrange(3)
        count = random.randrange(1, 15)
        expected += bench.append(position, position + count)
        position += count
        if random.random() < 0.3:
            position += random.randrange(4)
            bench.writer.read_to(position)
            bench.writer.roll(RollReason.REQUEST)
    bench.writer.roll(RollReason.REQUEST)
    bench.settle()
    assert bench.crashes == []
    faulty.land()
    assert read_segments(inner, "t", 0) == expected
    assert bench.session.refresh().next_offset == position
    assert bench.reports[-1].next_offset == position
