"""A task's part in the consumer group: its assigned partitions, and the steps until it may write each of them.

group           the assigned partitions, and the client's callbacks
assignment      the stages of one partition, and the claims
membership      confirm the membership before a claim
fetching        which partitions the client fetches
offsets         commit group offsets, for Kafka's tools
catchup         targets of a sink that runs until it has caught up
verdict         how far an error reaches: a retry, the partition, the task
troubles        errors that the Kafka client reports
"""
