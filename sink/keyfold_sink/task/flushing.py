"""Finishing what was read and waiting for its commit: the one thing for which the main loop waits.

It has a time-out, and reports while it waits: a report is a sign of life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keyfold.clock import Clock
from keyfold.errors import Fenced, OffsetMoved
from keyfold_sink.group.assignment import Assigned
from keyfold_sink.group.verdict import PositionLost
from keyfold_sink.task.report import INTERVAL_S
from keyfold_sink.writing.lane import Lane
from keyfold_sink.writing.rolling import RollReason


def flush(
    owners: Sequence[Assigned], reason: RollReason, within_s: float, clock: Clock, meanwhile: Callable[[], None]
) -> bool:
    """Finish and commit what was read of these partitions; False when some of it could not be."""
    deadline_s = clock.monotonic_s() + within_s
    for owner in owners:
        if owner.writer is not None:
            owner.writer.roll(reason)
    done = True
    for owner in owners:
        if owner.writer is not None:
            done = _wait_idle(owner.lane, deadline_s, clock, meanwhile) and _is_settled(owner) and done
    return done


def _wait_idle(lane: Lane, deadline_s: float, clock: Clock, meanwhile: Callable[[], None]) -> bool:
    while True:
        left_s = max(0.0, deadline_s - clock.monotonic_s())
        if lane.wait_idle(min(left_s, INTERVAL_S)):
            return True
        if left_s <= INTERVAL_S:
            return False
        meanwhile()


def _is_settled(owner: Assigned) -> bool:
    """Whether nothing is left to be committed by this task: it is done, another sink goes on, or it has failed."""
    crash = owner.lane.crash
    return crash is None or owner.failure is not None or isinstance(crash, Fenced | OffsetMoved | PositionLost)
