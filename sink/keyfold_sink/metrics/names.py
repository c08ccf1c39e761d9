"""Every metric of the sink: its name, its kind, what it says, when it rises. What is served is declared here.

What Kafka Connect has too stands under the name that the Prometheus JMX exporter makes of Connect's by itself, and that
Confluent's rules and Strimzi's metrics reporter keep:

    kafka.connect:type=sink-task-metrics,connector=..,task=..  sink-record-read-total
        ->  kafka_connect_sink_task_metrics_sink_record_read_total{connector, task}

so a board for Connect shows the sink. What Connect does not have is under `keyfold_sink_`. docs/metrics-sink.md is
printed from this table.
"""

from __future__ import annotations

from typing import Final

from keyfold_sink.metrics.metric import (
    Metric,
    Scope,
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
from keyfold_sink.writing.rolling import RollReason

PARTITIONS_SHOWN: Final = 10
"""So many partitions at most have a sample of their own in a metric, unless all are asked for: the worst by it."""

SECONDS_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets."""

ROLL_REASONS: Final = tuple(reason.value for reason in RollReason)
SET_BACK_CAUSES: Final = ("fenced", "offset-moved", "upload-lost", "commit-unknown", "position", "other")

REPLACED_CAUSES: Final = ("crashed", "hung")


# sink-task-metrics

READ: Final = of_sink_task(
    "sink-record-read-total",
    "Records read from Kafka.",
    "with the topic; flat while the lag grows: the task does not read, see the pauses below",
)
READ_RATE: Final = of_sink_task("sink-record-read-rate", "Records read a second, over half a minute or so.", "the same")
SENT: Final = of_sink_task(
    "sink-record-send-total",
    "Records put into segments. Fewer than read: some were skipped, or were read again only to prove the log's end.",
    "with the records read",
)
SENT_RATE: Final = of_sink_task("sink-record-send-rate", "Records put into segments a second.", "the same")
TASK_LAG: Final = of_sink_task(
    "sink-record-lag-max",
    "Offsets between where reading has got to and the log's end, of the worst partition. As in Connect it is not the "
    "lag behind the topic: see `keyfold_sink_lag_records`.",
    "towards what `segment.ms` or `segment.bytes` gathers; beyond it: the store is slow",
)
PARTITIONS: Final = of_sink_task("partition-count", "Partitions that the group gave to this task.", "with a rebalance")
OFFSET_COMMITS: Final = of_sink_task(
    "offset-commit-seq-no", "Offset commits that were sent to the group.", "with every commit to the group"
)
OFFSETS_COMMITTED: Final = of_sink_task(
    "offset-commit-completion-total",
    "Offset commits that the group took. They only show progress: what counts is the manifest, see "
    "`keyfold_sink_commits_total`.",
    "with every commit to the group",
)
OFFSETS_COMMITTED_RATE: Final = of_sink_task("offset-commit-completion-rate", "The same a second.", "the same")
OFFSETS_LATE: Final = of_sink_task(
    "offset-commit-skip-total",
    "Answers to offset commits of partitions that were given away meanwhile.",
    "with rebalances",
)
OFFSETS_LATE_RATE: Final = of_sink_task("offset-commit-skip-rate", "The same a second.", "the same")
PUT_AVG: Final = of_sink_task(
    "put-batch-avg-time-ms", "Time to check, encode and compress a batch.", "with larger batches or a busy machine"
)
PUT_MAX: Final = of_sink_task("put-batch-max-time-ms", "The longest of the last minute.", "the same")
ACTIVE: Final = of_sink_task(
    "sink-record-active-count",
    "Records in segments that are not committed yet.",
    "until a segment is rolled; without end: the store is slow or away",
)
ACTIVE_AVG: Final = of_sink_task("sink-record-active-count-avg", "Their mean over the last minute.", "the same")
ACTIVE_MAX: Final = of_sink_task("sink-record-active-count-max", "The most of the last minute.", "the same")

# connector-task-metrics

TASK_STATUS: Final = info(
    "connector-task-metrics",
    "status",
    Scope.TASK,
    "1, with the task's state as label, in lower case as in Connect; a state that is over has no sample.",
    '`status="failed"`: read the task\'s trace in `GET /connectors/<name>/status`',
)
RUNNING_RATIO: Final = of_task("running-ratio", "Share of the task's life that it was running.", "1 is good")
PAUSE_RATIO: Final = of_task("pause-ratio", "Share of the task's life that it was paused on request.", "with pauses")
BATCH_AVG: Final = of_task("batch-size-avg", "Records of a batch.", "with the rate")
BATCH_MAX: Final = of_task("batch-size-max", "Records of the largest batch of the last minute.", "with the rate")
OFFSETS_AVG: Final = of_task(
    "offset-commit-avg-time-ms", "Until the group answered an offset commit.", "broker is slow"
)
OFFSETS_MAX: Final = of_task("offset-commit-max-time-ms", "The longest of the last minute.", "the same")
OFFSETS_GOOD: Final = of_task(
    "offset-commit-success-percentage", "Share of offset commits that the group took, 0 to 1 as in Connect.", "-"
)
OFFSETS_BAD: Final = of_task(
    "offset-commit-failure-percentage",
    "Share of offset commits that it refused, 0 to 1. Harmless: they are sent again.",
    "with rebalances; for long: the broker is away, or a right to the group is missing",
)

# task-error-metrics

RECORD_FAILURES: Final = of_errors("total-record-failures", "Records that a converter refused.", "producers change")
RECORD_ERRORS: Final = of_errors(
    "total-record-errors", "The same: a refused record is looked at once, and not again.", "producers change"
)
RECORDS_SKIPPED: Final = of_errors(
    "total-records-skipped",
    "Records left out with `errors.tolerance=all`; each is recorded in the log's gaps.",
    "see the causes in `keyfold_sink_records_skipped_total`",
)
RETRIES: Final = of_errors(
    "total-retries", "Calls to the store or to Kafka that were repeated after an error.", "the store or Kafka is away"
)
ERRORS_LOGGED: Final = of_errors("total-errors-logged", "Refused records that were logged.", "`errors.log.enable`")
DEAD_LETTERS: Final = of_errors(
    "deadletterqueue-produce-requests", "Records sent to the dead letter topic.", "with refused records"
)
DEAD_LETTERS_FAILED: Final = of_errors(
    "deadletterqueue-produce-failures",
    "Records that could not be sent there. The partition's commits wait, or it fails: none is lost.",
    "the topic does not exist, or is not writable",
)
LAST_ERROR: Final = of_errors(
    "last-error-timestamp",
    "When the last record was refused, ms since the epoch; 0: none was.",
    "with refused records",
    adds_up=False,
)

# connector-metrics

CONNECTOR: Final = Metric(
    "kafka_connect_connector_metrics",
    "unknown",
    Scope.CONNECTOR,
    "1, four times, each with one of the labels below, as Confluent's rules have it.",
    "-",
    "connector-metrics (Confluent's rules)",
    ("status", "connector_class", "connector_type", "connector_version"),
)
STATUS: Final = info(
    "connector-metrics",
    "status",
    Scope.CONNECTOR,
    "1, with the sink's state as label: running, paused, stopped, or failed when every task of this worker is.",
    "as above",
)
CLASS: Final = info("connector-metrics", "connector-class", Scope.CONNECTOR, "1, with `connector.class`.", "-")
TYPE: Final = info("connector-metrics", "connector-type", Scope.CONNECTOR, "1; always `sink`.", "-")
VERSION: Final = info("connector-metrics", "connector-version", Scope.CONNECTOR, "1, with keyfold's version.", "-")

# connect-worker-metrics

CONNECTORS: Final = of_worker("connector-count", "1: a worker runs one sink. 0 while it is stopped.", "-")
TASKS: Final = of_worker("task-count", "Tasks of this worker, also failed ones.", "-")
CONNECTOR_STARTS: Final = of_worker(
    "connector-startup-attempts-total", "Starts of the sink in this worker.", "restarts"
)
CONNECTOR_STARTED: Final = of_worker("connector-startup-success-total", "Starts after which a task ran.", "restarts")
CONNECTOR_NOT_STARTED: Final = of_worker(
    "connector-startup-failure-total", "Starts after which every task failed before it ran.", "read the trace"
)
CONNECTOR_STARTED_SHARE: Final = of_worker("connector-startup-success-percentage", "Their share, 0 to 1.", "-")
CONNECTOR_NOT_STARTED_SHARE: Final = of_worker("connector-startup-failure-percentage", "The same.", "-")
TASK_STARTS: Final = of_worker(
    "task-startup-attempts-total",
    "Starts of task processes.",
    "without a restart asked for: tasks die and are replaced; the log says by what",
)
TASK_STARTED: Final = of_worker(
    "task-startup-success-total",
    "Starts after which the task ran; one that was told to stop before counts for neither.",
    "as above",
)
TASK_NOT_STARTED: Final = of_worker(
    "task-startup-failure-total", "Starts after which it failed before it ran.", "read the trace"
)
TASK_STARTED_SHARE: Final = of_worker("task-startup-success-percentage", "Their share, 0 to 1.", "-")
TASK_NOT_STARTED_SHARE: Final = of_worker("task-startup-failure-percentage", "The same.", "-")

_STATE_TEXT: Final = "Tasks of this worker that are {}."
TASKS_TOTAL: Final = of_worker("connector-total-task-count", "Tasks of this worker.", "-", Scope.CONNECTOR)
TASKS_RUNNING: Final = of_worker(
    "connector-running-task-count", _STATE_TEXT.format("running"), "it should be all", Scope.CONNECTOR
)
TASKS_PAUSED: Final = of_worker("connector-paused-task-count", _STATE_TEXT.format("paused"), "-", Scope.CONNECTOR)
TASKS_FAILED: Final = of_worker(
    "connector-failed-task-count",
    "Tasks of this worker that have failed, wholly or in some partitions.",
    "read the trace; mend; then restart the task",
    Scope.CONNECTOR,
)
TASKS_UNASSIGNED: Final = of_worker(
    "connector-unassigned-task-count",
    "Tasks of this worker that have not joined their group yet.",
    "for longer than a minute: Kafka or the store does not answer",
    Scope.CONNECTOR,
)
TASKS_DESTROYED: Final = of_worker(
    "connector-destroyed-task-count", "Tasks that were stopped on request.", "-", Scope.CONNECTOR
)
TASKS_RESTARTING: Final = of_worker(
    "connector-restarting-task-count", "Tasks that died and will be started again.", "see the log", Scope.CONNECTOR
)

# connect-worker-rebalance-metrics

EPOCH: Final = of_rebalance(
    "epoch",
    "The newest version of the orders (pause, stop, ...) that this worker has carried out. As with Connect's "
    "generation all workers should show the same.",
    "with orders; less than another worker's for long: this one cannot read the bucket",
)
REBALANCES: Final = of_rebalance(
    "completed-rebalances-total",
    "Times that partitions came or went and all that came were claimed, over this worker's tasks.",
    "workers join, leave or die; without that: they are thrown out, see `session.timeout.ms`",
)
REBALANCING: Final = of_rebalance(
    "rebalancing", "1 while a task waits for partitions, or for claims.", "always 1: stuck"
)
REBALANCE_AVG: Final = of_rebalance(
    "rebalance-avg-time-ms",
    "From the group's word until all partitions of the task were claimed or given away.",
    "a slow store, or many partitions",
)
REBALANCE_MAX: Final = of_rebalance("rebalance-max-time-ms", "The longest of the last minute.", "the same")
SINCE_REBALANCE: Final = of_rebalance("time-since-last-rebalance-ms", "Since the last one was complete.", "-")

# What Connect's users miss: progress

LAG: Final = gauge(
    "lag_records",
    "Offsets between the logs' ends and the topics', summed over the task's partitions.",
    "the sink does not keep up, or does not move",
)
LAG_MAX: Final = gauge("lag_records_max", "The same of the worst partition.", "the same")
AGE_MAX: Final = gauge(
    "oldest_record_age_seconds",
    "Age, by its own timestamp, of the oldest record that was read and is not durable. After a backlog the records are "
    "old by themselves.",
    "beyond `segment.ms` and a minute: what is read does not become durable",
)
UNSENT_SECONDS: Final = gauge(
    "oldest_unsent_seconds",
    "Time since the oldest record that is not durable was read: the age above without the producers' clocks.",
    "beyond `segment.ms` and a minute: the store is slow or away",
)
STALLED_SECONDS: Final = gauge(
    "stalled_seconds",
    "How long the partition that stands still longest has had something to read without its log growing, whatever the "
    "reason; 0: none does. Not while it is paused on request.",
    "beyond `segment.ms` and a minute: it does not move",
)
BLOCKED_SECONDS: Final = gauge(
    "blocked_seconds",
    "How long the partition that waits longest has repeated something in vain; 0: none does. Failed ones apart.",
    "the store or Kafka is away, or refuses",
)
BLOCKED: Final = gauge("blocked_partitions", "Partitions that repeat something in vain.", "the same")
LAST_COMMIT: Final = gauge(
    "last_commit_timestamp_seconds", "Unix time of the task's last commit to any log.", "it must rise while data comes"
)
BY_STATE: Final = gauge(
    "partitions", "Partitions by their state.", '`state="FAILED"`: see the trace', labels=("state",)
)
COMMITS: Final = counter(
    "commits", "Commits to logs: of segments, or of an end that moved over a hole.", "it must rise while data comes"
)
COMMITTED: Final = counter("records_committed", "Records that became durable.", "it must rise while data comes")
OBJECTS: Final = counter("objects_written", "Objects of committed segments, by kind.", "with data", ("kind",))
OBJECT_BYTES: Final = counter("object_bytes_written", "Their bytes, as stored.", "with data", ("kind",))
VALUE_BYTES: Final = counter("value_bytes_read", "Bytes of the values read from Kafka, uncompressed.", "with data")
ROLLS: Final = counter(
    "rolls",
    "Segments finished, by the reason: bytes, records, time, memory, ...",
    'much `reason="memory"`: small segments, give the task more `buffer.memory`',
    ("reason",),
)
FLUSH_SECONDS: Final = histogram(
    "flush_seconds", "From the end of a segment until it was committed, repetitions included.", "a slow store"
)

# The store

REQUESTS: Final = counter(
    "store_requests", "Calls to the store, by operation. They cost money.", "small segments", ("operation",)
)
SENT_BYTES: Final = counter("store_sent_bytes", "Bytes sent to the store, refused requests included.", "with data")
RECEIVED_BYTES: Final = counter("store_received_bytes", "Bytes received from the store.", "long manifests")
REQUEST_SECONDS: Final = histogram(
    "store_request_seconds", "Time of a call to the store, failed ones included, by operation.", "-", ("operation",)
)
STORE_ERRORS: Final = counter(
    "store_errors",
    "Calls to the store that failed, by operation and by the store's own code (`SlowDown`, ...), `NoAnswer` where "
    "there was none. `PreconditionFailed` on `update` is how writers find out about each other.",
    "the store throttles, is away, or refuses",
    ("operation", "code"),
)

# Memory and queues

BUFFERED: Final = gauge(
    "buffered_bytes", "Bytes of segments that are filled or on their way.", "to the limit: the store is slow"
)
IN_FLIGHT: Final = gauge("in_flight_bytes", "Those of them that are on their way to the store.", "the same")
BUFFER_LIMIT: Final = gauge("buffer_limit_bytes", "The share of `buffer.memory` for them.", "-")
OPEN_SEGMENTS: Final = gauge("open_segments", "Segments that are being filled.", "with partitions that have data")
LANE_JOBS: Final = gauge(
    "lane_jobs",
    "Jobs for the store (uploads, commits, claims) that run or wait, over all partitions; eight run at once.",
    "above eight for long: the store is what limits",
)
PAUSED: Final = gauge("reading_paused", "1 while reading is paused because memory is full.", "the store is slow")
HELD: Final = gauge(
    "held_partitions",
    "Partitions that are not read although the others are, by the reason: their own commits take too long (`memory`), "
    "`schemas` are being asked for, or dead `letters` are not taken.",
    "the store throttles one prefix; the registry, or the dead letter topic, is away",
    labels=("reason",),
)
PAUSES: Final = counter("reading_pauses", "Times that it was paused for that.", "the same")
PAUSED_SECONDS: Final = counter("reading_paused_seconds", "Time without reading for that.", "the same")

# Claims and errors

CLAIMS: Final = counter("claims", "Partitions claimed.", "with rebalances and set-backs")
FENCES: Final = counter(
    "fences", "Partitions that another sink had claimed.", "two sinks on one log, or processes that hang"
)
SET_BACKS: Final = counter(
    "set_backs",
    "Times that a partition began again at its log's end, by cause.",
    "faults; no record is lost",
    ("cause",),
)
SKIPPED: Final = counter(
    "records_skipped", "Records left out of the log, by cause; see the log's gaps.", "producers change", ("cause",)
)
SOURCE_GAPS: Final = counter(
    "source_gaps",
    "Gaps recorded because of the source (`source.gap.policy=record`): records that were `lost` before they were read, "
    "or `tombstones` that may have been.",
    "retention overtakes the sink",
    ("cause",),
)
SCHEMA_LOOKUPS: Final = counter(
    "schema_lookups",
    "Questions to the Schema Registry, by what came of it: `found`, `unknown`, `unavailable`, `refused`, `failed`.",
    "with new schemas; without end: the registry is away, or more schemas are in use than are remembered",
    ("result",),
)

# The process

REPLACED: Final = Metric(
    "keyfold_sink_tasks_replaced_total",
    "counter",
    Scope.WORKER,
    "Tasks that were started again without being asked: they died (crashed), or did not report any more (hung).",
    "the log says what ended them",
    own_labels=("cause",),
    adds_up=True,
)
REPORT_AGE: Final = gauge("task_report_age_seconds", "Since the task's last report.", "beyond a minute: it hangs")
CPU: Final = counter("task_cpu_seconds", "CPU time of the task's process.", "1 a second: a core is full")
MEMORY: Final = gauge("task_resident_memory_bytes", "Resident memory of the task's process.", "more partitions")

# Partitions

PARTITION_LAG: Final = gauge(
    "partition_lag_records", "Offsets between the log's end and the topic's.", "which ones to look at", Scope.PARTITION
)
PARTITION_AGE: Final = gauge(
    "partition_oldest_record_age_seconds",
    "Age of the oldest record that was read and is not durable.",
    "which ones to look at",
    Scope.PARTITION,
)
PARTITION_COMMIT: Final = gauge(
    "partition_last_commit_timestamp_seconds",
    "Unix time of the partition's last commit; the worst are those with lag that committed longest ago.",
    "which ones to look at",
    Scope.PARTITION,
)
PARTITION_NEXT: Final = gauge(
    "partition_next_offset", "The log's end: all before it is durable. Of the partitions with the most lag.", "-",
    Scope.PARTITION,
)  # fmt: skip
PARTITION_END: Final = gauge("partition_end_offset", "The topic's end, of the same partitions.", "-", Scope.PARTITION)
PARTITION_STALLED: Final = gauge(
    "partition_stalled_seconds",
    "How long the partition has had something to read without its log growing.",
    "which ones to look at",
    Scope.PARTITION,
)
PARTITION_BLOCKED: Final = gauge(
    "partition_blocked_seconds",
    "How long the partition has repeated something in vain.",
    "which ones to look at",
    Scope.PARTITION,
)
PARTITION_FAILED: Final = gauge(
    "partition_failed", "1 for a partition that has failed.", "which ones to look at", Scope.PARTITION
)


METRICS: Final[tuple[Metric, ...]] = tuple(found for found in tuple(globals().values()) if isinstance(found, Metric))
"""All of them, in the order in which they are shown."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
