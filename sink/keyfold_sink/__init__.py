"""The sink: appends Kafka topic partitions to the log, exactly once. Each line imports only from the lines below it.

cli                 the command `keyfold sink`
worker              a process with tasks: their supervisor, the state that all workers share, the service behind REST
connection_checks   `keyfold sink validate --connect`: try what a configuration names
task                one task: its main loop, reports, backpressure and flushes
rest                the REST API, which calls a `control`
validate            record validation, the Schema Registry, rejected records and dead letters
control, progress   the interface between REST and a sink; what `sink run` shows at a terminal
group               the consumer group: assigned partitions, claims, fetching
write               one partition's writer: segments, uploads and commits
kafka, metrics      Kafka clients and their requests; the sink's metrics
config              the table of options, all checks of a configuration, and values made from it
status              the status of workers, tasks and partitions
topic_partition     the key of a partition
"""
