"""Gauges of a task: current values that its report adds to the counters, read without any request.

The worker computes lag, age and states from the partitions' statuses, see `partition_figures`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from keyfold_sink.group.assignment import PartitionStage, PauseReason
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import TaskMeter, sample_key
from keyfold_sink.write.memory_budget import InFlight

_HOLDS: Final = (PauseReason.MEMORY, PauseReason.SCHEMAS, PauseReason.LETTERS)
_ON_THE_WAY: Final = frozenset({PartitionStage.LOADING, PartitionStage.CONFIRMING, PartitionStage.CLAIMING})


class Gauges:
    """The gauges of one task. Only the main thread uses them."""

    def __init__(
        self,
        meter: TaskMeter,
        group: ConsumerGroup,
        in_flight: InFlight,
        limit_bytes: int,
        kept_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._meter = meter
        self._group = group
        self._in_flight = in_flight
        self._limit_bytes = limit_bytes
        self._kept_bytes = kept_bytes

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
            names.ACTIVE: sum(writer.unsent_records for writer in writers),
            names.BUFFERED: sum(writer.held_bytes for writer in writers) + in_flight_bytes + self._kept_bytes(),
            names.IN_FLIGHT: in_flight_bytes,
            names.BUFFER_LIMIT: self._limit_bytes,
            names.OPEN_SEGMENTS: sum(writer.unsent_records > 0 for writer in writers),
            names.LANE_JOBS: sum(owner.lane.jobs for owner in owners),
            names.PAUSED: PauseReason.MEMORY in self._group.fetching.reasons,
            names.UNSENT_SECONDS: now_s - since_s,
        }
        held = Counter(reason for owner in owners for reason in owner.holds)
        by_reason = {sample_key(names.HELD.name, (reason.name.lower(),)): held[reason] for reason in _HOLDS}
        plain = {metric.name: value for metric, value in gauges.items()}
        return self._meter.values({key: float(value) for key, value in {**plain, **by_reason}.items()})
