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
    "Partitions whose last compaction pass, retention or deletion of objects failed. The compactor retries them.",
    "read `why` in the report; often `keyfold log verify`, then `keyfold log repair`",
)
UNCLEANABLE_BYTES: Final = _kafka(
    _MANAGER,
    "uncleanable-bytes",
    "Stored bytes to clean in the partitions whose last compaction pass, retention or deletion of objects failed.",
    "as above; the number says how urgent it is",
)
MAX_DIRTY: Final = _kafka(
    _MANAGER,
    "max-dirty-percent",
    "Dirty ratio, in percent, of the dirtiest compacted log that is neither failing nor being cleaned.",
    "steadily above `min.cleanable.dirty.ratio`: passes do not keep up",
)
SINCE_LAST_RUN: Final = _kafka(
    _MANAGER,
    "time-since-last-run-ms",
    "Time in milliseconds since the start of the compactor's last run over all partitions.",
    "beyond `log.cleaner.backoff.ms` and the usual run: the loop hangs, or the store is away",
)
MAX_CLEAN_TIME: Final = _kafka(
    _CLEANER,
    "max-clean-time-secs",
    "Duration in seconds of the longest compaction pass over a partition, in the compactor's last run that had passes.",
    "with the log's size, or the byte rate limits the pass",
)
MAX_DELAY: Final = _kafka(
    _CLEANER,
    "max-compaction-delay-secs",
    "Time in seconds by which the most overdue compacted log exceeds `max.compaction.lag.ms`.",
    "above 0 for longer than a run: deletions are later than you promised",
)
RECOPY: Final = _kafka(
    _CLEANER,
    "cleaner-recopy-percent",
    "Bytes written by compaction, in percent of the replaced segments' bytes, in the compactor's last run with passes.",
    "near 100: raise `min.cleanable.dirty.ratio` or `segment.min.garbage.ratio`",
)

MOVED_PER_FREED: Final = _gauge(
    "moved_bytes_per_freed_byte",
    "Bytes that compaction read and wrote per byte of freed storage, in the compactor's last run that freed any.",
    _AS_ABOVE,
)
UNCLEANED_AGE: Final = _gauge(
    "uncleaned_record_age_seconds",
    "Time in seconds since the append of the oldest record that no compaction pass has cleaned, over all "
    "compacted logs.",
    "towards `max.compaction.lag.ms`: see the worst partitions below",
)
PARTITIONS: Final = _gauge(
    "partitions",
    "Partitions of compacted topics in the compactor's last run.",
    "with new topics; a fall to 0 means a wrong `topics`",
)
CLEAN_BYTES: Final = _gauge(
    "clean_bytes",
    "Stored bytes of records that compaction has already cleaned, over all compacted logs.",
    "with the number of keys",
)
CLEANABLE_BYTES: Final = _gauge(
    "cleanable_bytes",
    "Stored bytes of records that compaction may clean now, over all compacted logs.",
    "passes do not keep up, or `min.cleanable.dirty.ratio` is high",
)
HELD: Final = _gauge(
    "partitions_held",
    "Partitions in which tombstones are kept past `delete.retention.ms` because a replica has not received them.",
    "a replica is away or waits: `keyfold replica status`",
)
IN_PROGRESS: Final = _gauge(
    "run_in_progress",
    "1 while the compactor carries out a run over all partitions, otherwise 0.",
    "always 1: one run follows the other without a pause",
)
LAST_RUN_SECONDS: Final = _gauge(
    "last_run_duration_seconds",
    "Duration in seconds of the compactor's last complete run over all partitions.",
    "see `max_clean_time_secs`",
)
LAST_RUN_TIME: Final = _gauge(
    "last_run_timestamp_seconds",
    "Unix time in seconds of the end of the compactor's last complete run over all partitions.",
    "it must rise; see the alerts below",
)
WORST_DIRTY: Final = _gauge(
    "partition_dirty_percent",
    "Dirty ratio, in percent, of a partition's compacted log, for the dirtiest partitions.",
    "which logs to look at",
    _PARTITION,
)
WORST_OVERDUE: Final = _gauge(
    "partition_overdue_seconds",
    "Time in seconds by which a partition's compacted log exceeds `max.compaction.lag.ms`, for the most overdue "
    "partitions.",
    "which logs to look at",
    _PARTITION,
)
WORST_AGE: Final = _gauge(
    "partition_uncleaned_record_age_seconds",
    "Time in seconds since the append of a partition's oldest uncleaned record, for the partitions with the oldest.",
    "which logs to look at",
    _PARTITION,
)
UNCLEANABLE: Final = _gauge(
    "partition_uncleanable",
    "1 for a partition whose last compaction pass, retention or deletion failed, for the first ones by name.",
    "which logs to look at; the report has all",
    _PARTITION,
)

