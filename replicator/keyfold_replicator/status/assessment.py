"""Decide the state of a replica from both sides' manifests and the replicator's report. Pure.

    Seen        one partition as it was read: two manifests, or errors in their place
    judge       its current `PartitionState`
    Standing    that state, and all errors

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
class AssessedReplica:
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
    seen: BothManifests, asked: AssessedReplica, reported: PartitionState | None = None, *, is_alive: bool = False
) -> Assessment:
    """Return the current state. `reported` is the process's last report, `is_alive` whether it still runs."""
    base = replace(PartitionState(seen.place) if reported is None else reported, place=seen.place)
    said = _said(base, is_alive=is_alive)
    if said is not None and said.state is SyncState.IN_SYNC:
        # The replica has everything, but something else failed, such as the deletion of garbage.
        standing = _judged(seen, asked, _without_trouble(base), None, is_alive=is_alive)
        return replace(standing, errors=(*standing.errors, said))
    return _judged(seen, asked, base, said, is_alive=is_alive)


def _judged(
    seen: BothManifests, asked: AssessedReplica, base: PartitionState, said: RoundFailure | None, *, is_alive: bool
) -> Assessment:
    if isinstance(seen.source, KeyfoldError):
        return _blind(base, said, failure_of(seen.source, asked.source_host), asked)
    is_copying = is_alive and base.state is SyncState.COPYING
    base = _with_figures(base, seen.source.manifest, _figures(seen, asked), is_copying=is_copying)
    if isinstance(seen.replica, KeyfoldError):
        found = _blind(base, said, failure_of(seen.replica, asked.replica_host), asked)
        return replace(found, is_by_cursor=True)
    if seen.replica is not None:
        base = _with_replica(base, seen.replica)
    blocking = _trouble(seen.source.manifest, seen.replica, asked, said, is_alive=is_alive)
    if blocking is not None:
        return _in_trouble(base, blocking, asked)
    state = SyncState.COPYING if is_copying else SyncState.PENDING
    if _is_equal(seen.source.manifest, seen.replica):
        state = SyncState.IN_SYNC
    return Assessment(_paused(replace(_without_trouble(base), state=state), asked))


def _said(state: PartitionState, *, is_alive: bool) -> RoundFailure | None:
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


def _figures(seen: BothManifests, asked: AssessedReplica) -> ReplicaFigures:
    assert isinstance(seen.source, Pinned)
    hold = seen.source.manifest.hold(asked.hold_name) or Hold(asked.hold_name, NO_VERSION, 0)
    if isinstance(seen.replica, KeyfoldError):
        return figures_by_cursor(seen.source, hold.received_to, received_at_ms=hold.received_at_ms)
    return figures(seen.source, seen.replica, received_at_ms=hold.received_at_ms)


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


def _trouble(
    source: Manifest, replica: Manifest | None, asked: AssessedReplica, said: RoundFailure | None, *, is_alive: bool
) -> RoundFailure | None:
    """Return what prevents the next round: by the manifests, then by the report, then by the rule."""
    is_equal = _is_equal(source, replica)
    mismatch = None if is_equal or replica is None else _mismatch(source, replica)
    if mismatch is not None:
        return failure_of(mismatch, asked.replica_host)
    if said is not None and (is_alive or not is_equal):
        # Compaction may have been enabled since a process that has ended reported otherwise.
        is_known_better = not is_alive and said.code in _BY_RULE and asked.enablement is not None
        if not is_known_better:
            return said
    if is_equal or asked.enablement is None:
        return None
    refused = refusal(source, asked.enablement, asked.replica_url or asked.name, asked.named)
    return None if refused is None else failure_of(refused, asked.replica_host)


def _mismatch(source: Manifest, replica: Manifest) -> KeyfoldError | None:
    """Return why the replica must not take this version of the source."""
    if replica.replica is None:
        return own_log(replica, source)
    try:
        require_follows(replica, source)
    except ReplicaError as error:
        return error
    return None


def _blind(base: PartitionState, said: RoundFailure | None, seen: RoundFailure, asked: AssessedReplica) -> Assessment:
    """Judge when one side did not answer. The report counts; figures are those of the report or by the cursor."""
    if said is None:
        return _in_trouble(base, seen, asked)
    is_same = (said.code, said.host) == (seen.code, seen.host)
    return replace(_in_trouble(base, said, asked), errors=(said,) if is_same else (said, seen))


def _in_trouble(base: PartitionState, found: RoundFailure, asked: AssessedReplica) -> Assessment:
    same = (base.code, base.host) == (found.code, found.host)
    waits = base if same else _without_trouble(base)
    state = replace(waits, state=found.state, code=found.code, host=found.host, message=found.message, hint=found.hint)
    return Assessment(_paused(state, asked), errors=(found,))


def _paused(state: PartitionState, asked: AssessedReplica) -> PartitionState:
    """Keep `resync-required` for a paused replica, because whoever resumes it must know."""
    is_worse = state.state is SyncState.RESYNC_REQUIRED
    return replace(state, state=SyncState.PAUSED) if asked.is_paused and not is_worse else state


def _without_trouble(state: PartitionState) -> PartitionState:
    return replace(state, code="", host="", message="", hint="", attempts=0, backoff_ms=0)
