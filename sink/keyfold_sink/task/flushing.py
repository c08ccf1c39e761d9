"""Finish open segments and wait for their commits: the only operation for which the main loop blocks.

A flush has a time-out, and the task sends reports while it waits, because a report is a heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.errors import Fenced, OffsetMoved
from keyfold.runtime.clock import Clock
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.group.assignment import AssignedPartition
from keyfold_sink.group.error_scope import PositionLost
from keyfold_sink.write.serial_queue import SerialQueue

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Unflushed:
    """The partitions that a flush did not commit: those out of time, and those that failed, with the reason."""

    late: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def words(self, within: str) -> str:
        """Name the partitions, those out of time with their limit `within`; return "" if there are none."""
        late = f"{_some(self.late, ', ')} {within}" if self.late else ""
        return "; ".join(filter(None, (late, _some(self.refused, "; "))))


def flush(
    owners: Sequence[AssignedPartition],
    reason: RollReason,
    within_s: float,
    clock: Clock,
    meanwhile: Callable[[], None],
    interval_s: float,
) -> Unflushed:
    """Commit what was read of these partitions, and return the partitions that could not commit everything.

    `meanwhile` is called every `interval_s`.
    """
    deadline_s = clock.monotonic_s() + within_s
    for owner in owners:
        if owner.writer is not None:
            owner.writer.roll(reason)
    late: list[str] = []
    refused: list[str] = []
    for owner in owners:
        if owner.writer is None:
            continue
        name = "{}-{}".format(*owner.key)
        if not _wait_idle(owner.queue, deadline_s, clock, meanwhile, interval_s):
            late.append(name)
        elif not _is_settled(owner):
            refused.append(f"{name}: {owner.queue.crash}")
    return Unflushed(tuple(late), tuple(refused))


def _wait_idle(
    queue: SerialQueue, deadline_s: float, clock: Clock, meanwhile: Callable[[], None], interval_s: float
) -> bool:
    while True:
        left_s = max(0.0, deadline_s - clock.monotonic_s())
        if queue.wait_idle(min(left_s, interval_s)):
            return True
        if left_s <= interval_s:
            return False
        meanwhile()


def _is_settled(owner: AssignedPartition) -> bool:
    """Whether this task has nothing left to commit: all is committed, another writer has claimed it, or it failed."""
    crash = owner.queue.crash
    return crash is None or owner.failure is not None or isinstance(crash, Fenced | OffsetMoved | PositionLost)


def _some(names: Sequence[str], between: str) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return between.join([*names[:_NAMED], *more])
