"""What a sink is told: one table of options, other sinks' keys, and everything that says whether they are right."""
