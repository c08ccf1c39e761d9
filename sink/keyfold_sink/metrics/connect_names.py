"""The sink's metrics that Kafka Connect also has: name, help text, and when the value rises.

Each uses the name that the Prometheus JMX exporter gives to Connect's metric by default. Confluent's rules and
Strimzi's metrics reporter use the same names:

    kafka.connect:type=sink-task-metrics,connector=..,task=..  sink-record-read-total
        ->  kafka_connect_sink_task_metrics_sink_record_read_total{connector, task}

So dashboards for Connect show the sink. The metrics that Connect does not have are in `names`.
"""

from __future__ import annotations

from typing import Final

from keyfold.metrics.metric import Metric
from keyfold_sink.metrics import definitions as of
from keyfold_sink.metrics.definitions import info, of_errors, of_rebalance, of_sink_task, of_task, of_worker

# sink-task-metrics

READ: Final = of_sink_task(
    "sink-record-read-total",
    "Records that the sink task has read from Kafka.",
    "with the topic's traffic; flat while the lag grows: the task does not read, see the pauses below",
)
READ_RATE: Final = of_sink_task(
    "sink-record-read-rate", "Records per second that the sink task read from Kafka, over the last minute.", "as above"
)
SENT: Final = of_sink_task(
    "sink-record-send-total",
    "Records that the sink task has put into log segments. Records that were skipped, or read only to verify the "
    "log's end, do not count.",
    "with the records read",
)
SENT_RATE: Final = of_sink_task(
    "sink-record-send-rate",
    "Records per second that the sink task put into log segments, over the last minute.",
    "as above",
)
TASK_LAG: Final = of_sink_task(
    "sink-record-lag-max",
    "Offsets between the sink task's reading position in Kafka and the end of the log in object storage, for the "
    "partition with the most. This is not the lag behind the topic, which is `keyfold_sink_lag_records`.",
    "until `segment.ms` or `segment.bytes` is reached; above that: the store is slow",
)
PARTITIONS: Final = of_sink_task(
    "partition-count", "Topic partitions that are assigned to the sink task.", "with a rebalance"
)
OFFSET_COMMITS: Final = of_sink_task(
    "offset-commit-seq-no",
    "Offset commits that the sink task has sent to its consumer group.",
    "with every commit to the group",
)
OFFSETS_COMMITTED: Final = of_sink_task(
    "offset-commit-completion-total",
    "Offset commits of the sink task that its consumer group has accepted. They only show progress; commits that "
    "make records durable are `keyfold_sink_commits_total`.",
    "with every commit to the group",
)
OFFSETS_COMMITTED_RATE: Final = of_sink_task(
    "offset-commit-completion-rate",
    "Offset commits of the sink task per second that its consumer group accepted, over the last minute.",
    "as above",
)
OFFSETS_LATE: Final = of_sink_task(
    "offset-commit-skip-total",
    "Responses to offset commits of the sink task for partitions that were revoked meanwhile.",
    "with rebalances",
)
OFFSETS_LATE_RATE: Final = of_sink_task(
    "offset-commit-skip-rate",
    "Responses per second to offset commits of the sink task for partitions that were revoked meanwhile, over the "
    "last minute.",
    "as above",
)
PUT_AVG: Final = of_sink_task(
    "put-batch-avg-time-ms",
    "Mean time in milliseconds that the sink task needed to check, encode and compress a batch of records, over "
    "the last minute.",
    "with larger batches or a busy machine",
)
PUT_MAX: Final = of_sink_task(
    "put-batch-max-time-ms",
    "Longest time in milliseconds that the sink task needed to check, encode and compress a batch of records, in "
    "the last minute.",
    "as above",
)
ACTIVE: Final = of_sink_task(
    "sink-record-active-count",
    "Records of the sink task in log segments that are not committed yet.",
    "until a segment is rolled; without limit: the store is slow or does not answer",
)
ACTIVE_AVG: Final = of_sink_task(
    "sink-record-active-count-avg",
    "Mean number of records of the sink task in log segments that are not committed yet, over the last minute.",
    "as above",
)
ACTIVE_MAX: Final = of_sink_task(
    "sink-record-active-count-max",
    "Highest number of records of the sink task in log segments that are not committed yet, in the last minute.",
    "as above",
)

# connector-task-metrics

