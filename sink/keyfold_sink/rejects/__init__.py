"""Records that fail their check: who judges, what is skipped, where dead letters go."""
