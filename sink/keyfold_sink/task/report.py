"""A task's status and gauges, made in its main loop from current values, without requests and without waiting.

A task is RUNNING if it is a member of its group and has claimed partitions, or was assigned none. Each partition's
`lag_records`, `blocked_ms` and `error` show whether it is idle or blocked; the trace says what blocks all of them. A
task is not RUNNING if the store refuses all of its work, because a refusal does not go away by itself.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from keyfold.runtime.clock import Clock, Moment
from keyfold_sink.group.assignment import AssignedPartition, PartitionStage, PauseReason
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.meter import TaskMeter, sample_key
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState, TaskStatus
from keyfold_sink.task.time_limits import REPORT_INTERVAL_S
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.partition import PartitionWriter

_NAMED_FAILURES: Final = 10

Send = Callable[[TaskStatus], None]
Values = Callable[[], Mapping[str, float]]

_HOLDS: Final = (PauseReason.MEMORY, PauseReason.SCHEMAS, PauseReason.LETTERS)
_ON_THE_WAY: Final = frozenset({PartitionStage.LOADING, PartitionStage.CONFIRMING, PartitionStage.CLAIMING})


def no_values() -> Mapping[str, float]:
    """Return no metrics, for a task without a meter."""
    return {}


class StatusReporter:
    """Send the statuses of one task. `values` returns the metrics for a status."""

    def __init__(
        self,
        number: int,
        clock: Clock,
        send: Send,
        values: Values = no_values,
        *,
        interval_s: float = REPORT_INTERVAL_S,
    ) -> None:
        self.number = number
        self._interval_s = interval_s
        self._clock = clock
        self._send = send
        self.values = values
        self._pid = os.getpid()
        self._started_ms = clock.now_ms()
        self._due_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """The time by the clock of statuses."""
        return self._clock.now_ms()

    def wall_ms(self, monotonic_s: float) -> int:
        """The wall-clock time of a monotonic second, by the clock of statuses."""
        return self._clock.now_ms() + round((monotonic_s - self._clock.monotonic_s()) * 1000)

    def moment(self) -> Moment:
        """The present moment by the clock of statuses."""
        return Moment(self._clock)

    def is_due(self) -> bool:
        """Whether the next status is due."""
        return self._clock.monotonic_s() >= self._due_s

    def send_state(self, state: RunState, trace: str = "", partitions: Sequence[PartitionStatus] = ()) -> None:
        """Send a status now."""
        self._due_s = self._clock.monotonic_s() + self._interval_s
        self._send(
            TaskStatus(
                self.number,
                state,
                trace,
                self._pid,
                self._started_ms,
                self._clock.now_ms(),
                tuple(partitions),
                self.values(),
            )
        )


class TaskReport:
    """Build a task's status from its group. `ends` are the end offsets of partitions that the client does not fetch.

    Transactions are usually short. One that is open for longer than `transaction_ms` is reported, because it blocks all
    readers of committed records.
    """

    def __init__(self, group: ConsumerGroup, reporter: StatusReporter, transaction_ms: int) -> None:
        self.ends: Mapping[TopicPartitionKey, int] = {}
        self._group = group
        self._reporter = reporter
        self._transaction_ms = transaction_ms

    def send_if_due(self) -> None:
        """Send a status if it is due. Cheap enough to call in every round of a waiting loop."""
        if self._reporter.is_due():
            self.send_now()

    def send_now(self) -> None:
        """Send a status now."""
        owners = self._group.assigned.values()
        self._reporter.send_state(self.state(), self.trace(), [self._partition(owner) for owner in owners])

    def unread(self) -> list[TopicPartitionKey]:
        """Return the partitions that are not fetched now, whose end offsets must be requested."""
        if self._group.fetching.reasons:
            return list(self._group.assigned)
        return [key for key, owner in self._group.assigned.items() if not owner.is_fetched or owner.holds]

    def state(self) -> RunState:
        """Return the task's state as Connect names it."""
        group = self._group
        stages = {owner.stage for owner in group.assigned.values()}
        if PartitionStage.FAILED in stages:
            return RunState.FAILED
        if not group.is_member:
            return RunState.UNASSIGNED
        if PauseReason.REQUEST in group.fetching.reasons:
            return RunState.PAUSED
        if PartitionStage.RUNNING in stages:
            return RunState.UNASSIGNED if self._is_refused() else RunState.RUNNING
        return RunState.UNASSIGNED if stages else RunState.RUNNING

    def trace(self) -> str:
        """Return which partitions have failed or, if none has, what blocks the task."""
        failed = [owner for owner in self._group.assigned.values() if owner.failure is not None]
        if failed:
            return failures(failed)
        fetching = self._group.fetching
        words = [f"reading is paused: {why.value}" for why in fetching.reasons if why is not PauseReason.REQUEST]
        if not fetching.has_joined:
            words.append("no topic matches `topics.regex`")
        return "; ".join([*words, *self._refusals(), *self._group.client_errors.words()])

    def _is_refused(self) -> bool:
        """Whether the store refuses the work of every partition that has any."""
        owners = [owner for owner in self._group.assigned.values() if owner.stage is PartitionStage.RUNNING]
        if not any(owner.health.is_refused for owner in owners):
            return False
        return all(owner.health.is_refused for owner in owners if self._partition(owner).lag_records != 0)

    def _refusals(self) -> list[str]:
        """Return the store's refusals."""
        refused = [owner.health.error for owner in self._group.assigned.values() if owner.health.is_refused]
        if not refused:
            return []
        return [f"the store refuses access for {len(refused)} partitions: {refused[0]}"]

    def _partition(self, owner: AssignedPartition) -> PartitionStatus:
        topic, number = owner.key
        writer = owner.writer
        end_offset = self._group.fetching.end_offset(owner)
        error, error_ms, blocked_ms = self._in_the_way(owner, end_offset)
        return PartitionStatus(
            topic,
            number,
            self._state(owner),
            owner.next_offset if writer is not None or owner.pinned is not None else UNKNOWN,
            UNKNOWN if writer is None else writer.position,
            max(end_offset, self.ends.get(owner.key, UNKNOWN), UNKNOWN if writer is None else owner.end_offset),
            UNKNOWN if writer is None else writer.oldest_record_ms,
            owner.committed_ms,
            error,
            error_ms,
            blocked_ms,
            UNKNOWN if writer is None else writer.buffered_records,
            UNKNOWN if writer is None else self._roll_due_ms(writer),
        )

    def _roll_due_ms(self, writer: PartitionWriter) -> int:
        """Return the wall-clock time at which the open segment is finished, `UNKNOWN` without one."""
        due_s = writer.roll_due_s
        return UNKNOWN if due_s is None else self._reporter.wall_ms(due_s)

    def _in_the_way(self, owner: AssignedPartition, end_offset: int) -> tuple[str, int, int]:
        """Return a partition's last error, its time, and since when it has blocked the partition."""
        if owner.failure is not None:
            return str(owner.failure), owner.failed_ms, owner.failed_ms
        since_ms = self._waits_since_ms(owner, end_offset)
        health = owner.health
        if since_ms == UNKNOWN or health.blocked_ms != UNKNOWN:
            return health.error, health.error_ms, health.blocked_ms
        words = f"{end_offset - owner.eof_offset} offsets are blocked by an open transaction in the topic"
        return words, self._reporter.now_ms(), since_ms

    def _waits_since_ms(self, owner: AssignedPartition, end_offset: int) -> int:
        """Return since when an open transaction has blocked the partition, `UNKNOWN` if only for a moment or not."""
        reads = owner.is_fetched and not owner.holds and not self._group.fetching.reasons
        if not reads or owner.writer is None or not owner.eof_offset == owner.writer.position < end_offset:
            owner.waits_since = None
            return UNKNOWN
        if owner.waits_since is None:
            owner.waits_since = self._reporter.moment()
        return owner.waits_since.wall_ms if owner.waits_since.age_ms >= self._transaction_ms else UNKNOWN

    def _state(self, owner: AssignedPartition) -> RunState:
        if owner.stage is PartitionStage.FAILED:
            return RunState.FAILED
        if owner.stage is not PartitionStage.RUNNING:
            return RunState.UNASSIGNED
        return RunState.PAUSED if PauseReason.REQUEST in self._group.fetching.reasons else RunState.RUNNING


