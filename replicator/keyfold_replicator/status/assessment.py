"""Decide the state of a replica from both sides' manifests and the replicator's report. Pure.

    BothManifests    one partition as it was read: two manifests, or errors in their place
    assess           its current `PartitionState`
    Assessment       that state, and all errors

Manifests take precedence over the report, which may be old: a log with equal sides is in sync, and figures are always
computed again. Waits and errors are taken from a running process. Of a process that has ended, the last error is shown
while something is left to copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from keyfold.errors import KeyfoldError, ReplicaError
from keyfold.log.commit import Pinned
from keyfold.log.edits_replica import own_log, require_follows, same_content
from keyfold.log.manifest import NO_VERSION, Hold, Manifest
from keyfold.log.names import Place
from keyfold.replicas.documents import Enablement
from keyfold_replicator.registry.compaction_rule import refusal
from keyfold_replicator.state.figures import ReplicaFigures, figures, figures_by_cursor
from keyfold_replicator.state.states import PartitionState, RoundFailure, SyncState, failure_of

_BY_RULE: Final = frozenset({"CompactionNotEnabled", "ReplicaFormatTooOld"})


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What a state depends on besides the manifests: the registration, and the names of both sides.

    `hold_name` is the replica's name in the source's holds. `enablement` is None if it could not be read. `named` is
    the replica as arguments of a command: its source's URL and its name.
    """

    name: str
    hold_name: str
    source_host: str
    replica_host: str
    is_paused: bool = False
    enablement: Enablement | None = None
    replica_url: str = ""
    named: str = ""


@dataclass(frozen=True, slots=True)
class BothManifests:
    """One partition as it was read. `replica` is None if nothing was committed there yet."""

    place: Place
    source: Pinned | KeyfoldError
    replica: Manifest | KeyfoldError | None


@dataclass(frozen=True, slots=True)
class Assessment:
    """One partition's current state. `is_by_cursor`: the replica did not answer, see `ReplicaFigures`."""

    state: PartitionState
    is_by_cursor: bool = False
    errors: tuple[RoundFailure, ...] = ()


def assess(
    manifests: BothManifests, facts: ReplicaFacts, reported: PartitionState | None = None, *, is_alive: bool = False
) -> Assessment:
    """Return the current state. `reported` is the process's last report, `is_alive` whether it still runs."""
    base = replace(PartitionState(manifests.place) if reported is None else reported, place=manifests.place)
    last_failure = _last_failure(base, is_alive=is_alive)
    if last_failure is not None and last_failure.state is SyncState.IN_SYNC:
        # The replica has everything, but something else failed, such as the deletion of garbage.
        assessment = _assessed(manifests, facts, _without_failure(base), None, is_alive=is_alive)
        return replace(assessment, errors=(*assessment.errors, last_failure))
    return _assessed(manifests, facts, base, last_failure, is_alive=is_alive)


def _assessed(
    manifests: BothManifests,
    facts: ReplicaFacts,
    base: PartitionState,
    last_failure: RoundFailure | None,
    *,
    is_alive: bool,
) -> Assessment:
    if isinstance(manifests.source, KeyfoldError):
        return _blind(base, last_failure, failure_of(manifests.source, facts.source_host), facts)
    is_copying = is_alive and base.state is SyncState.COPYING
    base = _with_figures(base, manifests.source.manifest, _figures(manifests, facts), is_copying=is_copying)
    if isinstance(manifests.replica, KeyfoldError):
        found = _blind(base, last_failure, failure_of(manifests.replica, facts.replica_host), facts)
        return replace(found, is_by_cursor=True)
    if manifests.replica is not None:
        base = _with_replica(base, manifests.replica)
    blocking = _blocking_failure(manifests.source.manifest, manifests.replica, facts, last_failure, is_alive=is_alive)
    if blocking is not None:
        return _failed(base, blocking, facts)
    state = SyncState.COPYING if is_copying else SyncState.PENDING
    if _is_equal(manifests.source.manifest, manifests.replica):
        state = SyncState.IN_SYNC
    return Assessment(_paused(replace(_without_failure(base), state=state), facts))


