"""The sink: appends Kafka topic partitions to the log, exactly once.

cli, config       the command and its configuration
running           a worker: the supervisor of the tasks' processes, and the state that all workers share
rest, service     the REST API, and the service that it calls
wire, status      messages between a supervisor and its tasks; the status of workers and tasks
task              one task: its main loop, reports, backpressure and flushes
group             the consumer group: assigned partitions, claims, fetching
kafka             requests to Kafka outside of the consumer
convert, rejects  record validation and the Schema Registry; rejected records and dead letters
writing           one partition's writer: segments, uploads and commits
metrics           the sink's metrics
progress, process the progress line at a terminal; the settings of a task's process
"""
