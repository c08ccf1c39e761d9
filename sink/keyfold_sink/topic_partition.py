"""The key of a topic partition: its topic and its number."""

TopicPartitionKey = tuple[str, int]
