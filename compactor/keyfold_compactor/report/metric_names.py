"""The table of the compactor's metrics: name, kind, help text, and what to do when the value rises.

A metric that Kafka's log cleaner also has uses the name that the usual rules of the Prometheus JMX exporter give to
Kafka's metric:

    kafka.log:type=LogCleanerManager,name=max-dirty-percent  ->  kafka_log_logcleanermanager_max_dirty_percent

So dashboards for Kafka's cleaner show keyfold's metrics. Metrics that Kafka does not have begin with
`keyfold_compactor_`. The table of docs/metrics.md is generated from this table.
"""

from __future__ import annotations

from typing import Final

from keyfold.metrics.metric import Metric

_CLEANER: Final = "kafka.log:type=LogCleaner,name="
_MANAGER: Final = "kafka.log:type=LogCleanerManager,name="
_PARTITION: Final = ("topic", "partition")
_AS_ABOVE: Final = "as above"

PARTITIONS_SHOWN: Final = 10
"""Per-partition metrics are limited to this number of partitions, the worst ones first."""

FAILURES: Final = ("cleaning", "retention", "deletion", "executor", "run")
"""What can fail: a partition's pass, its retention or the deletion of its objects; Spark in a run; a whole run."""


def _kafka(bean: str, name: str, text: str, rises: str) -> Metric:
    kind = bean.removeprefix("kafka.log:type=").removesuffix(",name=").lower()
    own_name = f"kafka_log_{kind}_{name.replace('-', '_')}"
    return Metric(own_name, "gauge", text, rises, equivalent=bean + name, equivalent_in="Kafka")


def _gauge(name: str, text: str, rises: str, subject: tuple[str, ...] = ()) -> Metric:
    return Metric(f"keyfold_compactor_{name}", "gauge", text, rises, subject)


def _counter(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"keyfold_compactor_{name}_total", "counter", text, rises, own_labels=labels)


UNCLEANABLE_COUNT: Final = _kafka(
    _MANAGER,
    "uncleanable-partitions-count",
    "Partitions whose last pass, retention or deletion failed. The compactor retries them.",
    "read `why` in the report; often `keyfold log verify`, then `keyfold log repair`",
)
UNCLEANABLE_BYTES: Final = _kafka(
    _MANAGER,
    "uncleanable-bytes",
    "Cleanable bytes of the partitions whose last pass, retention or deletion failed.",
    "as above; the number says how urgent it is",
)
MAX_DIRTY: Final = _kafka(
    _MANAGER,
    "max-dirty-percent",
    "Dirty ratio of the dirtiest log that is neither failing nor being cleaned, times 100.",
    "steadily above `min.cleanable.dirty.ratio`: passes do not keep up",
)
SINCE_LAST_RUN: Final = _kafka(
    _MANAGER,
    "time-since-last-run-ms",
    "Time since the start of the last run.",
    "beyond `log.cleaner.backoff.ms` and the usual run: the loop hangs, or the store is away",
)
MAX_CLEAN_TIME: Final = _kafka(
    _CLEANER,
    "max-clean-time-secs",
    "Duration of the longest pass in the last run that had passes.",
    "with the log's size, or the byte rate limits the pass",
)
MAX_DELAY: Final = _kafka(
    _CLEANER,
    "max-compaction-delay-secs",
    "Time by which the most overdue log exceeds `max.compaction.lag.ms`.",
    "above 0 for longer than a run: deletions are later than you promised",
)
RECOPY: Final = _kafka(
    _CLEANER,
    "cleaner-recopy-percent",
    "Bytes written per bytes of the replaced segments in the last run that had passes, times 100.",
    "near 100: raise `min.cleanable.dirty.ratio` or `segment.min.garbage.ratio`",
)

MOVED_PER_FREED: Final = _gauge(
    "moved_bytes_per_freed_byte", "Bytes read and written per byte freed, in the last run that freed any.", _AS_ABOVE
)
UNCLEANED_AGE: Final = _gauge(
    "uncleaned_record_age_seconds",
    "Time since the oldest uncleaned record was appended.",
    "towards `max.compaction.lag.ms`: see the worst partitions below",
)
PARTITIONS: Final = _gauge(
    "partitions", "Compacted partitions in the last run.", "with new topics; a fall to 0 means a wrong `topics`"
)
CLEAN_BYTES: Final = _gauge(
    "clean_bytes", "Stored bytes below the first dirty offset, over all compacted logs.", "with the number of keys"
)
CLEANABLE_BYTES: Final = _gauge(
    "cleanable_bytes",
    "Stored bytes that may be cleaned now, over all compacted logs.",
    "passes do not keep up, or `min.cleanable.dirty.ratio` is high",
)
HELD: Final = _gauge(
    "partitions_held",
    "Partitions that hold tombstones past their delete horizon for a replica.",
    "a replica is away or waits: `keyfold replica status`",
)
IN_PROGRESS: Final = _gauge("run_in_progress", "1 during a run.", "always 1: one run follows the other without a pause")
LAST_RUN_SECONDS: Final = _gauge(
    "last_run_duration_seconds", "Duration of the last complete run.", "see `max_clean_time_secs`"
)
LAST_RUN_TIME: Final = _gauge(
    "last_run_timestamp_seconds", "Unix time of the end of the last complete run.", "it must rise; see the alerts below"
)
WORST_DIRTY: Final = _gauge(
    "partition_dirty_percent", "Dirty ratio of the dirtiest partitions, times 100.", "which logs to look at", _PARTITION
)
WORST_OVERDUE: Final = _gauge(
    "partition_overdue_seconds",
    "Time by which the most overdue partitions exceed `max.compaction.lag.ms`.",
    "which logs to look at",
    _PARTITION,
)
WORST_AGE: Final = _gauge(
    "partition_uncleaned_record_age_seconds",
    "Age of the oldest uncleaned record, for the partitions where it is highest.",
    "which logs to look at",
    _PARTITION,
)
UNCLEANABLE: Final = _gauge(
    "partition_uncleanable",
    "1 for partitions that fail, the first ones by name.",
    "which logs to look at; the report has all",
    _PARTITION,
)

