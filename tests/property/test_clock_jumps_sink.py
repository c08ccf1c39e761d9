"""A clock that jumps by an hour, either way, at each store call of a whole sink task: its own, the store's, or both.

The task runs in threads of its own over a consumer in this process. It must write each record once, in order, fail and
skip nothing, and not wait for the clock.
"""

from __future__ import annotations

from functools import partial

import pytest

from keyfold.errors import LogNotFound
from keyfold.log.names import Place
from keyfold.log.record_decoder import read_records
from keyfold.runtime.clock import SystemClock
from keyfold.store.memory import MemoryStore
from keyfold_sink.status import UNKNOWN, RunState
from tests.support.cleaning import load
from tests.support.clocks import BOTH_WAYS, JumpingStore, SkewedClock
from tests.support.sink_rig import T0, Rig, rigs

PLACE = Place("topics", *T0)
STEPS = 3
STEP = 20


def ends_at(store: MemoryStore, offset: int) -> bool:
    try:
        return load(store, PLACE).next_offset == offset
    except LogNotFound:
        return False


def life(whose: str, at: int, by_ms: int) -> int:
    """Run a task to its stop, and another one that continues; return the number of store calls."""
    shown, own = SkewedClock(SystemClock()), SkewedClock(SystemClock())
    store = MemoryStore(clock=shown)
    jumping = {"store": [shown], "process": [own], "both": [shown, own]}[whose]
    connection = JumpingStore(store, jumping, at=at, by_ms=by_ms)
    for number in range(2):
        with rigs() as make:
            rig: Rig = make(connection, clock=own, flush__size=str(STEP))
            rig.kafka.produce(T0, range(number * STEPS * STEP))
            rig.kafka.tell("on_assign", T0)
            for step in range(number * STEPS, (number + 1) * STEPS):
                rig.kafka.produce(T0, range(step * STEP, (step + 1) * STEP))
                rig.until(partial(ends_at, store, (step + 1) * STEP))
            rig.wait_for_report()
            status = rig.status()
            assert status is not None
            assert (status.state, status.blocked_ms) == (RunState.RUNNING, UNKNOWN), status
    manifest = load(store, PLACE)
    found = [
        record.offset
        for entry in manifest.segments
        for record in read_records(store.get(PLACE.key(entry.name)).data, origin=entry.name)
    ]
    assert found == list(range(2 * STEPS * STEP))
    assert manifest.gaps == ()
    return len(connection.calls)


@pytest.mark.parametrize("by_ms", BOTH_WAYS)
@pytest.mark.parametrize("whose", ["store", "process", "both"])
def test_a_clock_jump_at_any_call_of_a_sink_loses_repeats_and_blocks_nothing(whose: str, by_ms: int) -> None:
    for at in range(1, life(whose, 1 << 60, 0) + 1, 3):
        life(whose, at, by_ms)
