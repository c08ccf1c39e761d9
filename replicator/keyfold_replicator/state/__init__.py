"""The state of one partition of a replica, as values.

states            states, and what an error means
figures           what is pending, and the lag
retry             when a failed round is retried
totals            counts of a replicator's work
partition_groups  one sentence for partitions that have the same to say
"""
