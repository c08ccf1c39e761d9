"""Rounds: `plan` decides, `round` does one partition's; `worker`, `runner`, `service` when, and for how many."""
