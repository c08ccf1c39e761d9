"""The replication of one partition as values: figures, states, retries, and counts of work."""
