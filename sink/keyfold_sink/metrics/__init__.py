"""What a sink counts, and how Prometheus gets it."""