def failures(failed: Sequence[AssignedPartition]) -> str:
    """Return the trace of a task with failed partitions."""
    named = [_named(owner) for owner in failed[:_NAMED_FAILURES]]
    if len(failed) == 1:
        return named[0]
    more = [f"and {len(failed) - _NAMED_FAILURES} more"] * (len(failed) > _NAMED_FAILURES)
    return "\n".join([f"{len(failed)} partitions have failed; restart the task to retry them", *named, *more])


def _named(owner: AssignedPartition) -> str:
    words, name = str(owner.failure), "{}-{}".format(*owner.key)
    return words if name in words else f"{name}: {words}"


class TaskGauges:
    """Current values that a task's report adds to its counters. Only the main thread uses them.

    The worker computes lag, age and states from the partitions' statuses, see `partition_figures`.
    """

    def __init__(
        self,
        meter: TaskMeter,
        group: ConsumerGroup,
        in_flight: InFlight,
        limit_bytes: int,
        waiting_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._meter = meter
        self._group = group
        self._in_flight = in_flight
        self._limit_bytes = limit_bytes
        self._waiting_bytes = waiting_bytes

    def values(self) -> Mapping[str, float]:
        """Return all metrics of the task, for `TaskStatus.values`."""
        owners = self._group.assigned.values()
        writers = [owner.writer for owner in owners if owner.writer is not None]
        if not any(owner.stage in _ON_THE_WAY for owner in owners):
            self._meter.rebalance_is_over()
        now_s = self._meter.clock.monotonic_s()
        in_flight_bytes = self._in_flight.size_bytes
        since_s = min((s for s in (writer.unsent_since_s for writer in writers) if s is not None), default=now_s)
        gauges = {
            connect_names.ACTIVE: sum(writer.unsent_records for writer in writers),
            names.BUFFERED: sum(writer.held_bytes for writer in writers) + in_flight_bytes + self._waiting_bytes(),
            names.IN_FLIGHT: in_flight_bytes,
            names.BUFFER_LIMIT: self._limit_bytes,
            names.OPEN_SEGMENTS: sum(writer.unsent_records > 0 for writer in writers),
            names.QUEUE_JOBS: sum(owner.queue.jobs for owner in owners),
            names.PAUSED: PauseReason.MEMORY in self._group.fetching.reasons,
            names.UNSENT_SECONDS: now_s - since_s,
        }
        held = Counter(reason for owner in owners for reason in owner.holds)
        by_reason = {sample_key(names.HELD.name, (reason.name.lower(),)): held[reason] for reason in _HOLDS}
        plain = {metric.name: value for metric, value in gauges.items()}
        return self._meter.values({key: float(value) for key, value in {**plain, **by_reason}.items()})
