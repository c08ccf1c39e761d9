"""The table of the replicator's metrics: name, kind, help text, and what to do when the value rises.

Every metric has the label `replica`, the registration's name. `MAPR_NAMES` gives the field of MapR's `stream replica
list` with the same meaning. The table of docs/metrics-replica.md is generated from this table.
"""

from __future__ import annotations

from typing import Final

from keyfold.metrics.metric import Metric

_REPLICA: Final = ("replica",)
_PARTITION: Final = ("replica", "topic", "partition")
_AS_ABOVE: Final = "as above"

PARTITIONS_SHOWN: Final = 10
"""Per-partition metrics are limited to this number of partitions for each replica, the worst ones first."""


def _gauge(
    name: str, text: str, rises: str, labels: tuple[str, ...] = (), *, subject: tuple[str, ...] = _REPLICA
) -> Metric:
    return Metric(f"keyfold_replica_{name}", "gauge", text, rises, subject, labels)


def _counter(name: str, text: str, rises: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"keyfold_replica_{name}_total", "counter", text, rises, _REPLICA, labels)


PARTITIONS: Final = _gauge(
    "partitions",
    "Partitions of the replica, by the state of their replication.",
    "`broken`, `resync-required`, or `waiting` for long: see `keyfold replica status`",
    ("state",),
)
RUNNING: Final = _gauge(
    "running",
    "1 while this process replicates and both the source and the replica are open; 0 if one of them could not be "
    "opened.",
    "0 for minutes: the log, or `keyfold replica status`, says why",
)
PAUSED: Final = _gauge(
    "paused",
    "1 while an operator has paused the replica, otherwise 0.",
    "an operator paused it; tombstones are held for it, up to `replica.hold.max.ms`",
)
PENDING_BYTES: Final = _gauge(
    "pending_bytes",
    "Stored bytes, including indexes, that the source has and the replica lacks.",
    "steadily: the byte rate is too low for what is appended and rewritten",
)
PENDING_RECORDS: Final = _gauge(
    "pending_records",
    "Records in the segments that the replica lacks, including those that the replica has in replaced segments.",
    _AS_ABOVE,
)
PENDING_SEGMENTS: Final = _gauge(
    "pending_segments", "Log segments of the source of which the replica lacks the data or the newest index.", _AS_ABOVE
)
EARLIEST: Final = _gauge(
    "earliest_pending_timestamp_seconds",
    "Lowest record timestamp, as Unix time in seconds, in the log segments with records that the replica lacks.",
    "it should advance: if it does not, a fail-over loses the records from this time on",
)
LATEST: Final = _gauge(
    "latest_pending_timestamp_seconds",
    "Highest record timestamp, as Unix time in seconds, in the log segments with records that the replica lacks.",
    "with the source",
)
LAG_RECORDS: Final = _gauge(
    "lag_records",
    "Offsets, not records, between the replica's end and the source's end, for the partition with the most.",
    "with the source's rate; flat at a high value: nothing is replicated",
)
LAG_EXISTING: Final = _gauge(
    "lag_existing_records",
    "Records that the source has after the replica's end, at most, for the partition with the most.",
    "with the source's rate; far below the lag in offsets for a log that was compacted",
)
LAG_SECONDS: Final = _gauge(
    "lag_seconds",
    "Time in seconds since the source committed the oldest change that the replica lacks, for the partition with "
    "the longest.",
    "beyond what you promised for a fail-over",
)
ERRORS: Final = _gauge(
    "errors",
    "Partitions whose last attempt at replication failed, by error code and host.",
    "see [codes](#codes)",
    ("code", "host"),
)
BACKOFF: Final = _gauge(
    "backoff_seconds",
    "Longest pause in seconds before replication of a failed partition is retried; 0 if no partition has failed.",
    "up to `replica.retry.backoff.max.ms`; 0 after a success",
)
LAST_ATTEMPT: Final = _gauge(
    "last_attempt_timestamp_seconds",
    "Unix time in seconds of the latest attempt to replicate any partition to the replica.",
    "it must rise while a process runs and the replica is not paused",
)
NEXT_ATTEMPT: Final = _gauge(
    "next_attempt_timestamp_seconds",
    "Unix time in seconds of the next attempt to replicate a failed partition. No sample if no partition has failed.",
    "-",
)
LAST_SUCCESS: Final = _gauge(
    "last_success_timestamp_seconds",
    "Unix time in seconds since which at least one partition has not been replicated successfully.",
    "it must rise; see the alerts below",
)
WORST_LAG: Final = _gauge(
    "partition_lag_seconds",
    "Time in seconds since the source's oldest change to a partition that the replica lacks, for the worst partitions.",
    "which logs to look at",
    subject=_PARTITION,
)
WORST_PENDING: Final = _gauge(
    "partition_pending_bytes",
    "Stored bytes of a partition that the source has and the replica lacks, for the partitions with the most.",
    _AS_ABOVE,
    subject=_PARTITION,
)
FAILING: Final = _gauge(
    "partition_failing",
    "1 for a partition whose replication waits, is broken or needs a resync, for the first ones by name.",
    "as above; the status has all",
    subject=_PARTITION,
)

