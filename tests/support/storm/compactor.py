"""The compactor's job in a process of its own, without Spark: what Spark's tasks do is done in the process.

    python -m tests.support.storm.compactor CONFIG.json [--force]

Everything else is that of `keyfold compact run`: options, policy, claims, leases, passes, retention, deletions. A start
of Spark takes longer than this process is left alone in a storm. Each run that did something prints a JSON object.
"""

from __future__ import annotations

import json
import sys
from random import Random

from keyfold.config.options import read_config
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.event_log import configure
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.runtime.signals import stop_or_end_on_signals
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import PartitionOutcome, RunReport

WAIT_TIMEOUT_S = 30.0


def figures(report: RunReport) -> dict[str, int]:
    """Return what a run has done, of what a storm counts."""
    parts = report.partitions
    return {
        "runs": 1,
        "passes": sum(part.outcome is PartitionOutcome.CLEANED for part in parts),
        "passes failed or lost": sum(
            part.outcome in {PartitionOutcome.FAILED, PartitionOutcome.LOST} for part in parts
        ),
        "superseded records removed": sum(part.superseded for part in parts),
        "tombstones purged": sum(part.purged_tombstones for part in parts),
        "tombstones held for replicas": sum(part.held_tombstones for part in parts),
        "segments expired": sum(part.expired.segments for part in parts),
    }


def publish(report: RunReport) -> None:
    """Print what a run has done."""
    print(json.dumps({"figures": figures(report)}), flush=True)
    for part in report.partitions:
        if part.outcome in {PartitionOutcome.FAILED, PartitionOutcome.LOST}:
            print(f"{part.place}: {part.outcome.value}: {part.why}", flush=True)


def main() -> int:
    """Run until SIGTERM; with `--force` clean everything once, and return 1 where a partition failed."""
    options = CompactOptions.parse(read_config(sys.argv[1]))
    is_forced = "--force" in sys.argv
    configure(json=True, level="info")
    clock, random = SystemClock(), Random()
    store = options.location().open()

    def executor(_due_bytes: int) -> LocalExecutor:
        return LocalExecutor(
            store, RetryPolicy(clock, random, Backoff(), WAIT_TIMEOUT_S), is_single_stage=random.random() < 0.5
        )

    job = Job(options, RunSelection(force=is_forced), store, executor, clock=clock, random=random)
    stop = stop_or_end_on_signals()
    if is_forced:
        report = job.once(stop.is_set)
        publish(report)
        return report.exit_code
    job.loop(stop, publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
