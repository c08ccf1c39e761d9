"""Rounds: `plan` decides, `round` handles one partition, and `worker`, `runner` and `service` schedule the rounds."""
