"""Compute the compactor's metrics from the reports of its runs: values in, values out.

    Totals      what happened, summed over runs: the counters
    Passes      figures of the last run that had passes; later runs without passes do not change them
    Backlog     what is left to clean, by the state of each log when it was last read
    History     all of these over the runs of one process, including the current run; `values` returns them by metric

The same values are served, pushed (`run_meter`), and included in a run's report, there for that run alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from keyfold.log.names import Place
from keyfold.metrics.metric import Labelled, Metric, MetricValues
from keyfold.runtime.json_types import JsonObject, JsonValue
from keyfold.runtime.text import size_text
from keyfold_compactor.report import metric_names as names
from keyfold_compactor.report.log_state import LogState
from keyfold_compactor.report.metric_names import FAILURES, METRICS, PARTITIONS_SHOWN
from keyfold_compactor.report.report import PartitionOutcome, PartitionReport, RunReport


@dataclass(frozen=True, slots=True)
class Totals:
    """The counters. Bytes are those on the wire, but `freed_bytes` and `expired_bytes` are those of segments alone."""

    runs: int = 0
    passes: int = 0
    parts: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    freed_bytes: int = 0
    throttle_wait_s: float = 0.0
    records_kept: int = 0
    records_removed: int = 0
    tombstones_removed: int = 0
    tombstones_marked: int = 0
    segments_expired: int = 0
    records_expired: int = 0
    expired_bytes: int = 0
    objects_deleted: int = 0
    orphans_deleted: int = 0
    leases_lost: int = 0
    leases_held: int = 0
    failed_cleaning: int = 0
    failed_retention: int = 0
    failed_deletion: int = 0
    failed_executor: int = 0
    failed_run: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


def totals(report: RunReport) -> Totals:
    """Return what has happened in a run so far, without the run itself or its failure."""
    found = sum((_totals_of(part) for part in report.partitions), Totals())
    return replace(found, failed_executor=int(bool(report.executor_error)))


def _totals_of(part: PartitionReport) -> Totals:
    return Totals(
        passes=int(part.parts_committed > 0),
        parts=part.parts_committed,
        read_bytes=part.traffic.read_bytes,
        written_bytes=part.traffic.written_bytes,
        freed_bytes=_freed_bytes(part),
        throttle_wait_s=part.traffic.wait_s,
        records_kept=part.kept,
        records_removed=part.removed,
        tombstones_removed=part.purged_tombstones,
        tombstones_marked=part.marked_tombstones,
        segments_expired=part.expired.segments,
        records_expired=part.expired.records,
        expired_bytes=part.expired.bytes,
        objects_deleted=len(part.garbage.replaced),
        orphans_deleted=len(part.garbage.orphans) + len(part.garbage.uploads),
        leases_lost=int(part.outcome is PartitionOutcome.LOST),
        leases_held=int(part.outcome is PartitionOutcome.SKIPPED),
        failed_cleaning=int(part.outcome is PartitionOutcome.FAILED and bool(part.why)),
        failed_retention=int(bool(part.expired.error)),
        failed_deletion=int(bool(part.gc_error)),
    )


def _freed_bytes(part: PartitionReport) -> int:
    """Return what a pass freed. A merge may cost some bytes for its frame, but a counter never decreases."""
    return max(0, part.replaced_bytes - part.made_bytes)


@dataclass(frozen=True, slots=True)
class Passes:
    """Figures of one run's passes. `moved_per_freed` is None if nothing was freed."""

    clean_time_s: float
    recopy_percent: float
    moved_per_freed: float | None


