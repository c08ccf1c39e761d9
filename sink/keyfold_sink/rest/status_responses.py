"""Build responses from the service's status; pure functions.

A task is RUNNING only if it has reported recently and one of its lagging partitions makes progress, or none has lag.
The connector is RUNNING only while one of its tasks is. In Connect both are RUNNING once they were started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold_sink.config.options import SinkOptions
from keyfold_sink.rest import shapes
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState, TaskStatus, WorkerStatus, standstill
from keyfold_sink.topic_partition import TopicPartitionKey

# A task reports every second, except while it flushes revoked partitions.
_SILENCE_MS: Final = 15_000
_TRACES_SHOWN: Final = 3
_BEST_FIRST: Final = (RunState.RUNNING, RunState.RESTARTING, RunState.PAUSED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class NumberedTask:
    """A task of any worker with its id in Connect's sense."""

    id: int
    worker: WorkerStatus
    status: TaskStatus


def tasks(options: SinkOptions, workers: Iterable[WorkerStatus]) -> list[NumberedTask]:
    """Return all tasks with an id, in order of ids. The tasks of a worker without a slot, just started, have none."""
    found = (task for task in _all_tasks(options, workers) if task.id != UNKNOWN)
    return sorted(found, key=lambda task: (task.id, task.worker.worker_id))


def _all_tasks(options: SinkOptions, workers: Iterable[WorkerStatus]) -> Iterator[NumberedTask]:
    for worker in workers:
        for task in worker.tasks:
            number = UNKNOWN if worker.slot == UNKNOWN else worker.slot * options.tasks_max + task.number
            yield NumberedTask(number, worker, task)


def task_state(options: SinkOptions, task: NumberedTask) -> shapes.TaskState:
    """Return a task's state in Connect's shape. The trace also says which partitions of a running task are blocked."""
    state, trace = task.status.state, task.status.trace
    if state is RunState.RUNNING:
        silence, (blocked, moves) = _silence(options, task), standstill(task.status, task.worker.reported_ms)
        if silence or not moves:
            state = RunState.UNASSIGNED
        trace = "; ".join(filter(None, (silence, blocked, trace)))
    return shapes.TaskState(id=task.id, state=state, worker_id=task.worker.worker_id, trace=trace or None)


def _silence(options: SinkOptions, task: NumberedTask) -> str:
    """Return the message that a task hangs, empty if it does not."""
    if task.status.reported_ms == UNKNOWN:
        return ""
    silent_ms = task.worker.reported_ms - task.status.reported_ms
    is_long = silent_ms > options.offset_flush_timeout_ms + _SILENCE_MS
    return f"the task has not reported for {silent_ms // 1000} s" if is_long else ""


def status(
    options: SinkOptions, target: RunState, workers: Sequence[WorkerStatus], own_id: str
) -> shapes.ConnectorStatus:
    """Return the status of the connector and its tasks. `own_id` is the id of the worker that answers."""
    states = [task_state(options, task) for task in tasks(options, workers)]
    numbered = (worker for worker in workers if worker.slot != UNKNOWN)
    first = min(numbered, key=lambda worker: worker.slot, default=None)
    state, trace = _connector_state(target, states)
    return shapes.ConnectorStatus(
        name=options.name,
        connector=shapes.ConnectorState(
            state=state, worker_id=own_id if first is None else first.worker_id, trace=trace or None
        ),
        tasks=states,
        type="sink",
    )


def _connector_state(target: RunState, tasks: Sequence[shapes.TaskState]) -> tuple[RunState, str]:
    """Return the desired state if it is not RUNNING, else the best state of any task; and why no task works."""
    if target is not RunState.RUNNING:
        return target, ""
    states = {task.state for task in tasks}
    state = next((one for one in _BEST_FIRST if one in states), RunState.UNASSIGNED)
    if state not in {RunState.FAILED, RunState.UNASSIGNED}:
        return state, ""
    traces = list(dict.fromkeys(task.trace for task in tasks if task.trace))
    if not traces:
        return state, ""
    more = f"\n(and {len(traces) - _TRACES_SHOWN} more)" if len(traces) > _TRACES_SHOWN else ""
    return state, "no task works:\n" + "\n".join(traces[:_TRACES_SHOWN]) + more


