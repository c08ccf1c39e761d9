"""Each offset is in the log, in a gap with its cause, or not committed yet, whatever fails and wherever a sink dies.

Exactly one of them holds, and the dead letter of a skipped record is delivered before its offset is committed. A topic
is a list. A value says whether the record is good, is rejected, or needs a schema that is not known yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keyfold.log.record_decoder import read_records
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, SimulatedCrash
from keyfold.verify.partition import verify_partition
from keyfold_sink.validate.record_validation import RecordValidation
from keyfold_sink.write.partition import PartitionWriter
from keyfold_sink.write.skips import Skips
from tests.support.sink_validation import (
    PLACE,
    FakeChecks,
    FakeTopic,
    MakeValidationRig,
    ValidationRig,
    message,
    validation_rigs,
)

VALUES = (b"good", b"!a", b"!b", b"?maybe")
CRASHES = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE)

Step = tuple[Any, ...]
STEPS = st.one_of(
    st.tuples(st.just("produce"), st.lists(st.tuples(st.sampled_from(VALUES), st.integers(1, 3)), max_size=12)),
    st.tuples(st.just("read"), st.integers(1, 8)),
    st.tuples(st.just("read"), st.integers(8, 30)),
    st.just(("end",)),
    st.tuples(st.just("schema"), st.booleans()),
    st.tuples(st.just("kafka"), st.booleans()),
    st.tuples(st.just("tick"), st.integers(1, 2000)),
    st.just(("roll",)),
    st.tuples(st.just("crash"), st.sampled_from(CRASHES), st.integers(1, 8)),
    st.just(("set back",)),
)


class World:
    """A topic, a sink that reads it, and the invariants of its log."""

    def __init__(self, make: MakeValidationRig) -> None:
        self.inner = MemoryStore()
        self.store = FaultyStore(self.inner)
        self.topic = FakeTopic()
        self.checks = FakeChecks()
        self.rig: ValidationRig = make(
            store=self.store, topic=self.topic, checks=self.checks, flush_size=5, limit_bytes=3000
        )
        self.records: list[Message] = []
        self.end = 0
        self.read = 0  # end of the records that were handed over

    def step(self, name: str, *arguments: Any) -> None:
        getattr(self, "do_" + name.replace(" ", "_"))(*arguments)
        self.rig.validation.resume_waiting()
        assert self.rig.failures == []
        self.rig.owner.queue.wait_idle(0.01 if self.topic.is_away else 20)

    def do_produce(self, rows: list[tuple[bytes, int]]) -> None:
        for value, distance in rows:
            self.end += distance
            self.records.append(message(self.end - 1, value))

    def do_read(self, count: int) -> None:
        fresh = [m for m in self.records if (m.offset() or 0) >= self.read][:count]
        if fresh and not self.rig.owner.holds:
            self.read = (fresh[-1].offset() or 0) + 1
            self.rig.take(*fresh)

    def do_end(self) -> None:
        if self.read == self.end and not self.rig.owner.holds:
            self.rig.validation.read_to(self.rig.owner, self.end)

    def do_schema(self, known: bool) -> None:
        self.checks.asking, self.checks.known = False, known

    def do_kafka(self, away: bool) -> None:
        self.topic.is_away = away

    def do_tick(self, ms: int) -> None:
        self.rig.clock.advance(ms)
        self.rig.writer.roll_if_due()

    def do_roll(self) -> None:
        self.rig.commit_later()

    def do_crash(self, kind: FaultKind, calls: int) -> None:
        """Let the process die at one of its next calls of the store, or between two calls."""
        at = len(self.store.calls) + calls
        self.store.add(Fault(at, kind))
        self.rig.commit_later()
        if not self.topic.is_away:
            self.rig.owner.queue.wait_idle(60)
        self._restart()

    def do_set_back(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self.rig.owner.queue.close()
        assert self.rig.owner.queue.wait_idle(60)
        self.store.land()
        self.store = FaultyStore(self.inner)
        self.rig.store = self.store
        self.rig.claim()
        self.read = max(0, self.rig.session.manifest.next_offset - 1)  # the log's last record is read again

    def finish(self) -> None:
        """End all faults, and read the topic to its end."""
        self.do_kafka(away=False)
        self.do_schema(known=True)
        for _ in range(len(self.records) + 5):
            self.rig.clock.advance(1000)
            self.rig.validation.resume_waiting()
            self.do_read(100)
        self.do_end()
        assert self.rig.validation.waiting_bytes == 0
        self.rig.commit()
        assert [crash for crash in self.rig.crashes if not isinstance(crash, SimulatedCrash)] == []

    def check(self) -> None:
        manifest = self.rig._log().load().manifest
        delivered = set(self.topic.offsets)
        objects = (self.inner.get(PLACE.key(entry.name)).data for entry in manifest.segments)
        kept = {r.offset: r.value for data in objects for r in read_records(data)}
        for record in self.records:
            offset, value = record.offset() or 0, record.value() or b""
            reasons = {g.reason for g in manifest.gaps if g.from_offset <= offset < g.to_offset}
            if offset >= manifest.next_offset:
                assert offset not in kept
                assert not reasons
            elif value.startswith(b"!"):
                assert offset not in kept
                assert reasons == {f"skipped: {value[1:].decode()}"}
                assert offset in delivered
            else:
                assert kept[offset] == value
                assert not reasons


@pytest.fixture(scope="module")
def make() -> Iterator[MakeValidationRig]:
    with validation_rigs() as build:
        yield build


def live(make: MakeValidationRig, steps: list[Step]) -> None:
    """Take the steps, and then let every record arrive."""
    world = World(make)
    try:
        world.do_produce([(VALUES[n % 4], 1 + n % 2) for n in range(10)])
        for step in steps:
            world.step(*step)
            world.check()
        world.finish()
        world.check()
        assert world.rig.session.manifest.next_offset == world.end
        assert world.rig.in_flight.size_bytes == 0
        report = verify_partition(world.inner, PLACE, clock=world.rig.clock, random=world.rig.random)
        assert [finding for finding in report.findings if finding.kind.is_damage] == []
    finally:
        world.rig.owner.queue.close()


@pytest.mark.sharded
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=3, max_size=40))
def test_every_offset_is_a_record_a_gap_or_uncommitted(make: MakeValidationRig, steps: list[Step]) -> None:
    live(make, steps)


_take = Skips.take_until

BUGS: dict[str, tuple[type, str, Any]] = {
    "commits wait for no letter": (PartitionWriter, "_await", lambda _self, _deliveries: None),
    "the end passes what waits": (
        RecordValidation,
        "read_to",
        lambda _self, owner, offset: owner.writer.read_to(offset),
    ),
    "gaps are forgotten": (PartitionWriter, "skip", lambda self, _gaps, delivery: self._skips.add((), delivery)),
    "gaps come a commit early": (Skips, "take_until", lambda self, _position: _take(self, 1 << 60)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(make: MakeValidationRig, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    kind, name, broken = BUGS[bug]
    monkeypatch.setattr(kind, name, broken)

    @settings(max_examples=500, phases=[Phase.generate], derandomize=True, database=None, print_blob=False)
    @given(steps=st.lists(STEPS, min_size=3, max_size=40))
    def search(steps: list[Step]) -> None:
        live(make, steps)

    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        search()