ROUNDS: Final = _counter(
    "rounds",
    "Attempts to replicate a partition to the replica, including those that found nothing to copy.",
    "it must rise",
)
COMMITS: Final = _counter(
    "commits",
    "Versions of the source's logs that were committed at the replica.",
    "with the source's commits; it may skip some",
)
PINS: Final = _counter(
    "pins",
    "Versions of the source's logs that were held against deletion while they were copied to the replica.",
    "with large rounds, or rounds that are planned again",
)
PLANS_REPEATED: Final = _counter(
    "plans_repeated",
    "Copies that were planned again because the source had deleted an object before the copy.",
    "often: raise `file.delete.delay.ms` at the source, or lower `replica.pin.min.bytes`",
)
SENT_BYTES: Final = _counter(
    "sent_bytes", "Stored bytes that this process has sent to the replica.", "with what is appended and rewritten"
)
SENT_OBJECTS: Final = _counter("sent_objects", "Objects that this process has sent to the replica.", _AS_ABOVE)
COPIED_BYTES: Final = _counter(
    "copied_bytes",
    "Stored bytes that the object store copied to the replica itself, because source and replica are in one store.",
    _AS_ABOVE,
)
COPIED_OBJECTS: Final = _counter(
    "copied_objects",
    "Objects that the object store copied to the replica itself, because source and replica are in one store.",
    _AS_ABOVE,
)
FOUND_OBJECTS: Final = _counter(
    "found_objects",
    "Objects that an interrupted attempt had already copied to the replica, and that were not sent again.",
    "rounds are interrupted often",
)
DELETED_OBJECTS: Final = _counter(
    "deleted_objects",
    "Objects that were deleted at the replica after its logs no longer needed them.",
    "with the source's passes, `file.delete.delay.ms` later",
)
DELETED_ORPHANS: Final = _counter(
    "deleted_orphans",
    "Objects that interrupted attempts had left at the replica and that were deleted, because no log needs them.",
    "rounds are interrupted often",
)
FAILURES: Final = _counter(
    "failures",
    "Failed attempts to replicate a partition to the replica, by error code.",
    "see [codes](#codes)",
    ("code",),
)

METRICS: Final[tuple[Metric, ...]] = (
    *(RUNNING, PARTITIONS, PAUSED, PENDING_BYTES, PENDING_RECORDS, PENDING_SEGMENTS, EARLIEST, LATEST),
    *(LAG_RECORDS, LAG_EXISTING, LAG_SECONDS, ERRORS, BACKOFF, LAST_ATTEMPT, NEXT_ATTEMPT, LAST_SUCCESS),
    *(WORST_LAG, WORST_PENDING, FAILING),
    *(ROUNDS, COMMITS, PINS, PLANS_REPEATED, SENT_BYTES, SENT_OBJECTS, COPIED_BYTES, COPIED_OBJECTS, FOUND_OBJECTS),
    *(DELETED_OBJECTS, DELETED_ORPHANS, FAILURES),
)
"""All metrics, in the order of the documentation."""

MAPR_NAMES: Final = {
    PARTITIONS: "replicaState",
    PAUSED: "paused",
    PENDING_BYTES: "bytesPending",
    PENDING_RECORDS: "putsPending",
    PENDING_SEGMENTS: "bucketsPending",
    EARLIEST: "minPendingTS",
    LATEST: "maxPendingTS",
    ERRORS: "errors",
    BACKOFF: "backoff",
    LAST_ATTEMPT: "lastAttemptAt",
    NEXT_ATTEMPT: "reschedAt",
}
"""The last three are fields of `mrconfig dbinfo replbuckets`."""