TASK_STATUS: Final = info(
    "connector-task-metrics",
    "status",
    of.TASK,
    "1 for the current state of the sink task, in the label `status`, in lower case. Other states have no sample.",
    '`status="failed"`: read the task\'s trace in `GET /connectors/<name>/status`',
)
RUNNING_RATIO: Final = of_task(
    "running-ratio", "Share of the sink task's lifetime in which the task was running, from 0 to 1.", "1 is good"
)
PAUSE_RATIO: Final = of_task(
    "pause-ratio",
    "Share of the sink task's lifetime in which the task was paused on request, from 0 to 1.",
    "with pauses",
)
BATCH_AVG: Final = of_task(
    "batch-size-avg",
    "Mean number of records in a batch that the sink task read from Kafka, over the last minute.",
    "with the rate",
)
BATCH_MAX: Final = of_task(
    "batch-size-max",
    "Records in the largest batch that the sink task read from Kafka in the last minute.",
    "with the rate",
)
OFFSETS_AVG: Final = of_task(
    "offset-commit-avg-time-ms",
    "Mean time in milliseconds until the consumer group answered an offset commit of the sink task, over the last "
    "minute.",
    "the broker is slow",
)
OFFSETS_MAX: Final = of_task(
    "offset-commit-max-time-ms",
    "Longest time in milliseconds until the consumer group answered an offset commit of the sink task, in the "
    "last minute.",
    "as above",
)
OFFSETS_GOOD: Final = of_task(
    "offset-commit-success-percentage",
    "Share of the sink task's offset commits that its consumer group accepted, from 0 to 1.",
    "-",
)
OFFSETS_BAD: Final = of_task(
    "offset-commit-failure-percentage",
    "Share of the sink task's offset commits that its consumer group refused, from 0 to 1. A refusal is harmless, "
    "because the task sends the offsets again.",
    "with rebalances; for long: the broker does not answer, or the sink has no right to the group",
)

# task-error-metrics

RECORD_FAILURES: Final = of_errors(
    "total-record-failures", "Records of the sink task that a converter refused.", "a producer has changed"
)
RECORD_ERRORS: Final = of_errors(
    "total-record-errors",
    "Errors of converters in the sink task. A record is checked once, so each refused record is one error.",
    "as above",
)
RECORDS_SKIPPED: Final = of_errors(
    "total-records-skipped",
    "Records that the sink task skipped with `errors.tolerance=all`. The log records each as a gap in its offsets.",
    "see the causes in `keyfold_sink_records_skipped_total`",
)
RETRIES: Final = of_errors(
    "total-retries",
    "Calls of the sink task to object storage or to Kafka that were retried after an error.",
    "the store or Kafka does not answer",
)
ERRORS_LOGGED: Final = of_errors(
    "total-errors-logged",
    "Records of the sink task that a converter refused and that were written to the process's log.",
    "with refused records and `errors.log.enable`",
)
DEAD_LETTERS: Final = of_errors(
    "deadletterqueue-produce-requests",
    "Records that the sink task has sent to the dead letter topic.",
    "with refused records",
)
DEAD_LETTERS_FAILED: Final = of_errors(
    "deadletterqueue-produce-failures",
    "Records that the sink task could not send to the dead letter topic. No record is lost: the partition's "
    "commits wait, or the partition fails.",
    "the topic does not exist, or the sink must not write to it",
)
LAST_ERROR: Final = of_errors(
    "last-error-timestamp",
    "Unix time in milliseconds when a converter of the sink task last refused a record; 0 if none was refused.",
    "with refused records",
    is_growing_gauge=False,
)

# connector-metrics

CONNECTOR: Final = Metric(
    "kafka_connect_connector_metrics",
    "unknown",
    "1 in four samples for each sink, each with one of the labels `status`, `connector_class`, `connector_type` "
    "and `connector_version`, as with Confluent's rules.",
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
    "1 for the state of the sink, in the label `status`: running, paused, stopped, or failed if every task of "
    "this worker has failed.",
    "as above",
)
CLASS: Final = info(
    "connector-metrics", "connector-class", of.CONNECTOR, "1 for each sink, with its `connector.class` as a label.", "-"
)
TYPE: Final = info(
    "connector-metrics",
    "connector-type",
    of.CONNECTOR,
    "1 for each sink, with the connector's type as a label, which is `sink`.",
    "-",
)
VERSION: Final = info(
    "connector-metrics",
    "connector-version",
    of.CONNECTOR,
    "1 for each sink, with the version of keyfold as a label.",
    "-",
)

# connect-worker-metrics

