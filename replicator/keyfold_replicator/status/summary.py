"""Summarize a replica from the states of its partitions: the worst state, sums, and errors by code and host. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from keyfold.log.names import Place
from keyfold_replicator.state.figures import Lag, Pending
from keyfold_replicator.state.states import NEVER_MS, RoundFailure, SyncState
from keyfold_replicator.status.assessment import Assessment

WORST_FIRST: Final = (
    SyncState.RESYNC_REQUIRED,
    SyncState.BROKEN,
    SyncState.WAITING,
    SyncState.PAUSED,
    SyncState.COPYING,
    SyncState.PENDING,
    SyncState.IN_SYNC,
)


@dataclass(frozen=True, slots=True)
class FailingPartitions:
    """An error that partitions have in common, by code and host; `failure` is the first one's."""

    failure: RoundFailure
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    """All partitions together. Times are local, in ms, -1 if there is none.

    `state` is the worst state, `pending` the sum, `lag` and `backoff_ms` are the highest values. `next_attempt_ms` is
    the earliest of the waiting partitions, `last_attempt_ms` the latest of all. Since `last_success_ms` at least one
    partition has had no success (-1: one never had any). `is_by_cursor`: for at least one partition the replica did not
    answer.
    """

    state: SyncState = SyncState.IN_SYNC
    partitions: int = 0
    by_state: Mapping[SyncState, int] = field(default_factory=dict)
    pending: Pending = field(default_factory=Pending)
    lag: Lag = field(default_factory=Lag)
    backoff_ms: int = 0
    last_attempt_ms: int = NEVER_MS
    next_attempt_ms: int = NEVER_MS
    last_success_ms: int = NEVER_MS
    is_by_cursor: bool = False
    errors: tuple[FailingPartitions, ...] = ()


def summary(assessments: Sequence[Assessment], *, is_paused: bool = False) -> ReplicaSummary:
    """Summarize the states. Without partitions a replica is in sync, or paused."""
    states = [s.state for s in assessments]
    by_state = Counter(s.state for s in states)
    usual = SyncState.PAUSED if is_paused else SyncState.IN_SYNC
    waiting = [s.next_attempt_ms for s in states if s.backoff_ms and s.next_attempt_ms != NEVER_MS]
    return ReplicaSummary(
        state=next((state for state in WORST_FIRST if by_state[state]), usual),
        partitions=len(states),
        by_state={state: by_state[state] for state in WORST_FIRST if by_state[state]},
        pending=sum((s.pending for s in states), Pending()),
        lag=Lag(
            max((s.lag.records for s in states), default=0),
            max((s.lag.ms for s in states), default=0),
            max((s.lag.existing_records for s in states), default=0),
        ),
        backoff_ms=max((s.backoff_ms for s in states), default=0),
        last_attempt_ms=max((s.last_attempt_ms for s in states), default=NEVER_MS),
        next_attempt_ms=min(waiting, default=NEVER_MS),
        last_success_ms=min((s.last_success_ms for s in states), default=NEVER_MS),
        is_by_cursor=any(s.is_by_cursor for s in assessments),
        errors=failing((s.state.place, error) for s in assessments for error in s.errors),
    )


def failing(errors: Iterable[tuple[Place, RoundFailure]]) -> tuple[FailingPartitions, ...]:
    """Group errors by code and host, those of most partitions first."""
    first: dict[tuple[str, str], RoundFailure] = {}
    places: dict[tuple[str, str], list[Place]] = {}
    for place, error in errors:
        kind = (error.code, error.host)
        first.setdefault(kind, error)
        places.setdefault(kind, []).append(place)
    found = [FailingPartitions(first[kind], tuple(where)) for kind, where in places.items()]
    return tuple(sorted(found, key=lambda f: (-len(f.places), f.failure.code, f.failure.host)))
