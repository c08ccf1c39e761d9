"""What a sink says about itself: values, and how they travel as JSON.

    task ──TaskStatus, every second──► its worker ──WorkerStatus──► an object in the bucket ──► every other worker

A *worker* is a process with tasks: one supervisor, in Kubernetes one pod (Connect's word). A task reports from its main
loop, so a report is also a sign of life. All times are milliseconds since the epoch by the clock of who reports; -1
is "not known" and "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import orjson

from keyfold.store.documents import decode_document

UNKNOWN: Final = -1

# What is tried again for so long is no hiccup.
_BLOCKED_MS: Final = 60_000
_SHOWN: Final = 3


class State(StrEnum):
    """Connect's states of a connector and of a task, and the sink's of a partition."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition as its task sees it.

    `next_offset` is durable: all before it is in the log. `position` is how far the task has read, `end_offset` the
    high watermark that the client saw last. `oldest_record_ms` is the timestamp of the oldest record that was read and
    is not durable (the first by offset). UNASSIGNED: given to the task by the group, and not claimed yet. FAILED:
    `error` says why, and the partition waits for a restart. Otherwise `error` is the last one that there was, and
    `blocked_ms` since when something has been repeated because of it: a partition with lag that is not blocked moves.
    """

    topic: str
    partition: int
    state: State
    next_offset: int = UNKNOWN
    position: int = UNKNOWN
    end_offset: int = UNKNOWN
    oldest_record_ms: int = UNKNOWN
    committed_ms: int = UNKNOWN
    error: str = ""
    error_ms: int = UNKNOWN
    blocked_ms: int = UNKNOWN

    @property
    def lag_records(self) -> int:
        """Offsets between the log's end and the topic's; `UNKNOWN` where either is not known."""
        if self.end_offset < 0 or self.next_offset < 0:
            return UNKNOWN
        return max(0, self.end_offset - self.next_offset)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task. `number` is its place in its worker; `values` are its metrics by name (`keyfold_sink.metrics.names`).

    `trace` says why it has FAILED; in other states what is in the way of all its partitions, if anything is.
    """

    number: int
    state: State
    trace: str = ""
    pid: int = UNKNOWN
    started_ms: int = UNKNOWN
    reported_ms: int = UNKNOWN
    partitions: tuple[PartitionStatus, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker and its tasks. Its tasks' ids in Connect's sense are `slot * tasks.max + number`.

    `orders_version` is the newest version of the orders that it has carried out.
    """

    worker_id: str
    slot: int
    reported_ms: int
    version: str
    orders_version: int
    tasks: tuple[TaskStatus, ...] = ()


def standstill(status: TaskStatus, now_ms: int) -> tuple[str, bool]:
    """Which partitions have stood still for a minute, and whether any other moves, or has nothing to do."""
    behind = [one for one in status.partitions if one.state is State.RUNNING and one.lag_records != 0]
    still = [one for one in behind if one.blocked_ms != UNKNOWN and now_ms - one.blocked_ms > _BLOCKED_MS]
    if not still:
        return "", True
    words = [
        f"{one.topic}-{one.partition} has not moved for {(now_ms - one.blocked_ms) // 1000} s: {one.error}"
        for one in still[:_SHOWN]
    ]
    more = [f"and {len(still) - _SHOWN} more partitions"] if len(still) > _SHOWN else []
    return "; ".join(words + more), len(still) < len(behind)


def dump(status: TaskStatus | WorkerStatus) -> bytes:
    """As JSON, on one line."""
    return orjson.dumps(status)


def load_task(data: bytes) -> TaskStatus:
    """Read a task's status back. Raises `ValueError` for anything else."""
    return decode_document(TaskStatus, data)


def load_worker(data: bytes) -> WorkerStatus:
    """Read a worker's status back. Raises `ValueError` for anything else."""
    return decode_document(WorkerStatus, data)