RUNS: Final = _counter("runs", "Complete runs.", "it must rise")
PASSES: Final = _counter("passes", "Passes with at least one commit.", "with dirty records")
PARTS: Final = _counter(
    "pass_parts",
    "Commits of passes. A pass that is not cut into parts has one.",
    "faster than passes: `log.cleaner.pass.max.bytes` cuts them; raise it if parts are small",
)
READ: Final = _counter("read_bytes", "Bytes that tasks read from the store, indexes included.", "with dirty records")
WRITTEN: Final = _counter("written_bytes", "Bytes that tasks wrote to the store, indexes included.", _AS_ABOVE)
FREED: Final = _counter(
    "freed_bytes",
    "Stored bytes by which passes made logs smaller, indexes not included.",
    "it should, when bytes are read and written",
)
THROTTLED: Final = _counter(
    "throttle_wait_seconds",
    "Time that tasks waited for the byte rate, summed over tasks.",
    "the byte rate is what limits passes",
)
KEPT: Final = _counter(
    "records_kept", "Records that passes looked at and kept.", "with the number of keys and of passes"
)
REMOVED: Final = _counter("records_removed", "Records that passes removed, tombstones included.", "with dirty records")
TOMBSTONES_REMOVED: Final = _counter(
    "tombstones_removed", "Tombstones removed past their delete horizon.", "with deletions, `delete.retention.ms` later"
)
TOMBSTONES_MARKED: Final = _counter(
    "tombstones_marked",
    "Tombstones for which `delete.retention.ms` started.",
    "with deletions; the metric above follows",
)
SEGMENTS_EXPIRED: Final = _counter(
    "segments_expired",
    "Segments that retention removed.",
    "a jump: somebody shortened `retention.ms` or `retention.bytes`",
)
RECORDS_EXPIRED: Final = _counter("records_expired", "Records that retention removed.", _AS_ABOVE)
BYTES_EXPIRED: Final = _counter(
    "expired_bytes", "Stored bytes that retention removed, indexes not included.", _AS_ABOVE
)
OBJECTS_DELETED: Final = _counter(
    "objects_deleted", "Replaced objects that were deleted.", "with passes, `file.delete.delay.ms` later"
)
ORPHANS_DELETED: Final = _counter(
    "orphans_deleted", "Objects and uploads of crashed writers that were deleted.", "a writer crashes often"
)
LEASES_LOST: Final = _counter(
    "leases_lost",
    "Partitions that another compactor took over during a pass.",
    "two compactors, or pauses longer than `log.cleaner.lease.ms`",
)
LEASES_HELD: Final = _counter(
    "leases_held", "Partitions skipped because another compactor was cleaning them.", "harmless: runs overlap"
)
FAILED: Final = _counter(
    "failures",
    "Failures, by kind: `cleaning`, `retention`, `deletion`, `executor` (Spark) or `run`.",
    "the report and the log say why",
    ("kind",),
)

METRICS: Final[tuple[Metric, ...]] = (
    *(UNCLEANABLE_COUNT, UNCLEANABLE_BYTES, MAX_DIRTY, SINCE_LAST_RUN, MAX_CLEAN_TIME, MAX_DELAY, RECOPY),
    *(MOVED_PER_FREED, UNCLEANED_AGE, PARTITIONS, CLEAN_BYTES, CLEANABLE_BYTES, HELD),
    *(IN_PROGRESS, LAST_RUN_SECONDS, LAST_RUN_TIME, WORST_DIRTY, WORST_OVERDUE, WORST_AGE, UNCLEANABLE),
    *(RUNS, PASSES, PARTS, READ, WRITTEN, FREED, THROTTLED, KEPT, REMOVED, TOMBSTONES_REMOVED, TOMBSTONES_MARKED),
    *(SEGMENTS_EXPIRED, RECORDS_EXPIRED, BYTES_EXPIRED, OBJECTS_DELETED, ORPHANS_DELETED),
    *(LEASES_LOST, LEASES_HELD, FAILED),
)
"""All metrics, in the order of the documentation."""
