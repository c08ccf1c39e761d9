"""A task's place in the consumer group: which partitions it has, and how each comes to be written."""
