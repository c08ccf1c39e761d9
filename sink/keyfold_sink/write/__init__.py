"""Write records as committed segments.

batch           columns of a batch of the Kafka client
partition       one partition's writer
rolling         when a segment is finished
sender          upload one segment
skips           gaps and dead letters of the next commits
lane            the serial queue of one partition's store operations
senders         the I/O threads that all serial queues share
budget          the memory budget of a task
health          the last error of a partition, and since when it blocks
access          retry requests that the store refuses, with renewed credentials
"""
