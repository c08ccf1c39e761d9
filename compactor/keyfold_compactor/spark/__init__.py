"""Execution on Spark: the session, the tasks, and the code that executors need."""
