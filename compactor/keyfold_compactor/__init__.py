"""The compactor: a Spark job that cleans logs in object storage as Kafka cleans a compacted topic."""