def _last_failure(state: PartitionState, *, is_alive: bool) -> RoundFailure | None:
    """Return the reported error. Whether a resync is required is decided by the current manifests instead."""
    if not state.has_failed or state.state is SyncState.RESYNC_REQUIRED:
        return None
    is_over = state.state is SyncState.PAUSED or (
        not is_alive and state.state in {SyncState.COPYING, SyncState.PENDING}
    )
    kind = SyncState.WAITING if is_over else state.state
    return RoundFailure(kind, state.code, state.host, state.message, state.hint)


def _is_equal(source: Manifest, replica: Manifest | None) -> bool:
    return replica is not None and replica.is_replica and same_content(replica, source)


def _figures(manifests: BothManifests, facts: ReplicaFacts) -> ReplicaFigures:
    assert isinstance(manifests.source, Pinned)
    hold = manifests.source.manifest.hold(facts.hold_name) or Hold(facts.hold_name, NO_VERSION, 0)
    if isinstance(manifests.replica, KeyfoldError):
        return figures_by_cursor(manifests.source, hold.received_to, received_at_ms=hold.received_at_ms)
    return figures(manifests.source, manifests.replica, received_at_ms=hold.received_at_ms)


def _with_figures(base: PartitionState, source: Manifest, known: ReplicaFigures, *, is_copying: bool) -> PartitionState:
    pending = known.pending
    if is_copying:
        # The round reports how much of it is left. What it has copied is in no manifest yet.
        pending = replace(pending, bytes=min(pending.bytes, base.pending.bytes))
    return replace(
        base,
        pending=pending,
        lag=known.lag,
        source_version=source.version,
        source_next_offset=source.next_offset,
    )


def _with_replica(base: PartitionState, replica: Manifest) -> PartitionState:
    version = 0 if replica.replica is None else replica.replica.source_version
    return replace(base, replica_version=version, replica_next_offset=replica.next_offset)


def _blocking_failure(
    source: Manifest,
    replica: Manifest | None,
    facts: ReplicaFacts,
    last_failure: RoundFailure | None,
    *,
    is_alive: bool,
) -> RoundFailure | None:
    """Return what prevents the next round: by the manifests, then by the report, then by the rule."""
    is_equal = _is_equal(source, replica)
    mismatch = None if is_equal or replica is None else _mismatch(source, replica)
    if mismatch is not None:
        return failure_of(mismatch, facts.replica_host)
    if last_failure is not None and (is_alive or not is_equal):
        # Compaction may have been enabled since a process that has ended reported otherwise.
        is_known_better = not is_alive and last_failure.code in _BY_RULE and facts.enablement is not None
        if not is_known_better:
            return last_failure
    if is_equal or facts.enablement is None:
        return None
    refused = refusal(source, facts.enablement, facts.replica_url or facts.name, facts.named)
    return None if refused is None else failure_of(refused, facts.replica_host)


def _mismatch(source: Manifest, replica: Manifest) -> KeyfoldError | None:
    """Return why the replica must not take this version of the source."""
    if replica.replica is None:
        return own_log(replica, source)
    try:
        require_follows(replica, source)
    except ReplicaError as error:
        return error
    return None


def _blind(
    base: PartitionState, last_failure: RoundFailure | None, failure: RoundFailure, facts: ReplicaFacts
) -> Assessment:
    """Assess a partition when one side did not answer: by the report, with its figures or those by the cursor."""
    if last_failure is None:
        return _failed(base, failure, facts)
    is_same = (last_failure.code, last_failure.host) == (failure.code, failure.host)
    return replace(_failed(base, last_failure, facts), errors=(last_failure,) if is_same else (last_failure, failure))


def _failed(base: PartitionState, found: RoundFailure, facts: ReplicaFacts) -> Assessment:
    same = (base.code, base.host) == (found.code, found.host)
    waits = base if same else _without_failure(base)
    state = replace(waits, state=found.state, code=found.code, host=found.host, message=found.message, hint=found.hint)
    return Assessment(_paused(state, facts), errors=(found,))


def _paused(state: PartitionState, facts: ReplicaFacts) -> PartitionState:
    """Keep `resync-required` for a paused replica, because whoever resumes it must know."""
    is_worse = state.state is SyncState.RESYNC_REQUIRED
    return replace(state, state=SyncState.PAUSED) if facts.is_paused and not is_worse else state


def _without_failure(state: PartitionState) -> PartitionState:
    return replace(state, code="", host="", message="", hint="", attempts=0, backoff_ms=0)
