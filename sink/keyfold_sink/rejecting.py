"""Puts together what a task does with records that fail their check, as its options say."""

from __future__ import annotations

from keyfold.clock import Clock
from keyfold_sink.convert.api import Checks
from keyfold_sink.error_counts import ErrorCounts
from keyfold_sink.group import Group
from keyfold_sink.intake import ErrorPolicy, Intake
from keyfold_sink.metrics import TaskMeter


def open_intake(
    group: Group,
    clock: Clock,
    *,
    policy: ErrorPolicy | None = None,
    checks: Checks | None = None,
    meter: TaskMeter | None = None,
) -> Intake:
    """The intake of one task. Without checks nothing is judged."""
    return Intake(
        policy or ErrorPolicy(),
        checks,
        group.fetching,
        ErrorCounts(meter or TaskMeter(clock)),
        clock,
        is_read=lambda owner: owner.is_fetched and group.assigned.get(owner.key) is owner,
        fail=group.fail,
    )
