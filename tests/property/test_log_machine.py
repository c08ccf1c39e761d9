"""Anything in any order: appends, passes, settings, clocks, crashes, readers, rivals; the specification is a dict.

The rules make things happen; `tests.support.log_machine.SpecStore` judges every version of the log that lands.
`tests.support.machines` says how deep the soak goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyfold.errors import CommitRefused, OffsetOutOfRange, SnapshotLost
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog, SinkSession
from keyfold.log.record import Record
from keyfold.log.segment import SegmentWriter
from keyfold.read.log import Log
from keyfold.runtime.clock import NEVER_MS, ManualClock
from keyfold.store.wrappers.faults import Call, FaultyStore, SimulatedCrash
from keyfold.verify.partition import verify_partition
from keyfold_compactor.decide.settings import TopicSettings
from tests.property import lives
from tests.support.cleaning import (
    EAGER,
    FAST,
    PLACE,
    columns,
    last_per_key,
    latest,
    load,
    new_run,
    object_names,
    read_all,
    record,
    retry_policy,
)
from tests.support.log_machine import Batch, JumpyClock, OneFault, SpecStore, states
from tests.support.machines import as_asked, finds_what_is_wrong, run_machine, shows
from tests.support.tiers import Sharded

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d", b"long key " * 30])
VALUES = st.one_of(st.none(), st.binary(max_size=30))
Rows = list[tuple[bytes | None, bytes | None, int]]
"""Key, value, and how far the next offset is."""
ROWS = st.lists(st.tuples(KEYS, VALUES, st.integers(1, 3)), min_size=1, max_size=10)
CALLS = st.integers(1, 30)
WAITS_MS = st.lists(st.sampled_from([90_000, 0]), max_size=3)
CHOICES = st.integers(0, 11)

PASS_SETTINGS = st.builds(
    TopicSettings,
    compact=st.sampled_from([True, True, True, False]),
    min_cleanable_dirty_ratio=st.sampled_from([0.0, 0.5, 1.0]),
    min_compaction_lag_ms=st.sampled_from([0, 0, 3_000, 30_000]),
    max_compaction_lag_ms=st.sampled_from([NEVER_MS, 20_000]),
    delete_retention_ms=st.sampled_from([0, 5_000, 60_000]),
    segment_bytes=st.sampled_from([1, 500, 100_000]),
    file_delete_delay_ms=st.sampled_from([0, 5_000, 60_000]),
    remove_keyless=st.sampled_from([False, False, True]),
    segment_min_garbage_ratio=st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.3, 0.9]),
    delete=st.sampled_from([False, False, True]),
    retention_ms=st.sampled_from([-1, 20_000, 150_000]),
    retention_bytes=st.sampled_from([-1, -1, 1_000]),
    merge_span_ms=st.sampled_from([0, 10_000, 86_400_000]),
)


@dataclass(slots=True)
class SinkProcess:
    """A sink: its own connection to the store, and its claim."""

    store: FaultyStore
    session: SinkSession
    random: Random


@dataclass(slots=True)
class Reader:
    """A read that has begun: what it has given so far, where the log began then, and how many versions it had had."""

    records: Iterator[Record]
    log_start: int
    version: int
    is_snapshot: bool
    seen: list[Record] = field(default_factory=list)


class LogMachine(RuleBasedStateMachine):
    """One log and everything that uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = JumpyClock()
        self.store = SpecStore(clock=ManualClock())
        self.topic = EAGER
        self.seeds = Random(0)
        self.sink: SinkProcess | None = None
        self.zombies: list[SinkProcess] = []
        self.late: list[FaultyStore] = []
        self.readers: list[Reader] = []

    # The sink

    @initialize(seed=st.integers(0, 2**32), topic=PASS_SETTINGS)
    def begin(self, seed: int, topic: TopicSettings) -> None:
        self.seeds = Random(seed)
        self.topic = topic
        self.store.in_force = [topic]
        self.new_sink()

    def new_sink(self, fault: OneFault | None = None) -> None:
        """Another process takes the partition; the old one does not know yet."""
        if self.sink is not None:
            self.zombies = [*self.zombies, self.sink][-2:]
        self.sink = None
        store = FaultyStore(self.store, chaos=fault)
        self.late.append(store)
        random = Random(self.seeds.getrandbits(32))
        log = PartitionLog(store, PLACE, clock=self.clock, random=random, backoff=FAST, retry_timeout_s=2.0)
        log.create()
        self.sink = SinkProcess(store, log.claim_sink(), random)

    def living_sink(self) -> SinkProcess:
        while self.sink is None or self.sink.store.crashed:
            self.new_sink()
        return self.sink

    def append(self, sink: SinkProcess, rows: Rows) -> None:
        base = sink.session.manifest.next_offset
        offset = base
        records: list[Record] = []
        for key, value, step in rows:
            timestamp = self.store.clock.now_ms() + self.seeds.choice([0, -200_000, -10_000, 200_000])
            records.append(record(offset, key, value, timestamp=self.seeds.choice([-1, timestamp, timestamp])))
            offset += step
        writer = SegmentWriter(
            sync_marker=sink.session.manifest.sync_marker,
            codec="null",
            level=1,
            block_bytes=self.seeds.choice([64, 512]),
        )
        writer.append(columns(records))
        finished = writer.finish()
        name = sink.session.new_name(base)
        waiting = retry_policy(self.clock, sink.random)
        self.store.attempts[str(name)] = Batch(tuple(records), offset)
        create_object(sink.store, PLACE.key(str(name)), b"".join(finished.data), waiting)
        create_object(sink.store, PLACE.key(str(name.index)), finished.index_data, waiting)
        sink.session.append(finished.entry(str(name), str(name.index), base_offset=base, next_offset=offset))

    @rule(batches=st.lists(ROWS, min_size=1, max_size=4))
    def append_records(self, batches: list[Rows]) -> None:
        for rows in batches:
            count = len(self.store.appended)
            self.append(self.living_sink(), rows)
            assert len(self.store.appended) == count + len(rows)

    @rule(rows=ROWS, at=st.integers(1, 4), choice=CHOICES)
    def append_with_a_fault(self, rows: Rows, at: int, choice: int) -> None:
        """One call of an append fails in some way; a sink that dies of it is followed by a new process."""
        sink = self.living_sink()
        sink.store._chaos = OneFault.drawn(len(sink.store.calls) + at, choice)
        try:
            self.append(sink, rows)
        except SimulatedCrash:
            pass
        finally:
            sink.store._chaos = None

    @rule(rows=ROWS, at=st.integers(1, 3))
    def clean_during_an_append(self, rows: Rows, at: int) -> None:
        """A whole run, garbage collection included, between two calls of an append."""
        sink = self.living_sink()
        number = len(sink.store.calls) + at

        def act(call: Call) -> None:
            if call.number == number:
                self.run(FaultyStore(self.store), collect_orphans=True)

        sink.store.on_call = act
        count = len(self.store.appended)
        self.append(sink, rows)
        sink.store.on_call = None
        assert len(self.store.appended) == count + len(rows)

    @rule(at=st.integers(1, 3), choice=CHOICES)
    def take_over_with_a_fault(self, at: int, choice: int) -> None:
        try:
            self.new_sink(OneFault.drawn(at, choice))
        except SimulatedCrash:
            return
        assert self.sink is not None
        self.sink.store._chaos = None

    @rule(length=st.integers(1, 5))
    def advance_over_a_hole(self, length: int) -> None:
        sink = self.living_sink()
        sink.session.advance(sink.session.manifest.next_offset + length)

    @rule()
    def take_over(self) -> None:
        self.new_sink()

    @precondition(lambda self: self.zombies)
    @rule(rows=ROWS)
    def a_zombie_wakes(self, rows: Rows) -> None:
        """A sink that was taken over still tries: it is refused, whatever it believes."""
        zombie = self.zombies.pop()
        if zombie.store.crashed or self.sink is None:
            return
        version = load(self.store).version
        with pytest.raises(CommitRefused):
            self.append(zombie, rows)
        assert load(self.store).version == version

    # The compactor

    @rule(force=st.booleans(), collect=st.booleans())
    def clean(self, force: bool, collect: bool) -> None:
        report = self.run(FaultyStore(self.store), force=force, collect_orphans=collect)
        assert report.failed == [], report.document()

    @rule(at=CALLS, choice=CHOICES)
    def clean_with_a_fault(self, at: int, choice: int) -> None:
        store = FaultyStore(self.store, chaos=OneFault.drawn(at, choice))
        self.late.append(store)
        self.store.in_force.append(self.topic)  # its commit may land after the settings have changed
        with contextlib.suppress(SimulatedCrash):
            self.run(store)

    @rule(at=CALLS, rows=ROWS)
    def append_during_a_pass(self, at: int, rows: Rows) -> None:
        def act(call: Call) -> None:
            if call.number == at:
                self.append(self.living_sink(), rows)

        report = self.run(FaultyStore(self.store, on_call=act))
        assert report.failed == [], report.document()

    @rule(at=CALLS, wait_ms=st.sampled_from([0, 120_000]))
    def clean_during_a_pass(self, at: int, wait_ms: int) -> None:
        """A second run beside the first; after a long pause of the first one the lease is over."""

        def act(call: Call) -> None:
            if call.number == at:
                self.store.clock.advance(wait_ms)
                self.run(FaultyStore(self.store))

        self.run(FaultyStore(self.store, on_call=act))

    def run(self, store: FaultyStore, **changes: object):  # type: ignore[no-untyped-def]  # rules of a machine call it with any arguments
        changes.setdefault("pass_bytes", self.seeds.choice([1, 2_000, 1 << 40]))
        return new_run(store, self.topic, clock=self.clock, seed=self.seeds.getrandbits(32), **changes).clean([PLACE])

    @rule(topic=PASS_SETTINGS)
    def change_settings(self, topic: TopicSettings) -> None:
        self.topic = topic
        self.store.in_force = [topic, *self.store.in_force[1:]]

    # Time, and the network

    @rule(by_ms=st.sampled_from([1, 900, 4_000, 40_000, 200_000]))
    def store_time_passes(self, by_ms: int) -> None:
        self.store.clock.advance(by_ms)

    @rule(by_ms=st.integers(-(10**9), 10**9))
    def the_local_clock_jumps(self, by_ms: int) -> None:
        self.clock.wall_ms += by_ms

    @rule()
    def late_requests_land(self) -> None:
        for store in self.late:
            store.land()
        self.late = [s for s in self.late if self.sink is not None and s is self.sink.store]
        self.store.in_force = self.store.in_force[:1]

    # Readers

    @precondition(lambda self: len(self.readers) < 3)
    @rule(is_snapshot=st.booleans())
    def begin_to_read(self, is_snapshot: bool) -> None:
        self.readers.append(self.new_reader(is_snapshot=is_snapshot))

    def new_reader(self, *, is_snapshot: bool) -> Reader:
        self.living_sink()
        log = Log(self.store, PLACE.topics_dir, PLACE.topic, clock=self.clock, random=Random(0))
        start, version = load(self.store).log_start_offset, len(self.store.ranges) - 1
        return Reader(log.latest() if is_snapshot else log.read(), start, version, is_snapshot)

    @rule(
        is_snapshot=st.booleans(), count=st.integers(0, 8), waits_ms=st.lists(st.sampled_from([0, 90_000]), max_size=3)
    )
    def read_with_a_sleep(self, is_snapshot: bool, count: int, waits_ms: list[int]) -> None:
        """A reader begins, sleeps through passes, and reads to the end."""
        self.readers.append(self.new_reader(is_snapshot=is_snapshot))
        self.read_on(len(self.readers) - 1, count)
        for wait_ms in waits_ms:
            self.store.clock.advance(wait_ms)
            self.clean(force=True, collect=False)
        if self.readers:
            self.read_on(len(self.readers) - 1, 1_000)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 3), count=st.integers(1, 30))
    def read_on(self, which: int, count: int) -> None:
        self.go_on(self.readers, which, count, self.store.ranges)

    def go_on(self, readers: list[Reader], which: int, count: int, ranges: list[tuple[int, int]]) -> None:
        """One of these readers gives some more records; `ranges` are those of all versions of its log."""
        reader = readers[which % len(readers)]
        try:
            for _ in range(count):
                reader.seen.append(next(reader.records))
        except StopIteration:
            readers.remove(reader)
            self.check_end(reader, ranges[reader.version :])
        except (OffsetOutOfRange, SnapshotLost):
            readers.remove(reader)  # refused, not misled
        self.check_order(reader)

    def check_order(self, reader: Reader) -> None:
        by_offset = {r.offset: r for r in self.store.appended}
        offsets = [r.offset for r in reader.seen]
        assert offsets == sorted(set(offsets))
        assert all(by_offset[r.offset] == r for r in reader.seen)

    def check_end(self, reader: Reader, ranges: list[tuple[int, int]]) -> None:
        """What was read to its end makes a state that its log has had, when the read began or later."""
        if not reader.is_snapshot:  # it has read from where it began, and would have been refused where that has gone
            ranges = [(reader.log_start, end) for _, end in ranges]
        had = states(self.store.appended, ranges)
        assert latest(reader.seen) in had
        if reader.is_snapshot:
            assert {r.key: r for r in reader.seen} in had

    @rule()
    def read_all_at_once(self) -> None:
        self.living_sink()
        log = Log(self.store, PLACE.topics_dir, PLACE.topic, clock=self.clock, random=Random(0))
        expected = latest(r for r in self.store.appended if r.offset >= load(self.store).log_start_offset)
        assert {r.key: r for r in log.latest()} == expected
        assert latest(log.read()) == expected

    @rule()
    def verify(self) -> None:
        self.living_sink()
        report = verify_partition(self.store, PLACE, clock=self.clock, random=Random(0))
        assert report.is_sound, [str(f) for f in report.damage]

    @invariant()
    def no_promise_is_broken(self) -> None:
        if self.store.broken is not None:
            raise self.store.broken

    def teardown(self) -> None:
        """Whatever has happened: a few undisturbed runs leave exactly the live records and no other object."""
        if self.store.before is None or self.store.broken is not None:
            return
        self.late_requests_land()
        self.new_sink()
        self.topic = EAGER
        self.store.in_force = [EAGER]
        for _ in range(4):
            self.store.clock.advance(300_000)
            self.clean(force=False, collect=True)
        self.no_promise_is_broken()
        self.verify()
        start = load(self.store).log_start_offset
        live = [r for r in last_per_key(self.store.appended) if not r.is_tombstone and r.offset >= start]
        found = read_all(self.store)
        assert [r for r in found if r.key is not None] == [r for r in live if r.key is not None]
        assert object_names(self.store) == load(self.store).object_names()


