"""No pandas, as in the sink's image: `PYTHONPATH` names this folder for sinks that tests start.

Spark's tests need pandas, so it is in their environment, and Arrow imports all of it where it finds it: a quarter of a
second of CPU for each task.
"""

raise ImportError("the sink's image has no pandas")