CONNECTORS: Final = of_worker("connector-count", "Sinks that this worker runs: 1, or 0 while the sink is stopped.", "-")
TASKS: Final = of_worker("task-count", "Sink tasks of this worker, including failed ones.", "-")
CONNECTOR_STARTS: Final = of_worker(
    "connector-startup-attempts-total", "Starts of the sink by this worker.", "restarts"
)
CONNECTOR_STARTED: Final = of_worker(
    "connector-startup-success-total", "Starts of the sink by this worker after which a task ran.", "restarts"
)
CONNECTOR_NOT_STARTED: Final = of_worker(
    "connector-startup-failure-total",
    "Starts of the sink by this worker after which every task failed.",
    "read the trace",
)
CONNECTOR_STARTED_SHARE: Final = of_worker(
    "connector-startup-success-percentage",
    "Share of the starts of the sink by this worker after which a task ran, from 0 to 1.",
    "-",
)
CONNECTOR_NOT_STARTED_SHARE: Final = of_worker(
    "connector-startup-failure-percentage",
    "Share of the starts of the sink by this worker after which every task failed, from 0 to 1.",
    "-",
)
TASK_STARTS: Final = of_worker(
    "task-startup-attempts-total",
    "Starts of sink task processes by this worker.",
    "without a requested restart: tasks crash and are replaced; the log says why",
)
TASK_STARTED: Final = of_worker(
    "task-startup-success-total",
    "Starts of sink tasks by this worker after which the task ran. A task that was stopped earlier counts neither "
    "as success nor as failure.",
    "as above",
)
TASK_NOT_STARTED: Final = of_worker(
    "task-startup-failure-total",
    "Starts of sink tasks by this worker after which the task failed before running.",
    "read the trace",
)
TASK_STARTED_SHARE: Final = of_worker(
    "task-startup-success-percentage",
    "Share of the starts of sink tasks by this worker after which the task ran, from 0 to 1.",
    "-",
)
TASK_NOT_STARTED_SHARE: Final = of_worker(
    "task-startup-failure-percentage",
    "Share of the starts of sink tasks by this worker after which the task failed before running, from 0 to 1.",
    "-",
)

TASKS_TOTAL: Final = of_worker(
    "connector-total-task-count", "Sink tasks of this worker, in any state.", "-", of.CONNECTOR
)
TASKS_RUNNING: Final = of_worker(
    "connector-running-task-count",
    "Sink tasks of this worker that are running.",
    "should equal the total",
    of.CONNECTOR,
)
TASKS_PAUSED: Final = of_worker(
    "connector-paused-task-count", "Sink tasks of this worker that are paused.", "-", of.CONNECTOR
)
TASKS_FAILED: Final = of_worker(
    "connector-failed-task-count",
    "Sink tasks of this worker that have failed, or that have failed partitions.",
    "read the trace, remove the cause, then restart the task",
    of.CONNECTOR,
)
TASKS_UNASSIGNED: Final = of_worker(
    "connector-unassigned-task-count",
    "Sink tasks of this worker that have not joined the consumer group yet.",
    "for longer than a minute: Kafka or the store does not answer",
    of.CONNECTOR,
)
TASKS_DESTROYED: Final = of_worker(
    "connector-destroyed-task-count", "Sink tasks of this worker that were stopped on request.", "-", of.CONNECTOR
)
TASKS_RESTARTING: Final = of_worker(
    "connector-restarting-task-count",
    "Sink tasks of this worker that crashed and will be restarted.",
    "see the log",
    of.CONNECTOR,
)

# connect-worker-rebalance-metrics

EPOCH: Final = of_rebalance(
    "epoch",
    "Version of the sink's desired state (running, paused, ...) that this worker has carried out. All workers of "
    "a sink should show one version.",
    "with each request; lower than another worker's for long: this worker cannot read the bucket",
)
REBALANCES: Final = of_rebalance(
    "completed-rebalances-total",
    "Rebalances that the sink tasks of this worker have completed by taking over all newly assigned partitions.",
    "workers join, leave or crash; otherwise: tasks miss the session timeout, see `session.timeout.ms`",
)
REBALANCING: Final = of_rebalance(
    "rebalancing",
    "1 while a sink task of this worker waits for partitions or takes them over, otherwise 0.",
    "always 1: the task is stuck",
)
REBALANCE_AVG: Final = of_rebalance(
    "rebalance-avg-time-ms",
    "Mean time in milliseconds of a rebalance of this worker's sink tasks, until all partitions were taken over "
    "or released, over the last minute.",
    "the store is slow, or there are many partitions",
)
REBALANCE_MAX: Final = of_rebalance(
    "rebalance-max-time-ms",
    "Longest time in milliseconds of a rebalance of this worker's sink tasks in the last minute.",
    "as above",
)
SINCE_REBALANCE: Final = of_rebalance(
    "time-since-last-rebalance-ms",
    "Time in milliseconds since the sink tasks of this worker last completed a rebalance.",
    "-",
)

CONNECT_METRICS: Final[tuple[Metric, ...]] = tuple(
    found for found in tuple(globals().values()) if isinstance(found, Metric)
)
"""Connect's metrics in the order of the documentation."""
