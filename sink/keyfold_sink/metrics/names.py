"""The table of the sink's metrics: name, kind, help text, and when the value rises.

The metrics that Connect does not have are here, and begin with `keyfold_sink_`; `connect_names` has the others. A help
text is all that somebody sees of a metric in Prometheus: it names its subject and its unit, and needs no other text.
The tables of docs/metrics-sink.md are generated from these metrics.
"""

from __future__ import annotations

from typing import Final

from keyfold.metrics.metric import Metric
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.metrics import definitions as of
from keyfold_sink.metrics.connect_names import CONNECT_METRICS
from keyfold_sink.metrics.definitions import counter, gauge, histogram

PARTITIONS_SHOWN: Final = 10
"""Per-partition metrics are limited to this number of partitions, the worst ones first, unless all are requested."""

SECONDS_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets."""

ROLL_REASONS: Final = tuple(reason.value for reason in RollReason)
SET_BACK_CAUSES: Final = ("fenced", "offset-moved", "upload-lost", "commit-unknown", "position", "other")

REPLACED_CAUSES: Final = ("crashed", "hung")


# Progress, which Connect has no metrics for

LAG: Final = gauge(
    "lag_records",
    "Offsets between the logs' ends in object storage and the topics' ends in Kafka, summed over the sink task's "
    "partitions.",
    "the sink does not keep up, or makes no progress",
)
LAG_MAX: Final = gauge(
    "lag_records_max",
    "Offsets between the log's end in object storage and the topic's end in Kafka, for the sink task's partition "
    "with the most.",
    "as above",
)
AGE_MAX: Final = gauge(
    "oldest_record_age_seconds",
    "Age in seconds, by its timestamp, of the oldest record that the sink task has read and that is not durable "
    "yet. While the task works off a backlog, records are old when they are read.",
    "above `segment.ms` plus a minute: records that were read do not become durable",
)
UNSENT_SECONDS: Final = gauge(
    "oldest_unsent_seconds",
    "Time in seconds since the sink task read the oldest record that is not durable yet. Producers' clocks have "
    "no influence.",
    "above `segment.ms` plus a minute: the store is slow or does not answer",
)
STALLED_SECONDS: Final = gauge(
    "stalled_seconds",
    "Longest time in seconds that a partition of the sink task has had records to read while its log did not "
    "grow, for any reason; 0 if there is no such partition. Pauses on request do not count.",
    "above `segment.ms` plus a minute: the partition makes no progress",
)
BLOCKED_SECONDS: Final = gauge(
    "blocked_seconds",
    "Longest time in seconds that a partition of the sink task has retried an operation without success; 0 if "
    "there is no such partition. Failed partitions do not count.",
    "the store or Kafka does not answer, or refuses requests",
)
BLOCKED: Final = gauge(
    "blocked_partitions", "Partitions of the sink task that retry an operation without success.", "as above"
)
LAST_COMMIT: Final = gauge(
    "last_commit_timestamp_seconds",
    "Unix time in seconds of the sink task's last commit to any log.",
    "must rise while data arrives",
)
BY_STATE: Final = gauge(
    "partitions", "Partitions of the sink task, by state.", '`state="FAILED"`: see the trace', labels=("state",)
)
COMMITS: Final = counter(
    "commits",
    "Commits of the sink task to logs in object storage: of a segment, or of an end that moved over a gap in the "
    "offsets.",
    "must rise while data arrives",
)
COMMITTED: Final = counter(
    "records_committed",
    "Records of the sink task that became durable in object storage.",
    "must rise while data arrives",
)
OBJECTS: Final = counter(
    "objects_written", "Objects of committed log segments that the sink task wrote, by kind.", "with data", ("kind",)
)
OBJECT_BYTES: Final = counter(
    "object_bytes_written",
    "Stored bytes of the objects of committed log segments that the sink task wrote, by kind.",
    "with data",
    ("kind",),
)
VALUE_BYTES: Final = counter(
    "value_bytes_read", "Uncompressed bytes of record values that the sink task read from Kafka.", "with data"
)
ROLLS: Final = counter(
    "rolls",
    "Log segments that the sink task finished, by reason, such as bytes, records, time or memory.",
    'often with `reason="memory"`: segments are small; increase `buffer.memory`',
    ("reason",),
)
FLUSH_SECONDS: Final = histogram(
    "flush_seconds",
    "Time in seconds from the end of a log segment of the sink task to its commit, including retries.",
    "the store is slow",
)

# The store

REQUESTS: Final = counter(
    "store_requests",
    "Calls of the sink task to object storage, by operation. They cost money.",
    "with small segments",
    ("operation",),
)
SENT_BYTES: Final = counter(
    "store_sent_bytes", "Bytes that the sink task sent to object storage, including refused requests.", "with data"
)
RECEIVED_BYTES: Final = counter(
    "store_received_bytes", "Bytes that the sink task received from object storage.", "with long manifests"
)
REQUEST_SECONDS: Final = histogram(
    "store_request_seconds",
    "Time in seconds of the sink task's calls to object storage, including failed calls, by operation.",
    "-",
    ("operation",),
)
STORE_ERRORS: Final = counter(
    "store_errors",
    "Calls of the sink task to object storage that failed, by operation and error code (`SlowDown`, ...); "
    "`NoAnswer` if the store did not answer. `PreconditionFailed` on `update` is normal when two writers meet.",
    "the store throttles, does not answer, or refuses requests",
    ("operation", "code"),
)

# Memory and queues

BUFFERED: Final = gauge(
    "buffered_bytes",
    "Bytes of log segments that the sink task is filling or uploading.",
    "to the limit: the store is slow",
)
IN_FLIGHT: Final = gauge("in_flight_bytes", "Bytes of log segments that the sink task is uploading.", "as above")
BUFFER_LIMIT: Final = gauge(
    "buffer_limit_bytes",
    "Most bytes of log segments that the sink task fills and uploads at a time: a share of `buffer.memory`.",
    "-",
)
OPEN_SEGMENTS: Final = gauge(
    "open_segments", "Log segments that the sink task is filling.", "with partitions that have data"
)
QUEUE_JOBS: Final = gauge(
    "lane_jobs",
    "Store operations of the sink task (uploads, commits, takeovers of partitions) that run or wait, over all "
    "partitions; at most eight run at once.",
    "above eight for long: the store is the bottleneck",
)
PAUSED: Final = gauge(
    "reading_paused",
    "1 while the sink task does not read from Kafka because its memory is full, otherwise 0.",
    "the store is slow",
)
HELD: Final = gauge(
    "held_partitions",
    "Partitions of the sink task that are paused while others are read, by reason: their commits take too long "
    "(`memory`), the task waits for `schemas`, or dead `letters` are not accepted.",
    "the store throttles a prefix, or the Schema Registry or the dead letter topic does not answer",
    labels=("reason",),
)
PAUSES: Final = counter(
    "reading_pauses", "Times that the sink task stopped reading from Kafka because its memory was full.", "as above"
)
PAUSED_SECONDS: Final = counter(
    "reading_paused_seconds",
    "Time in seconds that the sink task did not read from Kafka because its memory was full.",
    "as above",
)

# Claims and errors

CLAIMS: Final = counter(
    "claims", "Times that the sink task took over a partition's log as its writer.", "with rebalances and resets"
)
FENCES: Final = counter(
    "fences",
    "Times that the sink task had to stop writing to a partition's log because another writer had taken the log over.",
    "two sinks write one log, or tasks were suspended",
)
SET_BACKS: Final = counter(
    "set_backs",
    "Times that the sink task went back to a log's end and read a partition from there again, by cause.",
    "with faults; no record is lost",
    ("cause",),
)
SKIPPED: Final = counter(
    "records_skipped",
    "Records that the sink task skipped, by cause. The log records them as gaps in its offsets.",
    "a producer has changed",
    ("cause",),
)
SOURCE_GAPS: Final = counter(
    "source_gaps",
    "Gaps that the sink task recorded with `source.gap.policy=record`, by cause: Kafka deleted records before the "
    "sink read them (`lost`), or may have deleted tombstones (`tombstones`).",
    "the topic's retention overtakes the sink",
    ("cause",),
)
SCHEMA_LOOKUPS: Final = counter(
    "schema_lookups",
    "Requests of the sink task to the Schema Registry, by result: `found`, `unknown`, `unavailable`, `refused`, "
    "`failed`.",
    "with new schemas; without limit: the registry does not answer, or more schemas are in use than the cache holds",
    ("result",),
)

# The process

REPLACED: Final = Metric(
    "keyfold_sink_tasks_replaced_total",
    "counter",
    "Sink tasks that the worker replaced without a request, by cause: the process ended (`crashed`) or stopped "
    "reporting (`hung`).",
    "see the log for the reason",
    of.WORKER,
    ("cause",),
)
REPORT_AGE: Final = gauge(
    "task_report_age_seconds",
    "Time in seconds since the sink task last reported to its worker.",
    "above a minute: the task hangs",
)
CPU: Final = counter(
    "task_cpu_seconds", "CPU time in seconds of the sink task's process.", "by 1 per second: the task uses a whole core"
)
MEMORY: Final = gauge(
    "task_resident_memory_bytes", "Resident memory in bytes of the sink task's process.", "with more partitions"
)

# Partitions

PARTITION_LAG: Final = gauge(
    "partition_lag_records",
    "Offsets between the end of a partition's log in object storage and its end in Kafka, for the partitions with "
    "the most.",
    "shows which partitions to examine",
    of.PARTITION,
)
PARTITION_AGE: Final = gauge(
    "partition_oldest_record_age_seconds",
    "Age in seconds, by its timestamp, of a partition's oldest record that the sink has read and that is not "
    "durable yet, for the partitions with the oldest.",
    "as above",
    of.PARTITION,
)
PARTITION_COMMIT: Final = gauge(
    "partition_last_commit_timestamp_seconds",
    "Unix time in seconds of the sink's last commit to a partition's log, for the partitions with lag and the "
    "oldest commits.",
    "as above",
    of.PARTITION,
)
PARTITION_NEXT: Final = gauge(
    "partition_next_offset",
    "End offset of a partition's log in object storage, for the partitions with the most lag. All records before "
    "this offset are durable.",
    "-",
    of.PARTITION,
)
PARTITION_END: Final = gauge(
    "partition_end_offset",
    "End offset of a partition in Kafka, for the partitions with the most lag of the sink.",
    "-",
    of.PARTITION,
)
PARTITION_STALLED: Final = gauge(
    "partition_stalled_seconds",
    "Time in seconds that a partition has had records to read while the sink's log of the partition did not grow, "
    "for the partitions with the longest.",
    "shows which partitions to examine",
    of.PARTITION,
)
PARTITION_BLOCKED: Final = gauge(
    "partition_blocked_seconds",
    "Time in seconds that the sink has retried an operation on a partition without success, for the partitions "
    "with the longest.",
    "as above",
    of.PARTITION,
)
PARTITION_FAILED: Final = gauge(
    "partition_failed",
    "1 for a partition that has failed in the sink. Other partitions have no sample.",
    "as above",
    of.PARTITION,
)


METRICS: Final[tuple[Metric, ...]] = (
    *CONNECT_METRICS,
    *(found for found in tuple(globals().values()) if isinstance(found, Metric)),
)
"""All metrics in the order of the documentation."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
