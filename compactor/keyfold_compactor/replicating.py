"""Replicate after each run of the compactor, if configured (`replicas.run`): one round of all replicas.

So replicas receive at once what a run has made, and tombstones that are held for them before the next run. The round
follows the run instead of running beside it, so both stay within the configured byte rate. A first copy of large logs
delays the next run. For that, and for thousands of partitions, use `keyfold replica run`, a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold.runtime.text import size_text
from keyfold.runtime.throttle import BudgetPacer, TokenBucket
from keyfold.store.api import ObjectStore
from keyfold.store.pacing import Pacer
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import Replicate, Replicated
from keyfold_replicator.cli.show import run_json, run_lines
from keyfold_replicator.registry.link import ReplicaSettings
from keyfold_replicator.registry.opening import OpenLocation, close, open_location, side
from keyfold_replicator.rounds.runner import RunSummary
from keyfold_replicator.rounds.service import Means, Narrowed, NoWatch, Replication, Watch
from keyfold_replicator.state.states import PartitionState, State
from keyfold_replicator.state.totals import Tally, Totals


@contextlib.contextmanager
def replicating(
    options: CompactOptions,
    narrowed: Narrowed,
    *,
    clock: Clock,
    random: Random,
    watch: Watch | None = None,
    opener: OpenLocation = open_location,
) -> Iterator[Replicate]:
    """Yield the function to call after each run. Its store is closed with the context; `watch` keeps the metrics."""
    pacer = _pacer(options, clock)
    location = replace(options.location(), max_connections=4 * options.threads)
    store = opener(location, pacer)
    means = Means(
        ReplicaSettings(threads=options.threads),
        clock,
        random,
        holder=f"{socket.gethostname()}:{os.getpid()}",
        opener=opener,
        pacer=pacer,
        allowed=options.allowed_credentials,
    )
    try:
        yield Rounds(store, options.topics_dir, means, narrowed, watch)
    finally:
        close(store)


class Rounds:
    """One round of every replica at each call. Errors of the stores are in the result."""

    def __init__(
        self, store: ObjectStore, topics_dir: str, means: Means, narrowed: Narrowed, watch: Watch | None = None
    ) -> None:
        self._counted = _Counted(watch or NoWatch())
        self._replication = Replication(side(store, topics_dir), means, watch=self._counted)
        self._narrowed = narrowed

    def __call__(self, should_stop: Callable[[], bool]) -> Sequence[Replicated]:
        """See `Replicate`."""
        if should_stop():
            return ()
        try:
            found = self._replication.once(should_stop, self._narrowed)
        except KeyfoldError as error:
            text = f"replicas: nothing was copied: {error}"
            return (Replicated("", is_failure=True, is_news=True, document={"error": str(error)}, lines=(text,)),)
        return tuple(_replicated(name, each, self._counted.done(name)) for name, each in found.items())


class _Counted:
    """A `Watch` that also counts what was done for each replica since its last `begin`."""

    def __init__(self, inner: Watch) -> None:
        self._inner = inner
        self._begun: dict[str, tuple[Tally, Totals]] = {}

    def begin(self, name: str) -> Tally:
        """See `Watch.begin`."""
        tally = self._inner.begin(name)
        self._begun[name] = (tally, tally.totals)
        return tally

    def publish(self, name: str, states: Sequence[PartitionState]) -> None:
        """See `Watch.publish`."""
        self._inner.publish(name, states)

    def end(self, name: str) -> None:
        """See `Watch.end`."""
        self._inner.end(name)

    def done(self, name: str) -> Done:
        """Return what was done; nothing for a replica that could not be opened."""
        tally, before = self._begun.pop(name, (Tally(), Totals()))
        now = tally.totals
        return Done(
            now.commits - before.commits,
            now.objects_sent + now.objects_copied - before.objects_sent - before.objects_copied,
            now.sent_bytes + now.copied_bytes - before.sent_bytes - before.copied_bytes,
        )


class Done(NamedTuple):
    """Commits at a replica, objects that were copied there, and their stored bytes."""

    commits: int
    objects: int
    bytes: int


def _replicated(name: str, found: RunSummary, done: Done) -> Replicated:
    is_failure = bool(found.error or found.failed)
    carried = f"{name}: {done.commits} commits, {done.objects} objects with {size_text(done.bytes)} copied"
    return Replicated(
        name,
        is_failure=is_failure,
        is_news=is_failure or any(done),
        document=_document(name, found, done),
        lines=(*run_lines(name, found), carried) if any(done) else tuple(run_lines(name, found)),
    )


def _document(name: str, found: RunSummary, done: Done) -> dict[str, Any]:
    """Return JSON as of `keyfold replica run --once --json`, but without partitions in sync: there are many runs."""
    others = tuple(s for s in found.states if s.state is not State.IN_SYNC)
    return {
        **run_json(name, replace(found, states=others)),
        "in_sync": found.is_in_sync,
        "partitions_in_sync": len(found.states) - len(others),
        "carried": done._asdict(),
    }


def _pacer(options: CompactOptions, clock: Clock) -> Pacer | None:
    rate = options.io_max_bytes_per_second
    return None if rate is None else BudgetPacer(TokenBucket(rate, clock), clock, rate)
