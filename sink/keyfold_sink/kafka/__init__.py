"""How the sink speaks with Kafka: the consumer, the cluster, and what their answers mean."""
