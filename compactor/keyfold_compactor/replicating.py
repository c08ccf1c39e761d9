"""Replicate after each run of the compactor, if configured (`replicas.run`): one round of all replicas.

So replicas receive at once what a run has made, and tombstones that are held for them before the next run. The round
follows the run instead of running beside it, so both stay within the configured byte rate. A first copy of large logs
delays the next run. For that, and for thousands of partitions, use `keyfold replica run`, a process of its own.

The replicator provides the rounds (`keyfold.replicas.after_run`); the compactor does not import it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from random import Random

from keyfold.replicas.after_run import AfterRun, AfterRunStep, MetricsRegistry, load_open_rounds
from keyfold.runtime.clock import Clock
from keyfold.store.location import OpenLocation, open_location
from keyfold_compactor.options import CompactOptions


def replicating(
    options: CompactOptions,
    topics: frozenset[str] = frozenset(),
    partitions: frozenset[int] = frozenset(),
    *,
    clock: Clock,
    random: Random,
    metrics: MetricsRegistry | None = None,
    opener: OpenLocation = open_location,
) -> AbstractContextManager[AfterRunStep]:
    """Return a context of the function to call after each run. Raise `ConfigError` if no package can replicate."""
    after_run = AfterRun(
        options.location(),
        options.topics_dir,
        options.threads,
        options.io_max_bytes_per_second,
        options.allowed_credentials,
        topics,
        partitions,
    )
    return load_open_rounds()(after_run, clock=clock, random=random, metrics=metrics, open_location=opener)
