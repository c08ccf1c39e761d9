"""Every metric of the compactor: its name, its kind, what it says. What is shown, served or pushed is declared here.

What Kafka's cleaner has too stands under the name that the Prometheus JMX exporter's usual rules make of Kafka's:

    kafka.log:type=LogCleanerManager,name=max-dirty-percent  ->  kafka_log_logcleanermanager_max_dirty_percent

so a board for Kafka's cleaner shows keyfold's. What Kafka does not have is under `keyfold_compactor_`. docs/metrics.md
has a row for each, and a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

_CLEANER: Final = "kafka.log:type=LogCleaner,name="
_MANAGER: Final = "kafka.log:type=LogCleanerManager,name="
_PARTITION: Final = ("topic", "partition")

PARTITIONS_SHOWN: Final = 10
"""So many partitions at most have a sample of their own in a metric: the worst by that metric."""

FAILURES: Final = ("cleaning", "retention", "deletion", "executor", "run")
"""What can fail: a partition's pass, its retention, the deletion of its objects; Spark in a run; a run as a whole."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `kafka_name` is the MBean of the same meaning, or empty."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    kafka_name: str = ""
    labels: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """The name without its room: what `max-dirty-percent` becomes."""
        for prefix in ("kafka_log_logcleanermanager_", "kafka_log_logcleaner_", "keyfold_compactor_"):
            if self.name.startswith(prefix):
                return self.name.removeprefix(prefix)
        return self.name


def _kafka(bean: str, name: str, text: str) -> Metric:
    room = bean.removeprefix("kafka.log:type=").removesuffix(",name=").lower()
    return Metric(f"kafka_log_{room}_{name.replace('-', '_')}", "gauge", text, bean + name)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"keyfold_compactor_{name}", "gauge", text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"keyfold_compactor_{name}_total", "counter", text, labels=labels)


UNCLEANABLE_COUNT: Final = _kafka(_MANAGER, "uncleanable-partitions-count", "Partitions whose last try failed.")
UNCLEANABLE_BYTES: Final = _kafka(_MANAGER, "uncleanable-bytes", "Cleanable bytes of the partitions that failed.")
MAX_DIRTY: Final = _kafka(
    _MANAGER, "max-dirty-percent", "Dirty ratio of the dirtiest log that is neither failing nor being cleaned."
)
SINCE_LAST_RUN: Final = _kafka(_MANAGER, "time-since-last-run-ms", "Time since a run last began to look at the logs.")
MAX_CLEAN_TIME: Final = _kafka(_CLEANER, "max-clean-time-secs", "The longest pass of the last run that had passes.")
MAX_DELAY: Final = _kafka(
    _CLEANER, "max-compaction-delay-secs", "How far the most overdue log is beyond max.compaction.lag.ms."
)
RECOPY: Final = _kafka(
    _CLEANER,
    "cleaner-recopy-percent",
    "Bytes of segments written per bytes of the segments replaced, in the last run that had passes.",
)

MOVED_PER_FREED: Final = _gauge(
    "moved_bytes_per_freed_byte", "Bytes read and written per byte freed, in the last run that freed any."
)
UNCLEANED_AGE: Final = _gauge("uncleaned_record_age_seconds", "Time since the oldest uncleaned record was appended.")
PARTITIONS: Final = _gauge("partitions", "Compacted partitions that were looked at.")
CLEAN_BYTES: Final = _gauge("clean_bytes", "Stored bytes below the first dirty offset, over all compacted logs.")
CLEANABLE_BYTES: Final = _gauge("cleanable_bytes", "Stored bytes that may be cleaned now, over all compacted logs.")
HELD: Final = _gauge("partitions_held", "Partitions with tombstones that wait for a replica alone.")
IN_PROGRESS: Final = _gauge("run_in_progress", "1 while a run is at work.")
LAST_RUN_SECONDS: Final = _gauge("last_run_duration_seconds", "How long the last whole run took.")
LAST_RUN_TIME: Final = _gauge("last_run_timestamp_seconds", "Unix time of the end of the last whole run.")
WORST_DIRTY: Final = _gauge("partition_dirty_percent", "Dirty ratio of the dirtiest partitions.", _PARTITION)
WORST_OVERDUE: Final = _gauge("partition_overdue_seconds", "Delay of the most overdue partitions.", _PARTITION)
WORST_AGE: Final = _gauge(
    "partition_uncleaned_record_age_seconds", "Age of the oldest uncleaned record, where it is highest.", _PARTITION
)
UNCLEANABLE: Final = _gauge("partition_uncleanable", "1 for partitions whose last try failed.", _PARTITION)

RUNS: Final = _counter("runs", "Whole runs.")
PASSES: Final = _counter("passes", "Passes that committed something.")
PARTS: Final = _counter("pass_parts", "Commits of passes; a pass that is not cut has one.")
READ: Final = _counter("read_bytes", "Bytes that tasks read from the store, indexes included.")
WRITTEN: Final = _counter("written_bytes", "Bytes that tasks wrote to the store, indexes included.")
FREED: Final = _counter("freed_bytes", "Stored bytes by which passes made logs smaller, indexes apart.")
THROTTLED: Final = _counter("throttle_wait_seconds", "Time that tasks waited for the byte budget, summed over tasks.")
KEPT: Final = _counter("records_kept", "Records that passes looked at and left.")
REMOVED: Final = _counter("records_removed", "Records that passes removed, tombstones included.")
TOMBSTONES_REMOVED: Final = _counter("tombstones_removed", "Tombstones removed past their delete horizon.")
TOMBSTONES_MARKED: Final = _counter("tombstones_marked", "Tombstones whose delete horizon began.")
SEGMENTS_EXPIRED: Final = _counter("segments_expired", "Segments that retention took.")
RECORDS_EXPIRED: Final = _counter("records_expired", "Records that retention took.")
BYTES_EXPIRED: Final = _counter("expired_bytes", "Stored bytes that retention took, indexes apart.")
OBJECTS_DELETED: Final = _counter("objects_deleted", "Replaced objects that were deleted.")
ORPHANS_DELETED: Final = _counter("orphans_deleted", "Leftovers of crashed writers that were deleted.")
LEASES_LOST: Final = _counter("leases_lost", "Partitions that another compactor took over during a pass.")
LEASES_HELD: Final = _counter("leases_held", "Partitions left alone because another compactor was at work.")
FAILED: Final = _counter("failures", "What failed, by kind.", ("kind",))

METRICS: Final[tuple[Metric, ...]] = (
    *(UNCLEANABLE_COUNT, UNCLEANABLE_BYTES, MAX_DIRTY, SINCE_LAST_RUN, MAX_CLEAN_TIME, MAX_DELAY, RECOPY),
    *(MOVED_PER_FREED, UNCLEANED_AGE, PARTITIONS, CLEAN_BYTES, CLEANABLE_BYTES, HELD),
    *(IN_PROGRESS, LAST_RUN_SECONDS, LAST_RUN_TIME, WORST_DIRTY, WORST_OVERDUE, WORST_AGE, UNCLEANABLE),
    *(RUNS, PASSES, PARTS, READ, WRITTEN, FREED, THROTTLED, KEPT, REMOVED, TOMBSTONES_REMOVED, TOMBSTONES_MARKED),
    *(SEGMENTS_EXPIRED, RECORDS_EXPIRED, BYTES_EXPIRED, OBJECTS_DELETED, ORPHANS_DELETED),
    *(LEASES_LOST, LEASES_HELD, FAILED),
)
"""All of them, in the order in which they are shown."""
