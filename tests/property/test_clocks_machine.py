"""The log machine of `test_log_machine`, over a store whose own clock jumps by an hour at any moment, either way.

Every version, deletion and reader is judged as there, by the time that has really passed. A wait may be shorter than
was promised by as much as the store's clock has come forward, and by no more. Nothing else may differ: the log is the
same dict, and a reader is refused where it would be misled.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.property import lives
from tests.property.test_log_machine import CALLS, ROWS, LogMachine, Rows
from tests.support.clocks import BOTH_WAYS, HOUR_MS, JumpingStore
from tests.support.machines import as_asked, finds_what_is_wrong, run_machine, shows
from tests.support.tiers import Sharded

JUMPS = st.sampled_from(BOTH_WAYS)
OFF_AT_MOST_MS = 3 * HOUR_MS


class ClockMachine(LogMachine):
    """The store's clock is not to be trusted."""

    def may_jump(self, by_ms: int) -> bool:
        return abs(self.store.shown.offset_ms + by_ms) <= OFF_AT_MOST_MS

    @rule(by_ms=JUMPS)
    def the_stores_clock_jumps(self, by_ms: int) -> None:
        if self.may_jump(by_ms):
            self.store.shown.jump(by_ms)

    @rule(at=CALLS, by_ms=JUMPS)
    def the_stores_clock_jumps_during_a_pass(self, at: int, by_ms: int) -> None:
        if self.may_jump(by_ms):
            self.run(JumpingStore(self.store, [self.store.shown], at=at, by_ms=by_ms), collect_orphans=True)

    @precondition(lambda self: self.sink is not None and not self.sink.store.crashed)
    @rule(after=st.integers(1, 6), by_ms=JUMPS, rows=ROWS)
    def the_stores_clock_jumps_during_an_append(self, after: int, by_ms: int, rows: Rows) -> None:
        if not self.may_jump(by_ms):
            return
        sink = self.living_sink()
        at = len(sink.store.calls) + after
        sink.store.on_call = lambda call: self.store.shown.jump(by_ms) if call.number == at else None
        self.append(sink, rows)
        sink.store.on_call = None

    def teardown(self) -> None:
        """What was stamped by a clock that was ahead is over when the clock has come there."""
        self.store.clock.advance(self.store.shown.highest_ms - self.store.shown.lowest_ms)
        super().teardown()


def test_a_log_behaves_like_a_dict_despite_store_clock_jumps(sharded: Sharded) -> None:
    run_machine(ClockMachine, len(sharded(range(40))), 30)


MISTAKE = ("keyfold.log.gc._is_beyond_commit", lambda name, _: name is not None)
"""The allowance for jumps hides no mistake that has nothing to do with them."""


def test_a_recorded_scenario_reproduces() -> None:
    shows(ClockMachine, [MISTAKE], lives.CLOCKS)


@pytest.mark.full
def test_the_state_machine_still_finds_broken_guarantees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKE)
    finds_what_is_wrong(ClockMachine)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_log_behaves_like_a_dict_despite_store_clock_jumps_in_long_runs() -> None:
    run_machine(ClockMachine, *as_asked(1_000, 80))
