"""The sink: appends Kafka topic partitions to the log, exactly once.

cli, running          the command, and a worker: a supervisor, one process per task, what all workers share
rest, service         the REST API, and what it asks
wire, status, task_orders      what goes between a supervisor and its tasks, and between workers
task, worker          a task: set up, and its loop
group, membership, assignment, fetching    which partitions it has, how it may write them, which it reads
reading, batch, partition      records in, segments out
relief, flushing, background    what the loop does besides: memory, waiting for commits, asking without waiting
report, health, troubles, verdict    what it says of itself, and what an error means
lane, sender, senders          what waits for the store, off the main thread
rolling, budget, catchup, source, options, consumer      decisions, all pure
kafka                 what is asked of the cluster outside of the consumer
"""
