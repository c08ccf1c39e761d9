"""The table of the sink's metrics: name, kind, help text, and when the value rises.

A metric that Kafka Connect also has uses the name that the Prometheus JMX exporter gives to Connect's metric by
default. Confluent's rules and Strimzi's metrics reporter use the same names:

    kafka.connect:type=sink-task-metrics,connector=..,task=..  sink-record-read-total
        ->  kafka_connect_sink_task_metrics_sink_record_read_total{connector, task}

So dashboards for Connect show the sink. Metrics that Connect does not have begin with `keyfold_sink_`. The tables of
docs/metrics-sink.md are generated from this table.
"""

from __future__ import annotations

from typing import Final

from keyfold.metrics.metric import Metric
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.metrics import definitions as of
from keyfold_sink.metrics.definitions import (
    counter,
    gauge,
    histogram,
    info,
    of_errors,
    of_rebalance,
    of_sink_task,
    of_task,
    of_worker,
)

PARTITIONS_SHOWN: Final = 10
"""Per-partition metrics are limited to this number of partitions, the worst ones first, unless all are requested."""

SECONDS_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets."""

ROLL_REASONS: Final = tuple(reason.value for reason in RollReason)
SET_BACK_CAUSES: Final = ("fenced", "offset-moved", "upload-lost", "commit-unknown", "position", "other")

REPLACED_CAUSES: Final = ("crashed", "hung")


# sink-task-metrics

READ: Final = of_sink_task(
    "sink-record-read-total",
    "Records read from Kafka.",
    "with the topic's traffic; flat while the lag grows: the task does not read, see the pauses below",
)
READ_RATE: Final = of_sink_task("sink-record-read-rate", "Records read per second, in the last minute.", "as above")
SENT: Final = of_sink_task(
    "sink-record-send-total",
    "Records put into segments. Lower than records read if records were skipped, or read again only to verify the "
    "log's end.",
    "with the records read",
)
SENT_RATE: Final = of_sink_task("sink-record-send-rate", "Records put into segments per second.", "as above")
TASK_LAG: Final = of_sink_task(
    "sink-record-lag-max",
    "Offsets between the reading position and the log's end, of the worst partition. As in Connect, this is not the "
    "lag behind the topic: see `keyfold_sink_lag_records`.",
    "until `segment.ms` or `segment.bytes` is reached; above that: the store is slow",
)
PARTITIONS: Final = of_sink_task("partition-count", "Partitions assigned to the task.", "with a rebalance")
OFFSET_COMMITS: Final = of_sink_task(
    "offset-commit-seq-no", "Offset commits sent to the group.", "with every commit to the group"
)
OFFSETS_COMMITTED: Final = of_sink_task(
    "offset-commit-completion-total",
    "Offset commits that the group accepted. They only show progress; the metric of durable commits is "
    "`keyfold_sink_commits_total`.",
    "with every commit to the group",
)
OFFSETS_COMMITTED_RATE: Final = of_sink_task(
    "offset-commit-completion-rate", "Offset commits per second that the group accepted.", "as above"
)
OFFSETS_LATE: Final = of_sink_task(
    "offset-commit-skip-total",
    "Responses to offset commits for partitions that were revoked meanwhile.",
    "with rebalances",
)
OFFSETS_LATE_RATE: Final = of_sink_task(
    "offset-commit-skip-rate",
    "Responses per second to offset commits for partitions that were revoked meanwhile.",
    "as above",
)
PUT_AVG: Final = of_sink_task(
    "put-batch-avg-time-ms", "Mean time to check, encode and compress a batch.", "with larger batches or a busy machine"
)
PUT_MAX: Final = of_sink_task(
    "put-batch-max-time-ms", "Longest time to check, encode and compress a batch in the last minute.", "as above"
)
ACTIVE: Final = of_sink_task(
    "sink-record-active-count",
    "Records in segments that are not committed yet.",
    "until a segment is rolled; without limit: the store is slow or does not answer",
)
ACTIVE_AVG: Final = of_sink_task(
    "sink-record-active-count-avg", "Mean number of uncommitted records over the last minute.", "as above"
)
ACTIVE_MAX: Final = of_sink_task(
    "sink-record-active-count-max", "Highest number of uncommitted records in the last minute.", "as above"
)

# connector-task-metrics

TASK_STATUS: Final = info(
    "connector-task-metrics",
    "status",
    of.TASK,
    "1, with the task's state as label, in lower case as in Connect. Only the current state has a sample.",
    '`status="failed"`: read the task\'s trace in `GET /connectors/<name>/status`',
)
RUNNING_RATIO: Final = of_task("running-ratio", "Share of its lifetime that the task was running.", "1 is good")
PAUSE_RATIO: Final = of_task("pause-ratio", "Share of its lifetime that the task was paused on request.", "with pauses")
BATCH_AVG: Final = of_task("batch-size-avg", "Mean number of records in a batch.", "with the rate")
BATCH_MAX: Final = of_task("batch-size-max", "Records in the largest batch of the last minute.", "with the rate")
OFFSETS_AVG: Final = of_task(
    "offset-commit-avg-time-ms",
    "Mean time until the group answered an offset commit, over the last minute.",
    "the broker is slow",
)
OFFSETS_MAX: Final = of_task(
    "offset-commit-max-time-ms",
    "Longest time until the group answered an offset commit, in the last minute.",
    "as above",
)
OFFSETS_GOOD: Final = of_task(
    "offset-commit-success-percentage", "Share of offset commits that the group accepted, 0 to 1 as in Connect.", "-"
)
OFFSETS_BAD: Final = of_task(
    "offset-commit-failure-percentage",
    "Share of offset commits that the group refused, 0 to 1. Harmless, because the task sends them again.",
    "with rebalances; for long: the broker does not answer, or the sink has no right to the group",
)

# task-error-metrics

RECORD_FAILURES: Final = of_errors(
    "total-record-failures", "Records that a converter refused.", "a producer has changed"
)
RECORD_ERRORS: Final = of_errors(
    "total-record-errors",
    "Records that a converter refused; equal to the failures, because a record is checked once.",
    "as above",
)
RECORDS_SKIPPED: Final = of_errors(
    "total-records-skipped",
    "Records skipped with `errors.tolerance=all`. The log records each as a gap.",
    "see the causes in `keyfold_sink_records_skipped_total`",
)
RETRIES: Final = of_errors(
    "total-retries",
    "Calls to the store or to Kafka that were retried after an error.",
    "the store or Kafka does not answer",
)
ERRORS_LOGGED: Final = of_errors(
    "total-errors-logged", "Refused records that were logged.", "with refused records and `errors.log.enable`"
)
DEAD_LETTERS: Final = of_errors(
    "deadletterqueue-produce-requests", "Records sent to the dead letter topic.", "with refused records"
)
DEAD_LETTERS_FAILED: Final = of_errors(
    "deadletterqueue-produce-failures",
    "Records that could not be sent to the dead letter topic. No record is lost: the partition's commits wait, or the "
    "partition fails.",
    "the topic does not exist, or the sink must not write to it",
)
LAST_ERROR: Final = of_errors(
    "last-error-timestamp",
    "Time when the last record was refused, in ms since the epoch; 0 if none was.",
    "with refused records",
    is_growing_gauge=False,
)

# connector-metrics

CONNECTOR: Final = Metric(
    "kafka_connect_connector_metrics",
    "unknown",
    "1, in four samples, each with one of the labels below, as with Confluent's rules.",
    "-",
    of.CONNECTOR,
    ("status", "connector_class", "connector_type", "connector_version"),
    "connector-metrics (Confluent's rules)",
    of.CONNECT,
)
STATUS: Final = info(
    "connector-metrics",
    "status",
    of.CONNECTOR,
    "1, with the sink's state as label: running, paused, stopped, or failed if every task of this worker has failed.",
    "as above",
)
CLASS: Final = info("connector-metrics", "connector-class", of.CONNECTOR, "1, with `connector.class` as label.", "-")
TYPE: Final = info("connector-metrics", "connector-type", of.CONNECTOR, "1, with `sink` as label.", "-")
VERSION: Final = info(
    "connector-metrics", "connector-version", of.CONNECTOR, "1, with keyfold's version as label.", "-"
)

# connect-worker-metrics

CONNECTORS: Final = of_worker("connector-count", "1, because a worker runs one sink; 0 while the sink is stopped.", "-")
TASKS: Final = of_worker("task-count", "Tasks of this worker, including failed ones.", "-")
CONNECTOR_STARTS: Final = of_worker(
    "connector-startup-attempts-total", "Starts of the sink in this worker.", "restarts"
)
CONNECTOR_STARTED: Final = of_worker(
    "connector-startup-success-total", "Starts of the sink after which a task ran.", "restarts"
)
CONNECTOR_NOT_STARTED: Final = of_worker(
    "connector-startup-failure-total", "Starts of the sink after which every task failed.", "read the trace"
)
CONNECTOR_STARTED_SHARE: Final = of_worker(
    "connector-startup-success-percentage", "Share of starts of the sink after which a task ran, 0 to 1.", "-"
)
CONNECTOR_NOT_STARTED_SHARE: Final = of_worker(
    "connector-startup-failure-percentage", "Share of starts of the sink after which every task failed, 0 to 1.", "-"
)
TASK_STARTS: Final = of_worker(
    "task-startup-attempts-total",
    "Starts of task processes.",
    "without a requested restart: tasks crash and are replaced; the log says why",
)
TASK_STARTED: Final = of_worker(
    "task-startup-success-total",
    "Starts after which the task ran. A task that was stopped earlier counts neither as success nor as failure.",
    "as above",
)
TASK_NOT_STARTED: Final = of_worker(
    "task-startup-failure-total", "Starts after which the task failed before it ran.", "read the trace"
)
TASK_STARTED_SHARE: Final = of_worker(
    "task-startup-success-percentage", "Share of starts after which the task ran, 0 to 1.", "-"
)
TASK_NOT_STARTED_SHARE: Final = of_worker(
    "task-startup-failure-percentage", "Share of starts after which the task failed before it ran, 0 to 1.", "-"
)

_STATE_TEXT: Final = "Tasks of this worker that are {}."
TASKS_TOTAL: Final = of_worker("connector-total-task-count", "Tasks of this worker.", "-", of.CONNECTOR)
TASKS_RUNNING: Final = of_worker(
    "connector-running-task-count", _STATE_TEXT.format("running"), "should equal the total", of.CONNECTOR
)
TASKS_PAUSED: Final = of_worker("connector-paused-task-count", _STATE_TEXT.format("paused"), "-", of.CONNECTOR)
TASKS_FAILED: Final = of_worker(
    "connector-failed-task-count",
    "Tasks of this worker that have failed, or that have failed partitions.",
    "read the trace, remove the cause, then restart the task",
    of.CONNECTOR,
)
TASKS_UNASSIGNED: Final = of_worker(
    "connector-unassigned-task-count",
    "Tasks of this worker that have not joined the group yet.",
    "for longer than a minute: Kafka or the store does not answer",
    of.CONNECTOR,
)
TASKS_DESTROYED: Final = of_worker(
    "connector-destroyed-task-count", "Tasks that were stopped on request.", "-", of.CONNECTOR
)
TASKS_RESTARTING: Final = of_worker(
    "connector-restarting-task-count", "Tasks that crashed and will be restarted.", "see the log", of.CONNECTOR
)

# connect-worker-rebalance-metrics

EPOCH: Final = of_rebalance(
    "epoch",
    "The version of the desired state (running, paused, ...) that this worker has carried out. All workers should show "
    "the same version, as with Connect's generation.",
    "with each request; lower than another worker's for long: this worker cannot read the bucket",
)
REBALANCES: Final = of_rebalance(
    "completed-rebalances-total",
    "Completed rebalances of this worker's tasks: all newly assigned partitions were claimed.",
    "workers join, leave or crash; otherwise: tasks miss the session timeout, see `session.timeout.ms`",
)
REBALANCING: Final = of_rebalance(
    "rebalancing", "1 while a task waits for partitions or claims them.", "always 1: the task is stuck"
)
REBALANCE_AVG: Final = of_rebalance(
    "rebalance-avg-time-ms",
    "Mean time of a rebalance, until the task has claimed or released all partitions.",
    "the store is slow, or there are many partitions",
)
REBALANCE_MAX: Final = of_rebalance(
    "rebalance-max-time-ms", "Longest time of a rebalance in the last minute.", "as above"
)
SINCE_REBALANCE: Final = of_rebalance("time-since-last-rebalance-ms", "Time since the last completed rebalance.", "-")

# Progress, which Connect has no metrics for

LAG: Final = gauge(
    "lag_records",
    "Offsets between the logs' ends and the topics' ends, summed over the task's partitions.",
    "the sink does not keep up, or makes no progress",
)
LAG_MAX: Final = gauge("lag_records_max", "Offsets between log end and topic end, of the worst partition.", "as above")
AGE_MAX: Final = gauge(
    "oldest_record_age_seconds",
    "Age, by its timestamp, of the oldest record that was read and is not durable yet. While the sink works off a "
    "backlog, the records are old when they are read.",
    "above `segment.ms` plus a minute: records that were read do not become durable",
)
UNSENT_SECONDS: Final = gauge(
    "oldest_unsent_seconds",
    "Time since the oldest record that is not durable yet was read. Unlike the age, it does not depend on producers' "
    "clocks.",
    "above `segment.ms` plus a minute: the store is slow or does not answer",
)
STALLED_SECONDS: Final = gauge(
    "stalled_seconds",
    "Longest time that a partition has had records to read while its log did not grow, for any reason; 0 if there is "
    "no such partition. Pauses on request do not count.",
    "above `segment.ms` plus a minute: the partition makes no progress",
)
BLOCKED_SECONDS: Final = gauge(
    "blocked_seconds",
    "Longest time that a partition has retried an operation without success; 0 if there is no such partition. Failed "
    "partitions do not count.",
    "the store or Kafka does not answer, or refuses requests",
)
BLOCKED: Final = gauge("blocked_partitions", "Partitions that retry an operation without success.", "as above")
LAST_COMMIT: Final = gauge(
    "last_commit_timestamp_seconds", "Unix time of the task's last commit to any log.", "must rise while data arrives"
)
BY_STATE: Final = gauge("partitions", "Partitions by state.", '`state="FAILED"`: see the trace', labels=("state",))
COMMITS: Final = counter(
    "commits", "Commits to logs: of a segment, or of an end that moved over a gap.", "must rise while data arrives"
)
COMMITTED: Final = counter("records_committed", "Records that became durable.", "must rise while data arrives")
OBJECTS: Final = counter("objects_written", "Objects of committed segments, by kind.", "with data", ("kind",))
OBJECT_BYTES: Final = counter(
    "object_bytes_written", "Bytes of the objects of committed segments, as stored, by kind.", "with data", ("kind",)
)
VALUE_BYTES: Final = counter("value_bytes_read", "Bytes of values read from Kafka, uncompressed.", "with data")
ROLLS: Final = counter(
    "rolls",
    "Segments finished, by reason: bytes, records, time, memory, ...",
    'often with `reason="memory"`: segments are small; increase `buffer.memory`',
    ("reason",),
)
FLUSH_SECONDS: Final = histogram(
    "flush_seconds", "Time from the end of a segment to its commit, including retries.", "the store is slow"
)

# The store

REQUESTS: Final = counter(
    "store_requests", "Calls to the store, by operation. They cost money.", "with small segments", ("operation",)
)
SENT_BYTES: Final = counter("store_sent_bytes", "Bytes sent to the store, including refused requests.", "with data")
RECEIVED_BYTES: Final = counter("store_received_bytes", "Bytes received from the store.", "with long manifests")
REQUEST_SECONDS: Final = histogram(
    "store_request_seconds", "Time of calls to the store, including failed calls, by operation.", "-", ("operation",)
)
STORE_ERRORS: Final = counter(
    "store_errors",
    "Calls to the store that failed, by operation and the store's error code (`SlowDown`, ...); `NoAnswer` if the "
    "store did not answer. `PreconditionFailed` on `update` is normal when two writers meet.",
    "the store throttles, does not answer, or refuses requests",
    ("operation", "code"),
)

# Memory and queues

BUFFERED: Final = gauge(
    "buffered_bytes", "Bytes of segments that are being filled or uploaded.", "to the limit: the store is slow"
)
IN_FLIGHT: Final = gauge("in_flight_bytes", "Bytes of segments that are being uploaded.", "as above")
BUFFER_LIMIT: Final = gauge("buffer_limit_bytes", "Limit of the buffered bytes: a share of `buffer.memory`.", "-")
OPEN_SEGMENTS: Final = gauge("open_segments", "Segments that are being filled.", "with partitions that have data")
QUEUE_JOBS: Final = gauge(
    "lane_jobs",
    "Store operations (uploads, commits, claims) that run or wait, over all partitions; at most eight run at once.",
    "above eight for long: the store is the bottleneck",
)
PAUSED: Final = gauge("reading_paused", "1 while reading is paused because memory is full.", "the store is slow")
HELD: Final = gauge(
    "held_partitions",
    "Partitions that are paused while others are read, by reason: their commits take too long (`memory`), the task "
    "waits for `schemas`, or dead `letters` are not accepted.",
    "the store throttles a prefix, or the Schema Registry or the dead letter topic does not answer",
    labels=("reason",),
)
PAUSES: Final = counter("reading_pauses", "Times that reading was paused because memory was full.", "as above")
PAUSED_SECONDS: Final = counter(
    "reading_paused_seconds", "Time that reading was paused because memory was full.", "as above"
)

# Claims and errors

CLAIMS: Final = counter("claims", "Claims of partitions.", "with rebalances and resets")
FENCES: Final = counter(
    "fences",
    "Times that another writer had claimed a partition of the task.",
    "two sinks write one log, or tasks were suspended",
)
SET_BACKS: Final = counter(
    "set_backs",
    "Times that a partition was reset to its log's end, by cause.",
    "with faults; no record is lost",
    ("cause",),
)
SKIPPED: Final = counter(
    "records_skipped", "Records skipped, by cause; the log records them as gaps.", "a producer has changed", ("cause",)
)
SOURCE_GAPS: Final = counter(
    "source_gaps",
    "Gaps recorded with `source.gap.policy=record`: Kafka deleted records before the sink read them (`lost`), or may "
    "have deleted tombstones (`tombstones`).",
    "the topic's retention overtakes the sink",
    ("cause",),
)
SCHEMA_LOOKUPS: Final = counter(
    "schema_lookups",
    "Requests to the Schema Registry, by result: `found`, `unknown`, `unavailable`, `refused`, `failed`.",
    "with new schemas; without limit: the registry does not answer, or more schemas are in use than the cache holds",
    ("result",),
)

# The process

REPLACED: Final = Metric(
    "keyfold_sink_tasks_replaced_total",
    "counter",
    "Tasks that the worker replaced because the process ended (`crashed`) or stopped reporting (`hung`).",
    "see the log for the reason",
    of.WORKER,
    ("cause",),
)
REPORT_AGE: Final = gauge(
    "task_report_age_seconds", "Time since the task's last report.", "above a minute: the task hangs"
)
CPU: Final = counter(
    "task_cpu_seconds", "CPU time of the task's process.", "by 1 per second: the task uses a whole core"
)
MEMORY: Final = gauge("task_resident_memory_bytes", "Resident memory of the task's process.", "with more partitions")

# Partitions

PARTITION_LAG: Final = gauge(
    "partition_lag_records",
    "Offsets between log end and topic end.",
    "shows which partitions to examine",
    of.PARTITION,
)
PARTITION_AGE: Final = gauge(
    "partition_oldest_record_age_seconds",
    "Age of the partition's oldest record that was read and is not durable yet.",
    "as above",
    of.PARTITION,
)
PARTITION_COMMIT: Final = gauge(
    "partition_last_commit_timestamp_seconds",
    "Unix time of the partition's last commit. The worst partitions have lag and the oldest commit.",
    "as above",
    of.PARTITION,
)
PARTITION_NEXT: Final = gauge(
    "partition_next_offset",
    "End of the partition's log, below which all records are durable; for the partitions with the most lag.",
    "-",
    of.PARTITION,
)
PARTITION_END: Final = gauge(
    "partition_end_offset", "The partition's end offset in Kafka; for the same partitions.", "-", of.PARTITION
)
PARTITION_STALLED: Final = gauge(
    "partition_stalled_seconds",
    "Time that the partition has had records to read while its log did not grow.",
    "shows which partitions to examine",
    of.PARTITION,
)
PARTITION_BLOCKED: Final = gauge(
    "partition_blocked_seconds",
    "Time that the partition has retried an operation without success.",
    "as above",
    of.PARTITION,
)
PARTITION_FAILED: Final = gauge("partition_failed", "1 for a partition that has failed.", "as above", of.PARTITION)


METRICS: Final[tuple[Metric, ...]] = tuple(found for found in tuple(globals().values()) if isinstance(found, Metric))
"""All metrics in the order of the documentation."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