def passes(report: RunReport) -> Passes | None:
    """Return the figures of a run's passes; None if it had none."""
    done = [part for part in report.partitions if part.parts_committed > 0]
    if not done:
        return None
    made_bytes = sum(p.made_bytes for p in done)
    moved_bytes = sum(p.traffic.read_bytes + p.traffic.written_bytes for p in done)
    freed_bytes = sum(_freed_bytes(p) for p in done)
    return Passes(
        clean_time_s=max(p.seconds for p in done),
        # Kafka reads everything that it replaces. Here blocks without a survivor are not read, so a ratio of what
        # went over the wire would be high just where cleaning was cheap.
        recopy_percent=100 * made_bytes / max(1, sum(p.replaced_bytes for p in done)),
        moved_per_freed=moved_bytes / freed_bytes if freed_bytes else None,
    )


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is left to clean. `worst_*` have at most `PARTITIONS_SHOWN` partitions, and only those above 0."""

    partitions: int = 0
    clean_bytes: int = 0
    cleanable_bytes: int = 0
    held_count: int = 0
    max_dirty_percent: float = 0.0
    max_delay_s: float = 0.0
    uncleaned_age_s: float = 0.0
    uncleanable_count: int = 0
    uncleanable_bytes: int = 0
    worst_dirty: Labelled = field(default_factory=dict)
    worst_overdue: Labelled = field(default_factory=dict)
    worst_age: Labelled = field(default_factory=dict)
    uncleanable: Labelled = field(default_factory=dict)


def backlog(log_states: Iterable[LogState], uncleanable: Collection[Place]) -> Backlog:
    """Return what is left to clean, by the states of logs. `uncleanable` are partitions whose last attempt failed.

    As in Kafka these do not count for the dirty ratio, and neither do logs that another compactor is cleaning.
    """
    all_logs = {s.place: s for s in log_states}
    logs = [s for s in all_logs.values() if s.is_compacted]
    idle = [s for s in logs if s.place not in uncleanable and not s.is_in_progress]
    return Backlog(
        partitions=len(logs),
        clean_bytes=sum(s.clean_bytes for s in logs),
        cleanable_bytes=sum(s.cleanable_bytes for s in logs),
        held_count=sum(s.is_held for s in logs),
        max_dirty_percent=max((s.dirty_percent for s in idle), default=0.0),
        max_delay_s=max((s.overdue_ms for s in logs), default=0) / 1000,
        uncleaned_age_s=max((s.uncleaned_age_ms for s in logs), default=0) / 1000,
        uncleanable_count=len(uncleanable),
        uncleanable_bytes=sum(all_logs[place].cleanable_bytes for place in uncleanable if place in all_logs),
        worst_dirty=_worst(idle, lambda s: s.dirty_percent),
        worst_overdue=_worst(logs, lambda s: s.overdue_ms / 1000),
        worst_age=_worst(logs, lambda s: s.uncleaned_age_ms / 1000),
        uncleanable={_labels(place): 1.0 for place in heapq.nsmallest(PARTITIONS_SHOWN, uncleanable, key=_labels)},
    )


def _worst(logs: Iterable[LogState], figure: Callable[[LogState], float]) -> Labelled:
    above = [s for s in logs if figure(s) > 0]
    return {_labels(s.place): figure(s) for s in heapq.nlargest(PARTITIONS_SHOWN, above, key=figure)}


def _labels(place: Place) -> tuple[str, str]:
    return place.topic, str(place.partition)


@dataclass(frozen=True, slots=True)
class History:
    """The runs of one process. Local times: `begun_s` (monotonic) is the start of the last run, `ended_ms` its end."""

    totals: Totals = Totals()
    passes: Passes | None = None
    moved_per_freed: float | None = None
    log_states: Mapping[Place, LogState] = field(default_factory=dict)
    uncleanable: frozenset[Place] = frozenset()
    begun_s: float | None = None
    ended_ms: int | None = None
    run_seconds: float | None = None
    is_running: bool = False

    def begun(self, now_s: float) -> History:
        """Return the history after the start of a run."""
        return replace(self, begun_s=now_s, is_running=True)

    def with_run(self, report: RunReport) -> History:
        """Return the history with what a run has done so far. A log that it has not read yet keeps its state."""
        found = passes(report)
        per_byte = self.moved_per_freed if found is None or found.moved_per_freed is None else found.moved_per_freed
        return replace(
            self,
            totals=self.totals + totals(report),
            passes=found or self.passes,
            moved_per_freed=per_byte,
            log_states={**self.log_states, **report.log_states},
            uncleanable=uncleanable(report),
        )

    def ended(self, report: RunReport, now_ms: int) -> History:
        """Return the history after the end of a run. Logs that the run did not read are dropped."""
        done = self.with_run(report)
        return replace(
            done,
            totals=done.totals + Totals(runs=1),
            log_states=dict(report.log_states),
            ended_ms=now_ms,
            run_seconds=max(0.0, report.seconds),
            is_running=False,
        )

    def failed(self, report: RunReport | None) -> History:
        """Return the history after a run that failed as a whole; what it had done counts."""
        done = self if report is None else self.with_run(report)
        return replace(done, totals=done.totals + Totals(failed_run=1), is_running=False)

    def values(self, now_s: float) -> MetricValues:
        """Return all metrics at the local monotonic time `now_s`."""
        left = backlog(self.log_states.values(), self.uncleanable)
        found: dict[Metric, float | Labelled | None] = {
            names.SINCE_LAST_RUN: None if self.begun_s is None else max(0, round(1000 * (now_s - self.begun_s))),
            names.MAX_CLEAN_TIME: self.passes.clean_time_s if self.passes else 0.0,
            names.RECOPY: self.passes.recopy_percent if self.passes else 0.0,
            names.MOVED_PER_FREED: self.moved_per_freed,
            names.IN_PROGRESS: int(self.is_running),
            names.LAST_RUN_SECONDS: self.run_seconds,
            names.LAST_RUN_TIME: None if self.ended_ms is None else self.ended_ms / 1000,
            **_backlog_values(left),
            **_total_values(self.totals),
        }
        return {metric: found[metric] for metric in METRICS}


def uncleanable(report: RunReport) -> frozenset[Place]:
    """Return the partitions whose last attempt failed, as far as a run knows."""
    return report.uncleanable | {p.place for p in report.failed}


def _backlog_values(left: Backlog) -> MetricValues:
    return {
        names.UNCLEANABLE_COUNT: left.uncleanable_count,
        names.UNCLEANABLE_BYTES: left.uncleanable_bytes,
        names.MAX_DIRTY: left.max_dirty_percent,
        names.MAX_DELAY: left.max_delay_s,
        names.UNCLEANED_AGE: left.uncleaned_age_s,
        names.PARTITIONS: left.partitions,
        names.CLEAN_BYTES: left.clean_bytes,
        names.CLEANABLE_BYTES: left.cleanable_bytes,
        names.HELD: left.held_count,
        names.WORST_DIRTY: left.worst_dirty,
        names.WORST_OVERDUE: left.worst_overdue,
        names.WORST_AGE: left.worst_age,
        names.UNCLEANABLE: left.uncleanable,
    }


def _total_values(done: Totals) -> MetricValues:
    return {
        names.RUNS: done.runs,
        names.PASSES: done.passes,
        names.PARTS: done.parts,
        names.READ: done.read_bytes,
        names.WRITTEN: done.written_bytes,
        names.FREED: done.freed_bytes,
        names.THROTTLED: done.throttle_wait_s,
        names.KEPT: done.records_kept,
        names.REMOVED: done.records_removed,
        names.TOMBSTONES_REMOVED: done.tombstones_removed,
        names.TOMBSTONES_MARKED: done.tombstones_marked,
        names.SEGMENTS_EXPIRED: done.segments_expired,
        names.RECORDS_EXPIRED: done.records_expired,
        names.BYTES_EXPIRED: done.expired_bytes,
        names.OBJECTS_DELETED: done.objects_deleted,
        names.ORPHANS_DELETED: done.orphans_deleted,
        names.LEASES_LOST: done.leases_lost,
        names.LEASES_HELD: done.leases_held,
        names.FAILED: {(kind,): getattr(done, f"failed_{kind}") for kind in FAILURES},
    }


_OF_A_PROCESS: Final = frozenset({names.IN_PROGRESS, names.LAST_RUN_TIME, names.RUNS})
"""Metrics that have no meaning for a single run."""


def run_values(report: RunReport) -> MetricValues:
    """Return all metrics of one run alone, for its report. Its duration stands for the time since it started."""
    done = History(begun_s=0.0).ended(report, 0).values(report.seconds)
    return {metric: value for metric, value in done.items() if metric not in _OF_A_PROCESS}


def document(report: RunReport) -> JsonObject:
    """Return the object `metrics` of a run's JSON report: values by name; samples with labels as a list."""
    return {metric.name: _plain(metric, value) for metric, value in run_values(report).items()}


def _plain(metric: Metric, value: float | Labelled | None) -> JsonValue:
    if isinstance(value, Mapping):
        return [{**dict(zip(metric.labels, key, strict=True)), "value": round(v, 6)} for key, v in value.items()]
    return value if value is None else round(value, 6)


def text_lines(report: RunReport) -> Iterable[str]:
    """Yield the most important figures of a run as text."""
    left = backlog(report.log_states.values(), uncleanable(report))
    yield (
        f"max dirty {left.max_dirty_percent:.1f} %, {size_text(left.cleanable_bytes)} cleanable, "
        f"{left.uncleanable_count} partitions uncleanable ({size_text(left.uncleanable_bytes)}), "
        f"oldest uncleaned record {left.uncleaned_age_s:.0f} s, most overdue {left.max_delay_s:.0f} s"
    )
    done = passes(report)
    if done is not None:
        freed = "nothing freed"
        if done.moved_per_freed is not None:
            freed = f"{done.moved_per_freed:.2f} bytes moved per byte freed"
        yield f"longest pass {done.clean_time_s:.1f} s, recopied {done.recopy_percent:.1f} %, {freed}"
