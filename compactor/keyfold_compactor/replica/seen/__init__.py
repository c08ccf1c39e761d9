"""What is seen of a replica: `status` asks both sides, `judge` decides, `reported` is what the replicator says."""
