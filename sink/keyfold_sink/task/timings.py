"""How long a task waits for what, and how often it does what it does now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keyfold_sink.writing.sender import LOOK_AGAIN_S

REPORT_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TaskTimings:
    """The intervals and time-outs of a task's main loop. None of them is a configuration key."""

    poll_s: float = 0.1
    """A poll of the consumer waits this long for records."""
    roll_interval_s: float = 0.05
    """Segments are checked this often for limits of time; limits of size and count are checked with each batch."""
    follow_interval_s: float = 60.0
    """A topic's id and settings are read again after this time."""
    topics_interval_s: float = 15.0
    """The cluster's topics are matched against `topics.regex` this often."""
    ends_interval_s: float = 10.0
    """The cluster is asked this often for the end offsets of partitions that are not fetched."""
    look_again_s: float = LOOK_AGAIN_S
    """The cluster is asked again after this time for a topic that it does not know."""
    commit_patience_s: float = 10.0
    """A commit whose outcome is unknown for this long is tried again; in between the task sees that it is to stop."""
    leave_wait_s: float = 5.0
    """Kafka has this long to let the task leave its group."""
    litter_interval_s: float = 1.0
    """Unreachable objects are collected this often."""
    last_calls_s: float = 5.0
    """Requests to the store that are in flight at the end have this long to complete."""
    report_interval_s: float = REPORT_INTERVAL_S
    """A flush looks this often whether a report is due."""
    transaction_ms: int = 10_000
    """A transaction that is open for longer is reported as what blocks its partition."""
