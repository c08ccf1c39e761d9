"""Write records as committed segments.

batch               columns of a batch of the Kafka client
partition           one partition's writer
segment_upload      upload one segment and its index
skips               gaps and dead letters of the next commits
serial_queue        the serial queue of one partition's store operations, and its retries
io_pool             the I/O threads that all serial queues share
memory_budget       which segments to finish, and when to pause, within `buffer.memory`
partition_health    the last error of a partition, and since when it blocks
credential_renewal  retry requests that the store refuses, with renewed credentials
"""
