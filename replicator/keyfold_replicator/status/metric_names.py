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
    "Partitions in each state.",
    "`broken`, `resync-required`, or `waiting` for long: see `keyfold replica status`",
    ("state",),
)
RUNNING: Final = _gauge(
    "running",
    "1 while both sides are open and this process replicates; 0 if one side could not be opened.",
    "0 for minutes: the log, or `keyfold replica status`, says why",
)
PAUSED: Final = _gauge(
    "paused",
    "1 while the replica is paused.",
    "an operator paused it; tombstones are held for it, up to `replica.hold.max.ms`",
)
PENDING_BYTES: Final = _gauge(
    "pending_bytes",
    "Stored bytes that the replica lacks, indexes included.",
    "steadily: the byte rate is too low for what is appended and rewritten",
)
PENDING_RECORDS: Final = _gauge("pending_records", "Records in segments that the replica lacks.", _AS_ABOVE)
PENDING_SEGMENTS: Final = _gauge(
    "pending_segments", "Segments of which the replica lacks the data or the newest index.", _AS_ABOVE
)
EARLIEST: Final = _gauge(
    "earliest_pending_timestamp_seconds",
    "Lowest record timestamp of the segments whose records the replica lacks.",
    "it should advance: if it does not, a fail-over loses the records from this time on",
)
LATEST: Final = _gauge(
    "latest_pending_timestamp_seconds",
    "Highest record timestamp of the segments whose records the replica lacks.",
    "with the source",
)
LAG_RECORDS: Final = _gauge(
    "lag_records",
    "Offsets between the replica's end and the source's, of the worst partition.",
    "with the source's rate; flat at a high value: nothing is replicated",
)
LAG_SECONDS: Final = _gauge(
    "lag_seconds",
    "Time since the source committed the oldest change that the replica lacks, of the worst partition.",
    "beyond what you promised for a fail-over",
)
ERRORS: Final = _gauge(
    "errors",
    "Partitions whose last round failed, by code and host.",
    "see [codes](#codes)",
    ("code", "host"),
)
BACKOFF: Final = _gauge(
    "backoff_seconds",
    "Longest pause before a failed partition is retried.",
    "up to `replica.retry.backoff.max.ms`; 0 after a success",
)
LAST_ATTEMPT: Final = _gauge(
    "last_attempt_timestamp_seconds",
    "Unix time of the latest round of any partition.",
    "it must rise while a process runs and the replica is not paused",
)
NEXT_ATTEMPT: Final = _gauge(
    "next_attempt_timestamp_seconds",
    "Unix time of the next retry of a failed partition. No sample if none failed.",
    "-",
)
LAST_SUCCESS: Final = _gauge(
    "last_success_timestamp_seconds",
    "Unix time since which at least one partition has had no successful round.",
    "it must rise; see the alerts below",
)
WORST_LAG: Final = _gauge(
    "partition_lag_seconds",
    "Lag of the partitions that are furthest behind.",
    "which logs to look at",
    subject=_PARTITION,
)
WORST_PENDING: Final = _gauge(
    "partition_pending_bytes", "Pending bytes of the partitions that have most.", _AS_ABOVE, subject=_PARTITION
)
FAILING: Final = _gauge(
    "partition_failing",
    "1 for partitions that wait, are broken or need a resync, the first ones by name.",
    "as above; the status has all",
    subject=_PARTITION,
)

ROUNDS: Final = _counter("rounds", "Rounds of partitions, including those that found nothing to do.", "it must rise")
COMMITS: Final = _counter(
    "commits",
    "Versions of the source that were committed at the replica.",
    "with the source's commits; it may skip some",
)
PINS: Final = _counter(
    "pins",
    "Versions that rounds held at the source while they copied.",
    "with large rounds, or rounds that are planned again",
)
PLANS_REPEATED: Final = _counter(
    "plans_repeated",
    "Rounds planned again, because the source had deleted an object before it was copied.",
    "often: raise `file.delete.delay.ms` at the source, or lower `replica.pin.min.bytes`",
)
SENT_BYTES: Final = _counter(
    "sent_bytes", "Stored bytes that this process sent to the replica.", "with what is appended and rewritten"
)
SENT_OBJECTS: Final = _counter("sent_objects", "Objects that this process sent to the replica.", _AS_ABOVE)
COPIED_BYTES: Final = _counter(
    "copied_bytes", "Stored bytes that the store copied itself, because both sides are in it.", _AS_ABOVE
)
COPIED_OBJECTS: Final = _counter("copied_objects", "Objects that the store copied itself.", _AS_ABOVE)
FOUND_OBJECTS: Final = _counter(
    "found_objects",
    "Objects that an interrupted round had already copied, and that were not sent again.",
    "rounds are interrupted often",
)
DELETED_OBJECTS: Final = _counter(
    "deleted_objects",
    "Objects deleted after the replica no longer named them.",
    "with the source's passes, `file.delete.delay.ms` later",
)
DELETED_ORPHANS: Final = _counter(
    "deleted_orphans",
    "Objects of interrupted rounds that were deleted, because no version names them.",
    "rounds are interrupted often",
)
FAILURES: Final = _counter("failures", "Failed rounds, by code.", "see [codes](#codes)", ("code",))

METRICS: Final[tuple[Metric, ...]] = (
    *(RUNNING, PARTITIONS, PAUSED, PENDING_BYTES, PENDING_RECORDS, PENDING_SEGMENTS, EARLIEST, LATEST),
    *(LAG_RECORDS, LAG_SECONDS, ERRORS, BACKOFF, LAST_ATTEMPT, NEXT_ATTEMPT, LAST_SUCCESS),
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
