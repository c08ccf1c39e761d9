"""No follower of a replica keeps a deleted key, whatever comes between a run, a round and people."""

from __future__ import annotations

import pytest

from tests.model.holding import Holding, Rules, State
from tests.model.search import explore


@pytest.mark.parametrize("passes", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_no_replica_misses_a_tombstone_unreported(passes: int) -> None:
    reached: set[str] = set()

    def see(state: State) -> None:
        if state.source.purged_to >= 0 and state.hold is not None and state.hold[1] > state.source.purged_to:
            reached.add("a tombstone was received and went")
        if state.replica is not None and state.replica.end and state.excused_to >= state.replica.end:
            reached.add("a resync is wanted")
        if state.plan is not None and state.place > 1 and state.plan.purged_to >= 0:
            reached.add("a tombstone goes after the replica was moved")

    result = explore(Holding(Rules(), passes=passes), see=see)
    assert result.holds, str(result)
    assert result.is_complete, str(result)
    assert len(reached) == 3, reached


@pytest.mark.sharded
@pytest.mark.parametrize(
    "mistake", ["holds", "cursor_after_commit", "cursor_of_the_commit", "resync_is_noticed", "places_have_cursors"]
)
def test_the_model_finds(mistake: str) -> None:
    result = explore(Holding(Rules(**{mistake: False})))
    assert not result.holds, str(result)
