"""The sink: appends Kafka topic partitions to the log, exactly once.

cli, supervisor       the command, and one process per task
task, worker          a task: set up, and its loop
group, assignment     which partitions it has, and how it may write them
batch, partition      records in, segments out
lane, sender          what waits for the store, off the main thread
rolling, budget, catchup, source, options, consumer      decisions, all pure
kafka                 what is asked of the cluster outside of the consumer
"""
