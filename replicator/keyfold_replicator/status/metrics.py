"""The metrics of replication, by replica: pure functions, and a meter that keeps the newest values.

A process may replicate to several replicas. Each publishes its states to the meter as often as to its status object
(`Publish`), and counts its work in a `Tally`. The meter answers scrapes from these at any moment.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from keyfold.metrics.metric import Labelled, Metric, MetricValues, Samples, samples_of
from keyfold.metrics.prometheus import MetricsCollector
from keyfold_replicator.state.figures import NO_TIME
from keyfold_replicator.state.states import PartitionState, RoundFailure, SyncState
from keyfold_replicator.state.totals import RoundTotals, Tally
from keyfold_replicator.status import metric_names as names
from keyfold_replicator.status.assessment import Assessment
from keyfold_replicator.status.metric_names import METRICS, PARTITIONS_SHOWN
from keyfold_replicator.status.summary import summary

_FAILING: Final = frozenset({SyncState.WAITING, SyncState.BROKEN, SyncState.RESYNC_REQUIRED})


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """One replica: the last states of its partitions, and its work since the process started.

    `states` is None before the first publication; then there are no gauges, instead of some that look healthy.
    """

    states: tuple[PartitionState, ...] | None = None
    totals: RoundTotals = field(default_factory=RoundTotals)
    is_running: bool = False


def values(replicas: Mapping[str, ObservedReplica]) -> MetricValues:
    """Return all metrics of these replicas, by name."""
    found: dict[Metric, dict[tuple[str, ...], float]] = {metric: {} for metric in METRICS}
    for name, known in replicas.items():
        gauges = {} if known.states is None else _gauges(known.states)
        running = {names.RUNNING: int(known.is_running)}
        for metric, value in (*running.items(), *gauges.items(), *_counters(known.totals).items()):
            if isinstance(value, Mapping):
                found[metric].update({(name, *labels): figure for labels, figure in value.items()})
            elif value is not None:
                found[metric][(name,)] = value
    return found


def _gauges(states: Sequence[PartitionState]) -> MetricValues:
    found = summary([_assessment(state) for state in states])
    return {
        names.PARTITIONS: {(state.value,): found.by_state.get(state, 0) for state in SyncState},
        names.PAUSED: int(any(s.state is SyncState.PAUSED for s in states)),
        names.PENDING_BYTES: found.pending.bytes,
        names.PENDING_RECORDS: found.pending.records,
        names.PENDING_SEGMENTS: found.pending.segments,
        names.EARLIEST: _seconds(found.pending.earliest_ms),
        names.LATEST: _seconds(found.pending.latest_ms),
        names.LAG_RECORDS: found.lag.records,
        names.LAG_EXISTING: found.lag.existing_records,
        names.LAG_SECONDS: found.lag.ms / 1000,
        names.ERRORS: {(f.failure.code, f.failure.host): len(f.places) for f in found.errors},
        names.BACKOFF: found.backoff_ms / 1000,
        names.LAST_ATTEMPT: _seconds(found.last_attempt_ms),
        names.NEXT_ATTEMPT: _seconds(found.next_attempt_ms),
        names.LAST_SUCCESS: _seconds(found.last_success_ms),
        names.WORST_LAG: _worst(states, lambda s: s.lag.ms / 1000),
        names.WORST_PENDING: _worst(states, lambda s: s.pending.bytes),
        names.FAILING: {
            _labels(s): 1.0
            for s in heapq.nsmallest(PARTITIONS_SHOWN, (s for s in states if s.state in _FAILING), key=_labels)
        },
    }


def _counters(done: RoundTotals) -> MetricValues:
    return {
        names.ROUNDS: done.rounds,
        names.COMMITS: done.commits,
        names.PINS: done.pins,
        names.PLANS_REPEATED: done.plans_repeated,
        names.SENT_BYTES: done.sent_bytes,
        names.SENT_OBJECTS: done.objects_sent,
        names.COPIED_BYTES: done.copied_bytes,
        names.COPIED_OBJECTS: done.objects_copied,
        names.FOUND_OBJECTS: done.objects_found,
        names.DELETED_OBJECTS: done.objects_deleted,
        names.DELETED_ORPHANS: done.orphans_deleted,
        names.FAILURES: {(code,): count for code, count in done.failures.items()},
    }


def _assessment(state: PartitionState) -> Assessment:
    error = RoundFailure(state.state, state.code, state.host, state.message, state.hint)
    return Assessment(state, errors=(error,) if state.has_failed else ())


def _seconds(time_ms: int) -> float | None:
    return None if time_ms == NO_TIME else time_ms / 1000


def _worst(states: Iterable[PartitionState], figure: Callable[[PartitionState], float]) -> Labelled:
    above = [s for s in states if figure(s) > 0]
    return {_labels(s): figure(s) for s in heapq.nlargest(PARTITIONS_SHOWN, above, key=figure)}


def _labels(state: PartitionState) -> tuple[str, str]:
    return state.place.topic, str(state.place.partition)


class ReplicaMeter(MetricsCollector):
    """Keep the newest metrics of the replicas of a process (`service.Watch`). Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, ObservedReplica] = {}
        self._tallies: dict[str, Tally] = {}
        super().__init__(METRICS, "replicator")

    def start_replica(self, name: str) -> Tally:
        """Return where to count for a replica that is being opened. When it is opened again, no counter goes back."""
        with self._lock:
            self._known[name] = replace(self._known.get(name, ObservedReplica()), is_running=False)
            return self._tallies.setdefault(name, Tally())

    def publish_states(self, name: str, states: Sequence[PartitionState]) -> None:
        """Keep the states of its partitions; the replica is open."""
        with self._lock:
            self._known[name] = ObservedReplica(tuple(states), is_running=True)

    def remove_replica(self, name: str) -> None:
        """Drop the samples of a replica that was removed."""
        with self._lock:
            self._known.pop(name, None)
            self._tallies.pop(name, None)

    def samples(self) -> Samples:
        """See `MetricsCollector.samples`."""
        return samples_of(self.values())

    def values(self) -> MetricValues:
        """Return all metrics."""
        with self._lock:
            known = {name: replace(self._known[name], totals=tally.totals) for name, tally in self._tallies.items()}
        return values(known)
