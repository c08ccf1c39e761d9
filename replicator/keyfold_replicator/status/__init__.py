"""The status of a replica: `status` reads both sides, `judge` decides, `reported` is what the replicator reports."""
