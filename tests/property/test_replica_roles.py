"""Two buckets that are source and replica in turn: whatever happens, nothing is lost but what was given up.

The specification is a list: what was appended to whoever was the source, cut at a fail-over to what the replica had.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, SimulatedCrash
from keyfold.verify.partition import verify_partition
from tests.support.logs import MadeLog, latest_of, record
from tests.support.replica_command import Buckets, Command, read

PLACE = Place("topics", "users", 0)
KINDS = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE, FaultKind.LOST_ANSWER)


class Roles(RuleBasedStateMachine):
    """`source` and `replica` are names of buckets; a replica is registered at its source under its bucket's name."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = Buckets()
        self.keyfold = Command(self.buckets)
        self.source, self.replica = "east", "west"
        self.spec: list[Record] = []
        self.writers = 0
        self.has_followed = False  # since it was last registered
        self.has_cleaned = False  # since it last followed

    # The log

    def url(self, bucket: str) -> str:
        return f"s3://{bucket}/topics"

    def writer(self) -> MadeLog:
        self.writers += 1
        return MadeLog(self.buckets[self.source], PLACE, self.buckets.clock, Random(self.writers))

    @initialize()
    def begin(self) -> None:
        self.append([("a", "1"), ("b", "1")])
        self.register()
        self.follow()

    @rule(pairs=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", None])), min_size=1, max_size=3))
    def append(self, pairs: list[tuple[str, str | None]]) -> None:
        at = self.spec[-1].offset + 1 if self.spec else 0
        batch = [record(offset, key, value) for offset, (key, value) in enumerate(pairs, at)]
        self.writer().append(batch)
        self.spec += batch

    @rule()
    def compact(self) -> None:
        self.writer().compact()
        self.has_cleaned = True

    # The replica

    def register(self) -> None:
        self.keyfold("add", self.url(self.source), self.replica, "--to", self.url(self.replica))
        self.keyfold("enable-compaction", self.url(self.replica))
        self.has_followed = False

    @rule()
    def follow(self) -> None:
        self.keyfold("run", self.url(self.source), "--once")
        assert read(self.buckets, self.replica) == read(self.buckets, self.source)
        self.has_followed = True
        self.has_cleaned = False

    @rule()
    def switch_over(self) -> None:
        self.keyfold("promote", self.url(self.source), self.replica)
        self._swap()
        self.register()

    @rule(side=st.booleans(), number=st.integers(1, 12), kind=st.sampled_from(KINDS))
    def switch_over_that_dies(self, side: bool, number: int, kind: FaultKind) -> None:
        left = [number]

        def is_it(call: Call) -> bool:
            left[0] -= call.operation == "put"
            return call.operation == "put" and left[0] == 0

        self.buckets[self.source if side else self.replica].add(Fault(is_it, kind))
        try:
            ended = self.keyfold.run("promote", self.url(self.source), self.replica)
        except SimulatedCrash:
            ended = 1
        if ended:
            self.buckets.restart()
            is_registered = not self.keyfold.run("pause", self.url(self.source), self.replica)
            named = (self.url(self.source), self.replica) if is_registered else (self.url(self.replica),)
            self.keyfold("promote", *named)
        else:
            self.buckets.restart()
        self._swap()
        self.register()

    # One that has not followed since would be a sibling of its source's log: neither goes on with the other.
    @precondition(lambda self: self.has_followed)
    @rule(comes_back=st.booleans())
    def fail_over(self, comes_back: bool) -> None:
        """What the replica had is the log; the old source comes back as its replica, or with an empty bucket."""
        has = self.replica_end()
        self.buckets.away.add(self.source)
        self.keyfold("promote", self.url(self.replica), "--force")
        self.buckets.away.clear()
        self.spec = [r for r in self.spec if r.offset < has]
        self._swap()
        if comes_back and self._demoted():
            self.keyfold("remove", self.url(self.replica), self.source)
        else:
            self.buckets.wipe(self.replica)
        self.register()

    def _demoted(self) -> bool:
        """Refused only where the old source has cleaned after the replica's last version: its gc may delete."""
        ended = self.keyfold.run(
            "demote", self.url(self.replica), "--to-replica-of", self.url(self.source), "--discard"
        )
        assert ended == 0 or self.has_cleaned
        return ended == 0

    def replica_end(self) -> int:
        made = MadeLog(self.buckets[self.replica], PLACE, self.buckets.clock, Random(0))
        return made.manifest.next_offset

    def _swap(self) -> None:
        self.source, self.replica = self.replica, self.source

    # What holds

    @invariant()
    def the_log_is_what_was_appended(self) -> None:
        if not self.spec:
            return
        found = read(self.buckets, self.source)
        by_offset = {r.offset: r for r in self.spec}
        assert [by_offset[r.offset] for r in found] == found
        assert latest_of(found) == latest_of(self.spec)

    @invariant()
    @precondition(lambda self: bool(self.spec))
    def both_sides_are_sound(self) -> None:
        for bucket in (self.source, self.replica):
            store = self.buckets[bucket].inner
            if any(True for _ in store.list(PLACE.manifest_key)):
                report = verify_partition(store, PLACE, clock=ManualClock(), random=Random(0))
                assert report.is_sound, [str(finding) for finding in report.damage]

    def teardown(self) -> None:
        if self.spec:
            self.follow()


Roles.TestCase.settings = settings(
    max_examples=8, stateful_step_count=8, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_two_buckets_take_turns = pytest.mark.timeout(1200)(Roles.TestCase)
