"""Intervals and time-outs of a task's main loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keyfold_sink.write.serial_queue import LOOK_AGAIN_S

REPORT_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TaskTimings:
    """Intervals and time-outs. None of them is a configuration key."""

    poll_s: float = 0.1
    """How long a poll of the consumer waits for records."""
    roll_interval_s: float = 0.05
    """Interval of the checks of segments' time limits; limits of size and count are checked with each batch."""
    follow_interval_s: float = 60.0
    """Interval at which topics' ids and settings are read again."""
    topics_interval_s: float = 15.0
    """Interval at which the cluster's topics are matched against `topics.regex`."""
    ends_interval_s: float = 10.0
    """Interval at which the end offsets of partitions that are not fetched are requested."""
    look_again_s: float = LOOK_AGAIN_S
    """Delay before the cluster is asked again for a topic that it does not know."""
    commit_timeout_s: float = 10.0
    """A commit with an unknown result is retried after this time; in between, the task notices a stop command."""
    leave_wait_s: float = 5.0
    """Time limit for leaving the group."""
    free_cycles_interval_s: float = 1.0
    """Interval at which reference cycles are freed."""
    return_memory_interval_s: float = 10.0
    """Interval at which free memory is returned to the system."""
    last_calls_s: float = 5.0
    """Time limit at the end for requests to the store that are in flight."""
    report_interval_s: float = REPORT_INTERVAL_S
    """Interval at which a flush checks whether a report is due."""
    transaction_ms: int = 10_000
    """A transaction that is open for longer is reported as blocking its partition."""
