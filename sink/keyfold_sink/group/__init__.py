"""A task's part in the consumer group: its assigned partitions, and the steps until it may write each of them.

group           the assigned partitions, the client's callbacks, and group offsets for Kafka's tools
assignment      the stages of one partition, and the claims
membership      confirm the membership before a claim
fetching        which partitions the client fetches
catchup         targets of a sink that runs until it has caught up
error_scope     how far an error reaches: a retry, the partition, the task
client_errors   errors that the Kafka client reports
"""
