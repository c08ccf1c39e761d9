"""How a replica stands, from what was read of both sides and what the process that replicates says: pure.

    Seen        one partition as somebody who asks has found it: two manifests, or the errors in their place
    judge       its `PartitionState` as of now
    Standing    that state, and all errors that there are

What the manifests say counts before what was reported, which may be old: a log whose both sides are equal is in sync,
figures are always worked out anew. A process that is at work is believed about its waits and errors; of one that has
ended its last error is shown while something is left to send.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from keyfold.errors import KeyfoldError, ReplicaError
from keyfold.log.commit import Pinned
from keyfold.log.edits_replica import require_follows, same_content
from keyfold.log.manifest import NO_VERSION, Hold, Manifest
from keyfold.log.names import Place
from keyfold.log.replica_log import own_log
from keyfold_compactor.replica.documents import Enablement
from keyfold_compactor.replica.rule import refusal
from keyfold_compactor.replica.standing import Figures, figures, figures_by_cursor
from keyfold_compactor.replica.states import PartitionState, State, Trouble, trouble

_BY_PROCESS: Final = frozenset({State.WAITING, State.BROKEN})
"""What only the process that replicates may know the reason of."""

_BY_RULE: Final = frozenset({"CompactionNotEnabled", "ReplicaFormatTooOld"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a state is judged by beside the manifests: the registration, and what its two sides are called.

    `hold_name` is the replica's name in the source's holds. `enablement` is None where it could not be read.
    """

    name: str
    hold_name: str
    source_host: str
    replica_host: str
    is_paused: bool = False
    enablement: Enablement | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One partition as it was found. `replica` is None where nothing was committed there yet."""

    place: Place
    source: Pinned | KeyfoldError
    replica: Manifest | KeyfoldError | None


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition as of now. `is_by_cursor`: the replica could not be asked, see `Figures`."""

    state: PartitionState
    is_by_cursor: bool = False
    errors: tuple[Trouble, ...] = ()


def judge(seen: Seen, asked: Asked, reported: PartitionState | None = None, *, is_alive: bool = False) -> Standing:
    """`reported` is what the process that replicates has said last, `is_alive` whether it is still at work."""
    base = replace(PartitionState(seen.place) if reported is None else reported, place=seen.place)
    if isinstance(seen.source, KeyfoldError):
        return _blind(base, trouble(seen.source, asked.source_host), asked)
    known = _figures(seen, asked)
    is_copying = is_alive and base.state is State.COPYING
    if is_copying and known.pending.bytes > base.pending.bytes:
        # A round says how much of it is left; what it has copied is in no manifest yet.
        known = replace(known, pending=replace(known.pending, bytes=base.pending.bytes))
    base = _with_figures(base, seen.source.manifest, known)
    if isinstance(seen.replica, KeyfoldError):
        return replace(_blind(base, trouble(seen.replica, asked.replica_host), asked), is_by_cursor=True)
    if seen.replica is not None:
        base = _with_replica(base, seen.replica)
    found = _trouble(seen.source.manifest, seen.replica, asked, base, is_alive=is_alive)
    if found is not None:
        return _in_trouble(base, found, asked)
    state = State.PENDING
    if _is_equal(seen.source.manifest, seen.replica):
        state = State.IN_SYNC
    elif is_copying:
        state = State.COPYING
    return Standing(_paused(replace(_without_trouble(base), state=state), asked))


def _is_equal(source: Manifest, replica: Manifest | None) -> bool:
    return replica is not None and replica.is_replica and same_content(replica, source)


def _figures(seen: Seen, asked: Asked) -> Figures:
    assert isinstance(seen.source, Pinned)
    hold = seen.source.manifest.hold(asked.hold_name) or Hold(asked.hold_name, NO_VERSION, 0)
    if isinstance(seen.replica, KeyfoldError):
        return figures_by_cursor(seen.source, hold.received_to, received_at_ms=hold.received_at_ms)
    return figures(seen.source, seen.replica, received_at_ms=hold.received_at_ms)


def _with_figures(base: PartitionState, source: Manifest, known: Figures) -> PartitionState:
    return replace(
        base,
        pending=known.pending,
        lag=known.lag,
        source_version=source.version,
        source_next_offset=source.next_offset,
    )


def _with_replica(base: PartitionState, replica: Manifest) -> PartitionState:
    version = 0 if replica.replica is None else replica.replica.source_version
    return replace(base, replica_version=version, replica_next_offset=replica.next_offset)


def _trouble(
    source: Manifest, replica: Manifest | None, asked: Asked, base: PartitionState, *, is_alive: bool
) -> Trouble | None:
    """What keeps the next round from being done: by the manifests, then by what was reported, then by the rule."""
    is_equal = _is_equal(source, replica)
    mismatch = None if is_equal or replica is None else _mismatch(source, replica)
    if mismatch is not None:
        return trouble(mismatch, asked.replica_host)
    reported = _reported(base)
    if reported is not None and (is_alive or not is_equal):
        # Compaction may have been enabled since a process that is gone has said that it was not.
        is_known_better = not is_alive and reported.code in _BY_RULE and asked.enablement is not None
        if not is_known_better:
            return reported
    if is_equal or asked.enablement is None:
        return None
    refused = refusal(source, asked.enablement, asked.name)
    return None if refused is None else trouble(refused, asked.replica_host)


def _reported(state: PartitionState) -> Trouble | None:
    if not state.has_failed or state.state not in _BY_PROCESS:
        return None
    return Trouble(state.state, state.code, state.host, state.message, state.hint)


def _mismatch(source: Manifest, replica: Manifest) -> KeyfoldError | None:
    """Why the replica must not take this version of the source."""
    if replica.replica is None:
        return own_log(replica, source)
    try:
        require_follows(replica, source)
    except ReplicaError as error:
        return error
    return None


def _blind(base: PartitionState, seen: Trouble, asked: Asked) -> Standing:
    """One side did not answer who asks. What the process says counts; figures of then, or by the cursor, stay."""
    reported = _reported(base)
    if reported is None:
        return _in_trouble(base, seen, asked)
    is_same = (reported.code, reported.host) == (seen.code, seen.host)
    return Standing(_paused(base, asked), errors=(reported,) if is_same else (reported, seen))


def _in_trouble(base: PartitionState, found: Trouble, asked: Asked) -> Standing:
    same = (base.code, base.host) == (found.code, found.host)
    waits = base if same else _without_trouble(base)
    state = replace(waits, state=found.state, code=found.code, host=found.host, message=found.message, hint=found.hint)
    return Standing(_paused(state, asked), errors=(found,))


def _paused(state: PartitionState, asked: Asked) -> PartitionState:
    """A paused replica that will need a resync says so: who resumes it must know."""
    is_worse = state.state is State.RESYNC_REQUIRED
    return replace(state, state=State.PAUSED) if asked.is_paused and not is_worse else state


def _without_trouble(state: PartitionState) -> PartitionState:
    return replace(state, code="", host="", message="", hint="", attempts=0, backoff_ms=0)