RUNS: Final = _counter("runs", "Complete runs of the compactor over all partitions.", "it must rise")
PASSES: Final = _counter(
    "passes", "Compaction passes over a partition that made at least one commit to its log.", "with dirty records"
)
PARTS: Final = _counter(
    "pass_parts",
    "Commits of compaction passes to partitions' logs. A pass over a large log is cut into parts with a commit each.",
    "faster than passes: `log.cleaner.pass.max.bytes` cuts them; raise it if parts are small",
)
READ: Final = _counter(
    "read_bytes", "Bytes that compaction tasks read from object storage, including indexes.", "with dirty records"
)
WRITTEN: Final = _counter(
    "written_bytes", "Bytes that compaction tasks wrote to object storage, including indexes.", _AS_ABOVE
)
FREED: Final = _counter(
    "freed_bytes",
    "Stored bytes by which compaction passes made logs smaller, without indexes.",
    "it should, when bytes are read and written",
)
THROTTLED: Final = _counter(
    "throttle_wait_seconds",
    "Time in seconds that compaction tasks waited for the byte rate limit, summed over tasks.",
    "the byte rate is what limits passes",
)
KEPT: Final = _counter(
    "records_kept", "Records that compaction passes examined and kept.", "with the number of keys and of passes"
)
REMOVED: Final = _counter(
    "records_removed", "Records that compaction passes removed, including tombstones.", "with dirty records"
)
TOMBSTONES_REMOVED: Final = _counter(
    "tombstones_removed",
    "Tombstones that compaction passes removed after their `delete.retention.ms` had passed.",
    "with deletions, `delete.retention.ms` later",
)
TOMBSTONES_MARKED: Final = _counter(
    "tombstones_marked",
    "Tombstones for which a compaction pass started `delete.retention.ms`.",
    "with deletions; the metric above follows",
)
SEGMENTS_EXPIRED: Final = _counter(
    "segments_expired",
    "Log segments that the compactor removed because of `retention.ms` or `retention.bytes`.",
    "a jump: somebody shortened `retention.ms` or `retention.bytes`",
)
RECORDS_EXPIRED: Final = _counter(
    "records_expired", "Records that the compactor removed because of `retention.ms` or `retention.bytes`.", _AS_ABOVE
)
BYTES_EXPIRED: Final = _counter(
    "expired_bytes",
    "Stored bytes that the compactor removed because of `retention.ms` or `retention.bytes`, without indexes.",
    _AS_ABOVE,
)
OBJECTS_DELETED: Final = _counter(
    "objects_deleted",
    "Objects that the compactor deleted from object storage after a commit had removed them from their log.",
    "with passes, `file.delete.delay.ms` later",
)
ORPHANS_DELETED: Final = _counter(
    "orphans_deleted",
    "Objects and unfinished uploads of crashed writers that the compactor deleted from object storage.",
    "a writer crashes often",
)
LEASES_LOST: Final = _counter(
    "leases_lost",
    "Partitions that another compactor took over during a compaction pass.",
    "two compactors, or pauses longer than `log.cleaner.lease.ms`",
)
LEASES_HELD: Final = _counter(
    "leases_held",
    "Partitions that the compactor skipped because another compactor was cleaning them.",
    "harmless: runs overlap",
)
FAILED: Final = _counter(
    "failures",
    "Failures of the compactor, by kind: `cleaning`, `retention`, `deletion`, `executor` (Spark) or `run`.",
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
