"""`keyfold compact` whose passes run in this process instead of Spark, for tests of what a terminal shows.

    python -m tests.support.compact_at_terminal run compact.json --once

`KEYFOLD_TEST_START` is what happens instead of the start of Spark: an error's text, `gate` for a wait, or empty. If
`KEYFOLD_TEST_GATE` is a folder, a pass makes the file `at-work` there, and waits for the file `go`; so does a start.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from keyfold.cli import main
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold_compactor.decide.work import LogJob, MapAnswer
from keyfold_compactor.execute.executor import Done, Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.spark.keeper import SparkKeeper
from keyfold_compactor.spark.session import SparkStartFailed


def wait_at_gate() -> None:
    """Wait for the file `go`, if a gate is set."""
    gate = os.environ.get("KEYFOLD_TEST_GATE")
    if gate:
        Path(gate, "at-work").touch()
        while not Path(gate, "go").exists():
            time.sleep(0.02)


class GatedExecutor(LocalExecutor):
    """A local executor that waits at its gate."""

    def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:  # type: ignore[override]  # as the protocol has it
        wait_at_gate()
        return super().map_logs(jobs, done)


def start(keeper: SparkKeeper) -> Executor:
    """Take the place of `SparkKeeper._start`."""
    cause = os.environ.get("KEYFOLD_TEST_START")
    if cause == "gate":
        wait_at_gate()
    elif cause:
        raise SparkStartFailed(cause, ["java: not found"])
    options: CompactOptions = keeper._options
    return GatedExecutor(options.location().open(), RetryPolicy(SystemClock(), Random()))


if __name__ == "__main__":
    SparkKeeper._start = start  # type: ignore[assignment, method-assign]  # Spark is not under test
    main(["compact", *sys.argv[1:]])
