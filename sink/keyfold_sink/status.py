"""The status of workers, tasks and partitions, and its JSON.

    task ──TaskStatus, every second──► its worker ──WorkerStatus──► an object in the bucket ──► every other worker

A *worker* (Connect's term) is a process with tasks: one supervisor, in Kubernetes one pod. A task reports from its main
loop, so a report is also a heartbeat. All times are milliseconds since the epoch by the reporter's clock; -1 means
"unknown" and "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import orjson

from keyfold.store.documents import decode_document

UNKNOWN: Final = -1

# A partition that retries for longer than this is reported.
_BLOCKED_MS: Final = 60_000
_SHOWN: Final = 3


class RunState(StrEnum):
    """Connect's states of connectors and tasks, also used for partitions."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition as its task reports it.

    All records below `next_offset` are durable. `position` is the next offset to read, `end_offset` the high watermark
    that the client saw last. `oldest_record_ms` is the timestamp of the first record, by offset, that was read and is
    not durable yet. `buffered_records` counts these records. `roll_due_ms` is the time at which the open segment is
    finished if no other limit is reached before.

    UNASSIGNED: the group assigned the partition to the task, which has not claimed it yet. FAILED: `error` says why,
    and the partition waits for a restart. In other states `error` is the last error, and `blocked_ms` the time since
    when the task has retried because of it. A partition with lag that is not blocked makes progress.
    """

    topic: str
    partition: int
    state: RunState
    next_offset: int = UNKNOWN
    position: int = UNKNOWN
    end_offset: int = UNKNOWN
    oldest_record_ms: int = UNKNOWN
    committed_ms: int = UNKNOWN
    error: str = ""
    error_ms: int = UNKNOWN
    blocked_ms: int = UNKNOWN
    buffered_records: int = UNKNOWN
    roll_due_ms: int = UNKNOWN

    @property
    def lag_records(self) -> int:
        """Offsets between the log's end and the topic's end; `UNKNOWN` if either is."""
        if self.end_offset < 0 or self.next_offset < 0:
            return UNKNOWN
        return max(0, self.end_offset - self.next_offset)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task. `number` is its number in its worker; `values` are its metrics by name (`keyfold_sink.metrics.names`).

    `trace` says why the task has FAILED. In other states it says what blocks all of its partitions, if anything does.
    """

    number: int
    state: RunState
    trace: str = ""
    pid: int = UNKNOWN
    started_ms: int = UNKNOWN
    reported_ms: int = UNKNOWN
    partitions: tuple[PartitionStatus, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker and its tasks, whose ids in Connect's sense are `slot * tasks.max + number`.

    `orders_version` is the newest version of the desired state that the worker has carried out.
    """

    worker_id: str
    slot: int
    reported_ms: int
    version: str
    orders_version: int
    tasks: tuple[TaskStatus, ...] = ()


def standstill(status: TaskStatus, now_ms: int) -> tuple[str, bool]:
    """Return the partitions that made no progress for a minute, as text, and whether any other partition with lag does.

    The second value is also true if no partition is stuck.
    """
    behind = [one for one in status.partitions if one.state is RunState.RUNNING and one.lag_records != 0]
    still = [one for one in behind if one.blocked_ms != UNKNOWN and now_ms - one.blocked_ms > _BLOCKED_MS]
    if not still:
        return "", True
    words = [
        f"{one.topic}-{one.partition} has made no progress for {(now_ms - one.blocked_ms) // 1000} s: {one.error}"
        for one in still[:_SHOWN]
    ]
    more = [f"and {len(still) - _SHOWN} more partitions"] if len(still) > _SHOWN else []
    return "; ".join(words + more), len(still) < len(behind)


def dump(status: TaskStatus | WorkerStatus) -> bytes:
    """Encode as JSON on one line."""
    return orjson.dumps(status)


def load_task(data: bytes) -> TaskStatus:
    """Decode a task's status. Raise `ValueError` for anything else."""
    return decode_document(TaskStatus, data)


def load_worker(data: bytes) -> WorkerStatus:
    """Decode a worker's status. Raise `ValueError` for anything else."""
    return decode_document(WorkerStatus, data)