def restarting(status: shapes.ConnectorStatus, *, include_tasks: bool, only_failed: bool) -> shapes.ConnectorStatus:
    """Return the status after a restart request, as Connect does: tasks being restarted have the state RESTARTING."""

    def state_of(before: RunState, *, included: bool) -> RunState:
        return RunState.RESTARTING if included and (not only_failed or before is RunState.FAILED) else before

    connector = status.connector.model_copy(update={"state": state_of(status.connector.state, included=True)})
    after = [task.model_copy(update={"state": state_of(task.state, included=include_tasks)}) for task in status.tasks]
    return status.model_copy(update={"connector": connector, "tasks": after})


def info(options: SinkOptions, workers: Iterable[WorkerStatus]) -> shapes.ConnectorInfo:
    """Return the connector's configuration and the ids of its tasks."""
    ids = [shapes.TaskId(connector=options.name, task=task.id) for task in tasks(options, workers)]
    return shapes.ConnectorInfo(name=options.name, config=options.shown(), tasks=ids, type="sink")


def task_infos(options: SinkOptions, workers: Iterable[WorkerStatus]) -> list[shapes.TaskInfo]:
    """Return each task with its configuration, which is the connector's."""
    return [shapes.TaskInfo(id=task, config=options.shown()) for task in info(options, workers).tasks]


def offsets(ends: Mapping[TopicPartitionKey, int]) -> shapes.ConnectorOffsets:
    """Return the ends of the logs in KIP-875's nesting."""
    return shapes.ConnectorOffsets(
        offsets=[
            shapes.ConnectorOffset(
                partition=shapes.KafkaPartition(kafka_topic=topic, kafka_partition=partition),
                offset=shapes.KafkaOffset(kafka_offset=end),
            )
            for (topic, partition), end in sorted(ends.items())
        ]
    )


def partitions(
    options: SinkOptions,
    workers: Iterable[WorkerStatus],
    now_ms: int,
    ends: Mapping[TopicPartitionKey, int] | None = None,
) -> list[shapes.PartitionDetails]:
    """Return each partition once, in order. `ends` adds partitions without a task.

    If several tasks report a partition, the one with the highest offset counts.
    """
    found: dict[TopicPartitionKey, tuple[NumberedTask, PartitionStatus]] = {}
    for task in _all_tasks(options, workers):
        for partition in task.status.partitions:
            key = (partition.topic, partition.partition)
            if key not in found or _rank(partition) > _rank(found[key][1]):
                found[key] = (task, partition)
    rows = {key: _partition(status, task, now_ms) for key, (task, status) in found.items()}
    for key, end in (ends or {}).items():
        rows.setdefault(key, _nobodys(key, end))
    return [rows[key] for key in sorted(rows)]


def _rank(partition: PartitionStatus) -> tuple[bool, int]:
    """Rank the reports of a partition: after a rebalance, its old and its new task may both report it."""
    return partition.state is not RunState.UNASSIGNED, partition.next_offset


def _partition(status: PartitionStatus, task: NumberedTask, now_ms: int) -> shapes.PartitionDetails:
    age_ms = UNKNOWN if status.oldest_record_ms == UNKNOWN else max(0, now_ms - status.oldest_record_ms)
    return shapes.PartitionDetails(
        topic=status.topic,
        partition=status.partition,
        state=status.state,
        next_offset=_known(status.next_offset),
        position=_known(status.position),
        end_offset=_known(status.end_offset),
        lag=_known(status.lag_records),
        oldest_record_age_ms=_known(age_ms),
        buffered_records=_known(status.buffered_records),
        next_roll_ms=_known(status.roll_due_ms),
        last_commit_ms=_known(status.committed_ms),
        error=status.error or None,
        error_ms=_known(status.error_ms),
        blocked_since_ms=_known(status.blocked_ms),
        worker_id=task.worker.worker_id,
        task=_known(task.id),
    )


def _nobodys(key: TopicPartitionKey, end: int) -> shapes.PartitionDetails:
    return shapes.PartitionDetails(
        topic=key[0],
        partition=key[1],
        state=RunState.UNASSIGNED,
        next_offset=end,
        position=None,
        end_offset=None,
        lag=None,
        oldest_record_age_ms=None,
        buffered_records=None,
        next_roll_ms=None,
        last_commit_ms=None,
        error=None,
        error_ms=None,
        blocked_since_ms=None,
        worker_id=None,
        task=None,
    )


def _known(number: int) -> int | None:
    return None if number == UNKNOWN else number
