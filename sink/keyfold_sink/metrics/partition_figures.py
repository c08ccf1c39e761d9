"""Metrics computed from the partitions' statuses: sums and maxima of a task, and the worst partitions.

Thousands of partitions become thousands of series only on request. By default a metric shows at most ten partitions,
those with the worst values, and none if nothing is wrong.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

from keyfold.metrics.metric import Metric, Sample
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.names import PARTITIONS_SHOWN
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState, TaskStatus
from keyfold_sink.topic_partition import TopicPartitionKey

Figures = Mapping[TopicPartitionKey, float]


class Stalls:
    """Since when partitions have had records to read without progress. The time continues when a task is replaced.

    If a partition returns from another worker with the same log end, it made no progress there either.
    """

    def __init__(self) -> None:
        self._still: dict[TopicPartitionKey, tuple[int, float]] = {}

    def observe(self, partitions: Iterable[PartitionStatus], now_s: float) -> None:
        """Record the partitions' current statuses."""
        for partition in partitions:
            key = (partition.topic, partition.partition)
            if partition.state is RunState.PAUSED or partition.lag_records <= 0:
                self._still.pop(key, None)
            elif key not in self._still or self._still[key][0] != partition.next_offset:
                self._still[key] = partition.next_offset, now_s

    def seconds(self, now_s: float) -> Figures:
        """Return the seconds without progress, also of partitions that another worker has meanwhile."""
        return {key: now_s - since_s for key, (_, since_s) in self._still.items()}


def task_gauges(status: TaskStatus, now_ms: int, stalled: Figures) -> dict[Metric, dict[tuple[str, ...], float]]:
    """Return the gauges over a task's partitions, without those that no partition knows."""
    partitions = status.partitions
    states = Counter(partition.state for partition in partitions)
    found: dict[Metric, dict[tuple[str, ...], float]] = {
        connect_names.PARTITIONS: {(): float(len(partitions))},
        names.BY_STATE: {(state.value,): float(count) for state, count in states.items()},
    }
    lags = [p.lag_records for p in partitions if p.lag_records != UNKNOWN]
    read = [p.position - p.next_offset for p in partitions if UNKNOWN not in {p.position, p.next_offset}]
    commits = [p.committed_ms for p in partitions if p.committed_ms != UNKNOWN]
    blocked = [seconds for seconds in (_blocked_s(p, now_ms) for p in partitions) if seconds is not None]
    found[names.BLOCKED] = {(): float(len(blocked))}
    found[names.BLOCKED_SECONDS] = {(): max(blocked, default=0.0)}
    found[names.STALLED_SECONDS] = {
        (): max((stalled.get((p.topic, p.partition), 0.0) for p in partitions), default=0.0)
    }
    found[names.AGE_MAX] = {(): max((_age_s(p, now_ms) for p in partitions), default=0.0)}
    found[names.LAG] = {(): float(sum(lags))}
    found[names.LAG_MAX] = {(): float(max(lags, default=0))}
    found[connect_names.TASK_LAG] = {(): float(max(0, *read)) if read else 0.0}
    if commits:
        found[names.LAST_COMMIT] = {(): max(commits) / 1000}
    if status.reported_ms != UNKNOWN:
        found[names.REPORT_AGE] = {(): max(0.0, (now_ms - status.reported_ms) / 1000)}
    return found


def partition_samples(
    tasks: Iterable[TaskStatus], connector: str, now_ms: int, stalled: Figures, *, all_partitions: bool
) -> dict[Metric, list[Sample]]:
    """Return samples by partition. A partition that two tasks report during a rebalance counts once."""
    partitions = _once(partition for task in tasks for partition in task.partitions)
    limit = len(partitions) if all_partitions else PARTITIONS_SHOWN
    known = {key: p for key, p in partitions.items() if p.lag_records != UNKNOWN}
    lags = {key: float(p.lag_records) for key, p in known.items()}
    late = {key: p.committed_ms for key, p in partitions.items() if p.committed_ms != UNKNOWN}
    if not all_partitions:
        lags = {key: lag for key, lag in lags.items() if lag > 0}
        late = {key: committed_ms for key, committed_ms in late.items() if key in lags}
    ages = {key: _age_s(p, now_ms) for key, p in partitions.items()}
    blocked = {key: s for key, s in ((key, _blocked_s(p, now_ms)) for key, p in partitions.items()) if s is not None}
    failed = [key for key, p in partitions.items() if p.state is RunState.FAILED]
    worst_lags = _largest(lags, limit)
    figures: dict[Metric, Figures] = {
        names.PARTITION_LAG: worst_lags,
        names.PARTITION_AGE: {key: age for key, age in _largest(ages, limit).items() if age},
        names.PARTITION_STALLED: _largest({key: s for key, s in stalled.items() if key in partitions}, limit),
        names.PARTITION_BLOCKED: _largest(blocked, limit),
        names.PARTITION_COMMIT: {key: late[key] / 1000 for key in heapq.nsmallest(limit, late, key=late.__getitem__)},
        names.PARTITION_NEXT: {key: float(known[key].next_offset) for key in worst_lags},
        names.PARTITION_END: {key: float(known[key].end_offset) for key in worst_lags},
        names.PARTITION_FAILED: dict.fromkeys(heapq.nsmallest(limit, failed), 1.0),
    }
    return {
        metric: [Sample((connector, key[0], str(key[1])), value) for key, value in found.items()]
        for metric, found in figures.items()
    }


def _largest(figures: Figures, limit: int) -> Figures:
    return {key: figures[key] for key in heapq.nlargest(limit, figures, key=figures.__getitem__)}


def _once(partitions: Iterable[PartitionStatus]) -> dict[TopicPartitionKey, PartitionStatus]:
    found: dict[TopicPartitionKey, PartitionStatus] = {}
    for partition in partitions:
        key = (partition.topic, partition.partition)
        other = found.get(key)
        if other is None or _rank(partition) > _rank(other):
            found[key] = partition
    return found


def _rank(partition: PartitionStatus) -> tuple[bool, int]:
    """Rank the reports of a partition: the task that has claimed it ranks above others."""
    return partition.state is not RunState.UNASSIGNED, partition.next_offset


def _age_s(partition: PartitionStatus, now_ms: int) -> float:
    """Return the age of the oldest record; 0 for a record from the future or without a timestamp."""
    oldest_ms = partition.oldest_record_ms
    return max(0.0, (now_ms - oldest_ms) / 1000) if oldest_ms != UNKNOWN else 0.0


def _blocked_s(partition: PartitionStatus, now_ms: int) -> float | None:
    """Return how long a partition has been blocked. A failed partition is not blocked: it waits for a restart."""
    if partition.blocked_ms == UNKNOWN or partition.state is RunState.FAILED:
        return None
    return max(0.0, (now_ms - partition.blocked_ms) / 1000)
