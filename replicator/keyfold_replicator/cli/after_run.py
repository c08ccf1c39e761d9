"""One round of all replicas after a run of the compactor (`keyfold.replicas.after_run`), with its output.

The compactor finds `open_rounds` by its entry point.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from keyfold.errors import KeyfoldError
from keyfold.replicas.after_run import AfterRun, AfterRunResult, AfterRunStep, MetricsRegistry
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import count_text, size_text
from keyfold.runtime.throttle import paced
from keyfold.store.location import OpenLocation
from keyfold_replicator.cli.show import run_json, run_lines
from keyfold_replicator.registry.open_replica import close, side
from keyfold_replicator.registry.replica_pair import LogDirectory, ReplicaSettings
from keyfold_replicator.rounds.runner import RunSummary
from keyfold_replicator.rounds.service import (
    NoObserver,
    Replication,
    ReplicationContext,
    ReplicationObserver,
    RoundSelection,
)
from keyfold_replicator.state.states import PartitionState, SyncState
from keyfold_replicator.state.totals import RoundTotals, Tally


@contextlib.contextmanager
def open_rounds(
    after_run: AfterRun,
    *,
    clock: Clock,
    random: Random,
    metrics: MetricsRegistry | None,
    open_location: OpenLocation,
) -> Iterator[AfterRunStep]:
    """See `OpenRounds`."""
    pacer = paced(after_run.bytes_per_second, clock)
    location = after_run.location.adjusted(max_connections=4 * after_run.threads)
    store = open_location(location, pacer)
    context = ReplicationContext(
        ReplicaSettings(threads=after_run.threads),
        clock,
        random,
        holder=f"{socket.gethostname()}:{os.getpid()}",
        opener=open_location,
        pacer=pacer,
        allowed=after_run.allowed,
    )
    selection = RoundSelection(after_run.topics, after_run.partitions)
    try:
        yield _Rounds(side(store, after_run.topics_dir), context, selection, _observer(metrics))
    finally:
        close(store)


def _observer(metrics: MetricsRegistry | None) -> ReplicationObserver:
    if metrics is None:
        return NoObserver()
    from keyfold_replicator.status.metrics import ReplicaMeter

    meter = ReplicaMeter()
    metrics.register(meter)
    return meter


class _Rounds:
    """One round of every replica at each call. Errors of the stores are in the result."""

    def __init__(
        self,
        source: LogDirectory,
        context: ReplicationContext,
        selection: RoundSelection,
        observer: ReplicationObserver,
    ) -> None:
        self._counted = _Counted(observer)
        self._replication = Replication(source, context, observer=self._counted)
        self._selection = selection

    def __call__(self, should_stop: Callable[[], bool]) -> Sequence[AfterRunResult]:
        """See `AfterRunStep`."""
        if should_stop():
            return ()
        try:
            found = self._replication.once(should_stop, self._selection)
        except KeyfoldError as error:
            text = f"replicas: nothing was copied: {error}"
            return (AfterRunResult("", is_failure=True, is_news=True, document={"error": str(error)}, lines=(text,)),)
        return tuple(_round(name, each, self._counted.done(name)) for name, each in found.items())


class _Counted:
    """A `ReplicationObserver` that also counts what was done for each replica since its last `start_replica`."""

    def __init__(self, inner: ReplicationObserver) -> None:
        self._inner = inner
        self._begun: dict[str, tuple[Tally, RoundTotals]] = {}

    def start_replica(self, name: str) -> Tally:
        """See `ReplicationObserver.start_replica`."""
        tally = self._inner.start_replica(name)
        self._begun[name] = (tally, tally.totals)
        return tally

    def publish_states(self, name: str, states: Sequence[PartitionState]) -> None:
        """See `ReplicationObserver.publish_states`."""
        self._inner.publish_states(name, states)

    def remove_replica(self, name: str) -> None:
        """See `ReplicationObserver.remove_replica`."""
        self._inner.remove_replica(name)

    def done(self, name: str) -> _Done:
        """Return what was done; nothing for a replica that could not be opened."""
        tally, before = self._begun.pop(name, (Tally(), RoundTotals()))
        now = tally.totals
        return _Done(
            now.commits - before.commits,
            now.objects_sent + now.objects_copied - before.objects_sent - before.objects_copied,
            now.sent_bytes + now.copied_bytes - before.sent_bytes - before.copied_bytes,
        )


class _Done(NamedTuple):
    """Commits at a replica, objects that were copied there, and their stored bytes."""

    commits: int
    objects: int
    bytes: int


def _round(name: str, found: RunSummary, done: _Done) -> AfterRunResult:
    is_failure = bool(found.error or found.failed)
    commits, objects = count_text(done.commits, "commit"), count_text(done.objects, "object")
    copied = f"{name}: {commits}, {objects} with {size_text(done.bytes)} copied"
    return AfterRunResult(
        name,
        is_failure=is_failure,
        is_news=is_failure or any(done),
        document=_document(name, found, done),
        lines=(*run_lines(name, found), copied) if any(done) else tuple(run_lines(name, found)),
    )


def _document(name: str, found: RunSummary, done: _Done) -> JsonObject:
    """Return JSON as of `keyfold replica run --once --json`, but without partitions in sync: there are many runs."""
    others = tuple(s for s in found.states if s.state is not SyncState.IN_SYNC)
    return {
        **run_json(name, replace(found, states=others)),
        "in_sync": found.is_in_sync,
        "partitions_in_sync": len(found.states) - len(others),
        "carried": done._asdict(),
    }