def test_a_log_behaves_like_a_dict_in_any_order_of_events(sharded: Sharded) -> None:
    run_machine(LogMachine, len(sharded(range(60))), 30)


SELDOM = "a reader goes on after any purge"  # it takes a tombstone, two passes and a reader asleep: some 20 s
MISTAKES = {
    "the lag is ignored": (
        "keyfold_compactor.decide.policy._first_uncleanable",
        lambda manifest, *_: manifest.next_offset,
    ),
    "tombstones go at once": (
        "keyfold_compactor.decide.horizon.due_epochs",
        lambda manifest, *_: frozenset(p.epoch for p in manifest.passes),
    ),
    "readers get no time": (
        "keyfold.log.gc.due_names",
        lambda manifest, *_: tuple(r.name for r in manifest.replaced),
    ),
    "retention takes what is young": ("keyfold_compactor.decide.retention._is_old", lambda *_: True),
    "orphans go by name alone": ("keyfold.log.gc._is_beyond_commit", lambda name, _: name is not None),
    SELDOM: ("keyfold.read.ordered.check_resumed", lambda *_: None),
    "epochs do not fence": ("keyfold.log.edits._require_epoch", lambda *_: None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_recorded_scenario_reproduces(mistake: str) -> None:
    shows(LogMachine, [MISTAKES[mistake]], lives.LOG[mistake])


@pytest.mark.parametrize("mistake", [pytest.param(m, marks=pytest.mark.soak if m == SELDOM else ()) for m in MISTAKES])
@pytest.mark.full
@pytest.mark.timeout(2400)
def test_the_state_machine_finds_planted_bugs(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    finds_what_is_wrong(LogMachine)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_log_behaves_like_a_dict_in_long_runs() -> None:
    run_machine(LogMachine, *as_asked(2_000, 80))
