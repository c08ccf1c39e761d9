"""How the replication of one partition stands, as values: figures, states, when it is tried again, what was done."""
