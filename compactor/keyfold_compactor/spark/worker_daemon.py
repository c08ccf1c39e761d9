"""Spark's daemon of Python workers, which has imported what a task needs before it forks a worker.

Spark ends workers that were idle for a minute, so most passes of a loop start new ones. A worker of Spark's own daemon
imports keyfold and Arrow for itself: 0.5 s of CPU each. In local mode Spark runs this module in place of its own
(`spark.python.daemon.module`), unless keyfold came as a zip: workers find the modules in a zip, the daemon does not.
"""

from __future__ import annotations

from pyspark.daemon import manager

from keyfold.runtime.process_memory import tune_process

tune_process()  # Arrow reads its settings when it is imported, which the next lines do

import pyarrow as pa  # noqa: E402 - see above

from keyfold_compactor.spark import large_map_tasks, tasks  # noqa: E402, F401 - see above; imported for the workers


def main() -> None:
    """Fork workers until Spark ends."""
    pa.array([0])  # with the first array pyarrow imports pandas, if that is installed: 0.3 s
    manager()


if __name__ == "__main__":
    main()
