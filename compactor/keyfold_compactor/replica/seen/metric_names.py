"""Every metric of replication: its name, its kind, what it says. docs/metrics-replica.md has a row for each.

All have the label `replica`, the registration's name. `MAPR_NAMES` says which field of MapR's `stream replica list`
means the same.
"""

from __future__ import annotations

from typing import Final

from keyfold_compactor.metric_names import Metric

_REPLICA: Final = ("replica",)
_PARTITION: Final = ("replica", "topic", "partition")

PARTITIONS_SHOWN: Final = 10
"""So many partitions of a replica at most have a sample of their own in a metric: the worst by that metric."""


def _gauge(name: str, text: str, labels: tuple[str, ...] = _REPLICA) -> Metric:
    return Metric(f"keyfold_replica_{name}", "gauge", text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = _REPLICA) -> Metric:
    return Metric(f"keyfold_replica_{name}_total", "counter", text, labels=labels)


PARTITIONS: Final = _gauge("partitions", "Partitions in each state.", ("replica", "state"))
RUNNING: Final = _gauge("running", "1 when both sides are open and work is done, 0 when one could not be opened.")
PAUSED: Final = _gauge("paused", "1 while the replica is paused.")
PENDING_BYTES: Final = _gauge("pending_bytes", "Stored bytes that the replica has not, indexes included.")
PENDING_RECORDS: Final = _gauge("pending_records", "Records in segments that the replica has not.")
PENDING_SEGMENTS: Final = _gauge(
    "pending_segments", "Segments that the replica has not, or not with their newest index."
)
EARLIEST: Final = _gauge(
    "earliest_pending_timestamp_seconds", "Lowest timestamp of a segment with records that the replica has not."
)
LATEST: Final = _gauge(
    "latest_pending_timestamp_seconds", "Highest timestamp of a segment with records that the replica has not."
)
LAG_RECORDS: Final = _gauge("lag_records", "Offsets from the replica's end to the source's, where most.")
LAG_SECONDS: Final = _gauge(
    "lag_seconds", "Time since the source committed the oldest thing that the replica has not, where longest."
)
ERRORS: Final = _gauge("errors", "Partitions whose last round failed, by code and host.", ("replica", "code", "host"))
BACKOFF: Final = _gauge("backoff_seconds", "The longest pause before a partition that failed is tried again.")
LAST_ATTEMPT: Final = _gauge("last_attempt_timestamp_seconds", "Unix time of the latest round.")
NEXT_ATTEMPT: Final = _gauge(
    "next_attempt_timestamp_seconds", "Unix time at which the first of the partitions that failed is tried again."
)
LAST_SUCCESS: Final = _gauge(
    "last_success_timestamp_seconds", "Unix time since which at least one partition has had no round that succeeded."
)
WORST_LAG: Final = _gauge("partition_lag_seconds", "Lag of the partitions that are most behind.", _PARTITION)
WORST_PENDING: Final = _gauge("partition_pending_bytes", "Pending bytes of the partitions with most.", _PARTITION)
FAILING: Final = _gauge("partition_failing", "1 for partitions that wait, are broken or need a resync.", _PARTITION)

ROUNDS: Final = _counter("rounds", "Rounds of partitions, also those that found nothing to do.")
COMMITS: Final = _counter("commits", "Versions of a source that were committed at the replica.")
PINS: Final = _counter("pins", "Holds that rounds took at the source for what they were to copy.")
PLANS_REPEATED: Final = _counter("plans_repeated", "Rounds that were planned again: the source had replaced an object.")
SENT_BYTES: Final = _counter("sent_bytes", "Stored bytes that went through this process to the replica.")
SENT_OBJECTS: Final = _counter("sent_objects", "Objects that went through this process to the replica.")
COPIED_BYTES: Final = _counter("copied_bytes", "Stored bytes that a store copied by itself.")
COPIED_OBJECTS: Final = _counter("copied_objects", "Objects that a store copied by itself.")
FOUND_OBJECTS: Final = _counter("found_objects", "Objects that were at the replica already and were not sent again.")
DELETED_OBJECTS: Final = _counter("deleted_objects", "Objects that the replica no longer names and that were deleted.")
DELETED_ORPHANS: Final = _counter("deleted_orphans", "Objects of interrupted rounds that no version came to name.")
FAILURES: Final = _counter("failures", "Rounds that failed, by code.", ("replica", "code"))

METRICS: Final[tuple[Metric, ...]] = (
    *(RUNNING, PARTITIONS, PAUSED, PENDING_BYTES, PENDING_RECORDS, PENDING_SEGMENTS, EARLIEST, LATEST),
    *(LAG_RECORDS, LAG_SECONDS, ERRORS, BACKOFF, LAST_ATTEMPT, NEXT_ATTEMPT, LAST_SUCCESS),
    *(WORST_LAG, WORST_PENDING, FAILING),
    *(ROUNDS, COMMITS, PINS, PLANS_REPEATED, SENT_BYTES, SENT_OBJECTS, COPIED_BYTES, COPIED_OBJECTS, FOUND_OBJECTS),
    *(DELETED_OBJECTS, DELETED_ORPHANS, FAILURES),
)
"""All of them, in the order in which they are shown."""

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
