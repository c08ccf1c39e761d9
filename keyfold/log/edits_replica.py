"""Pure edits of a replica's manifest, and of its source's manifest for the replica, as in `edits`.

    hold, drop_hold       in the source: the objects that a replica still needs, and the offsets that it has
    claim_replica         in the replica: claim the replicator's epoch
    mirror                apply a version of the source, whose objects have been copied
    stamp, forget         write the times of replaced objects; remove deleted objects from the list
    promote               make the replica a log with its own writers, which continues the source's log
    demote                make a log the replica of another one, which must continue it

A replica's manifest equals the source's, except for its own version, its own holds (a replica can have replicas), and
its own `replaced` with its own store's times. A replica may skip source versions, but never goes back. If a version of
the source does not list an object, no later version does, so an object that a mirror removes is never needed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from keyfold.errors import Fenced, ReplicaDiverged, ResyncRequired
from keyfold.log.edits import Edit, require_writers
from keyfold.log.manifest import (
    NO_VERSION,
    UNSTAMPED,
    Ancestor,
    Hold,
    Manifest,
    Replaced,
    ReplicaState,
    RoleState,
    Token,
    content,
)
from keyfold.log.names import parse_name

_RESYNC: Final = (
    "nothing was copied; if the source is right, `keyfold replica resync` makes the replica accept the source's log as "
    "it is, once"
)


@dataclass(frozen=True, slots=True)
class Following:
    """The source of a replica: the name that the replica is registered under, and the source's URL (for people)."""

    name: str
    source: str


# in the source


def hold(name: str, version: int | None, expires_in_ms: int, received_to: int | None = None) -> Edit:
    """Hold the objects of `version` for replica `name` for `expires_in_ms` (None: hold none), and record what it has.

    `received_to` never goes back. An edit without effect returns the manifest unchanged.
    """

    def edit(manifest: Manifest, seen_ms: int) -> Manifest:
        old = manifest.hold(name) or Hold(name, NO_VERSION, 0)
        new = replace(
            old,
            version=NO_VERSION if version is None else version,
            expires_at_ms=0 if version is None else seen_ms + expires_in_ms,
        )
        if received_to is not None and received_to > old.received_to:
            new = replace(new, received_to=received_to, received_at_ms=seen_ms)
        if new == old and manifest.hold(name) is not None:
            return manifest
        others = tuple(h for h in manifest.holds if h.replica != name)
        return replace(manifest, holds=tuple(sorted((*others, new), key=lambda h: h.replica)))

    return edit


def drop_hold(name: str) -> Edit:
    """Remove the hold of a replica that is no longer registered."""

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        if manifest.hold(name) is None:
            return manifest
        return replace(manifest, holds=tuple(h for h in manifest.holds if h.replica != name))

    return edit


# in the replica


FIRST_EPOCH: Final = 1
"""Epoch of the replicator that writes a replica's first manifest, or creates a lost one again."""


def first_mirror(source: Manifest, following: Following, commit_id: str, claim_id: str) -> Manifest:
    """Return the first manifest of a replica, for the replicator that drew `claim_id`. Its objects must exist."""
    state = ReplicaState(FIRST_EPOCH, commit_id, following.name, following.source, claim_id=claim_id)
    empty = replace(source, version=0, segments=(), replaced=(), holds=(), replica=state)
    return replace(_mirrored(empty, source, UNSTAMPED), version=1)


def claim_replica(expected: Token, following: Following, claim_id: str) -> Edit:
    """Claim the replicator's epoch, which was that of `expected` when the claimer read it; `claim_id` was just drawn.

    The epoch is the manifest version of the claim. No other claim ever had it, even if the log was promoted in between.
    If the manifest was lost, versions start again; then the drawn id identifies the claimer.
    """

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        state = require_epoch(manifest, expected)
        if state.name != following.name:
            raise ReplicaDiverged(
                manifest.topic,
                manifest.partition,
                f"this log is the replica `{state.name}` of {state.source}, not `{following.name}`",
                hint="give each replica a bucket or a topics.dir of its own",
            )
        claimed = replace(state, epoch=manifest.version + 1, claim_id=claim_id, source=following.source)
        return replace(manifest, replica=claimed)

    return edit


def mirror(token: Token, source: Manifest, *, resync: bool = False) -> Edit:
    """Apply `source`, whose objects must exist; `require_follows` has the other requirements."""

    def edit(manifest: Manifest, seen_ms: int) -> Manifest:
        require_epoch(manifest, token)
        require_follows(manifest, source, resync=resync)
        return _mirrored(manifest, source, seen_ms)

    return edit


def stamp(token: Token) -> Edit:
    """Change nothing: every commit fills in missing times."""

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        require_epoch(manifest, token)
        return manifest

    return edit


def forget(token: Token, names: Iterable[str]) -> Edit:
    """Remove deleted objects from the list of replaced ones."""
    gone = frozenset(names)

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        require_epoch(manifest, token)
        return replace(manifest, replaced=tuple(r for r in manifest.replaced if r.name not in gone))

    return edit


def promote(token: Token, log_id: str, *, epochs_above: int = 0, source: Manifest | None = None) -> Edit:
    """Make the replica the log `log_id`, which continues at the end of its source's version.

    `source`, if known, must equal the replica: then no record is left behind. `epochs_above` is the newest epoch of any
    name in the folder, which may still contain objects of an older log.
    """

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        state = require_epoch(manifest, token)
        if source is not None and not same_content(source, manifest):
            raise ReplicaDiverged(
                manifest.topic,
                manifest.partition,
                f"the source has changed since version {state.source_version}: version {source.log_version} ends at "
                f"{source.next_offset}, the replica at {manifest.next_offset}",
                hint="replicate once more, then promote",
                lost_from=manifest.next_offset,
                lost_to=max(manifest.next_offset, source.next_offset),
            )
        version = manifest.log_version if source is None else source.log_version
        # A log that was demoted and has received nothing is still the same log, with the same version numbers.
        version = version or manifest.version
        ancestor = Ancestor(manifest.log_id, version, manifest.next_offset, manifest.last_epoch)
        return replace(
            manifest,
            log_id=log_id,
            last_epoch=max(manifest.last_epoch, epochs_above),
            replica=None,
            lineage=(*manifest.lineage, ancestor),
        )

    return edit


def demote(source: Manifest, following: Following, *, discard: bool = False) -> Edit:
    """Make a log the replica of `source`: a replica of this log that will be promoted, or was promoted.

    Raises `ReplicaDiverged` if `source` is neither, if this log has records that `source` lacks (unless `discard`), and
    if it has replaced objects that `source` still lists, because their names may be deleted here.
    """

    def edit(manifest: Manifest, _seen_ms: int) -> Manifest:
        require_writers(manifest)
        state = ReplicaState(manifest.version + 1, "", following.name, following.source)
        if source.log_id == manifest.log_id and source.replica is not None:
            state = replace(state, source_log_id=manifest.log_id, source_version=manifest.version + 1)
        else:
            _require_nothing_lost(manifest, source, discard=discard)
            state = replace(state, source_log_id=source.log_id)
        return replace(manifest, replica=state, compactor=RoleState(manifest.compactor.epoch))

    return edit


# rules


def same_content(one: Manifest, other: Manifest) -> bool:
    """Return whether two manifests describe the same state of the same log, including fields of newer formats."""
    return content(one) == content(other) and _unknown(one) == _unknown(other)


def require_follows(manifest: Manifest, source: Manifest, *, resync: bool = False) -> None:
    """Raise an error if a replica's manifest must not become `source`'s.

    `ReplicaDiverged`: `source` is another log, an older version, or a later one that lacks data of the replica; or it
    lists an object that the replica has replaced. `ResyncRequired`: `source` removed a tombstone that the replica had
    not received. `resync` accepts all cases except a replaced object.
    """
    state = require_replica(manifest)
    again = source.object_names() & {r.name for r in manifest.replaced}
    if again:
        raise _diverged(
            manifest,
            f"the source lists {min(again)} ({len(again)} such objects), which the replica has replaced and may delete",
            hint="replicate again after `file.delete.delay.ms`, when the replica has deleted it",
        )
    if resync:
        return
    _require_successor(manifest, state, source)
    if state.source_version == 0:
        return
    for name in ("next_offset", "log_start_offset", "purged_to", "last_epoch"):
        here, there = getattr(manifest, name), getattr(source, name)
        if there < here:
            raise _diverged(
                manifest,
                f"{name} is {there} at the source and was {here} in version {state.source_version} of its manifest: an "
                "older manifest was put back at the source",
            )
    if source.purged_to >= manifest.next_offset:
        raise ResyncRequired(
            manifest.topic,
            manifest.partition,
            f"the source has removed a tombstone at offset {source.purged_to}, but the replica has only received "
            f"offsets below {manifest.next_offset}: its readers would keep the deleted key",
            hint=_RESYNC + "; readers that started before must start again",
        )


def _require_successor(manifest: Manifest, state: ReplicaState, source: Manifest) -> None:
    if source.log_id != state.source_log_id:
        ancestor = source.ancestor(state.source_log_id)
        if ancestor is None:
            raise _diverged(
                manifest,
                f"the replica follows the log {state.source_log_id}, but the source has the log {source.log_id}: the "
                "source was reset or repaired, or it is another one",
            )
        if ancestor.version < state.source_version:
            raise _diverged(
                manifest,
                f"the source continues from version {ancestor.version} of the log {ancestor.log_id}, but the replica "
                f"has its version {state.source_version}",
                lost_from=ancestor.next_offset,
                lost_to=max(ancestor.next_offset, manifest.next_offset),
            )
    elif source.log_version < state.source_version or (
        source.log_version == state.source_version and not same_content(source, manifest)
    ):
        raise _diverged(
            manifest,
            f"the source is at version {source.log_version}, but the replica already has version "
            f"{state.source_version}: somebody put an older manifest back at the source",
        )


def _require_nothing_lost(manifest: Manifest, source: Manifest, *, discard: bool) -> None:
    ancestor = source.ancestor(manifest.log_id)
    if ancestor is None:
        raise _diverged(
            manifest,
            f"the source's log {source.log_id} does not continue this log, {manifest.log_id}",
            hint="a log can only become a replica of the log that was promoted from its replica",
        )
    unlinked = sorted(_inherited(source, ancestor) - manifest.object_names())
    if unlinked:
        raise _diverged(
            manifest,
            f"the new source's manifest lists {unlinked[0]} ({len(unlinked)} such), which this log has replaced "
            "by compaction; this log's compactor may still be deleting it",
            hint="clean the log at the new source first (`keyfold compact run`), or replicate into another folder",
        )
    if manifest.next_offset > ancestor.next_offset and not discard:
        records = sum(
            min(s.record_count, s.last_offset + 1 - ancestor.next_offset)
            for s in manifest.segments
            if s.last_offset >= ancestor.next_offset
        )
        raise _diverged(
            manifest,
            f"offsets {ancestor.next_offset} to {manifest.next_offset - 1} (up to {records} records) were written "
            "here after the replica was promoted, and would be lost",
            hint="export them first (`keyfold log export`), then demote with --discard",
            lost_from=ancestor.next_offset,
            lost_to=manifest.next_offset,
            lost_records=records,
        )


def _inherited(source: Manifest, ancestor: Ancestor) -> set[str]:
    """Return the objects listed by `source` that were created before it was promoted."""
    parsed = ((name, parse_name(name)) for name in source.object_names())
    return {name for name, p in parsed if p is not None and p.epoch <= ancestor.last_epoch}


def _mirrored(manifest: Manifest, source: Manifest, seen_ms: int) -> Manifest:
    state = require_replica(manifest)
    shared_to = _shared_to(manifest, source)
    # Objects that only this side had belong to no log any more. They become orphans immediately: listed as replaced,
    # they would look like records that the log has lost.
    waiting = {n for s in manifest.segments if s.last_offset < shared_to for n in (s.name, s.index_name)}
    unlinked = sorted(waiting - source.object_names())
    version = manifest.version + 1
    return replace(
        source,
        version=manifest.version,
        sink=RoleState(source.sink.epoch),
        compactor=RoleState(source.compactor.epoch),
        # Its own replicas have only received the part of this log that both have in common.
        holds=tuple(replace(h, received_to=min(h.received_to, shared_to)) for h in manifest.holds),
        replaced=manifest.replaced + tuple(Replaced(name, version, UNSTAMPED) for name in unlinked),
        replica=replace(state, source_log_id=source.log_id, source_version=source.log_version, received_at_ms=seen_ms),
    )


def _shared_to(manifest: Manifest, source: Manifest) -> int:
    """Return the offset below which both logs have the same records."""
    if source.log_id == manifest.log_id:
        return source.next_offset
    ancestor = source.ancestor(manifest.log_id)
    return 0 if ancestor is None else ancestor.next_offset


def require_replica(manifest: Manifest) -> ReplicaState:
    """Return the state of a replica. Raises `Fenced` if the log is no longer a replica, because it was promoted."""
    if manifest.replica is None:
        raise Fenced(
            manifest.topic, manifest.partition, f"the log is no longer a replica: it was promoted as {manifest.log_id}"
        )
    return manifest.replica


def own_log(manifest: Manifest, source: Manifest) -> ReplicaDiverged:
    """Return the error for a log with its own writers in the place of a replica."""
    if manifest.ancestor(source.log_id) is not None:
        what = f"this log was promoted to {manifest.log_id}, which continues the source's log {source.log_id}"
        hint = "make the old source its replica with `keyfold replica demote`, or remove this replica"
    else:
        what = f"the log here ({manifest.log_id}) has its own sink and compactor and is not a replica"
        hint = "give the replica a bucket or a topics.dir of its own"
    return ReplicaDiverged(manifest.topic, manifest.partition, what, hint=hint)


def require_epoch(manifest: Manifest, token: Token) -> ReplicaState:
    """Raise `Fenced` if another replicator has claimed the log, or if it is no longer a replica."""
    state = require_replica(manifest)
    if state.token == token:
        return state
    what = f"another replicator has claimed epoch {state.epoch}; this one had epoch {token.epoch}"
    if state.epoch <= token.epoch:
        what = f"the manifest was lost, and another replicator has created it again with epoch {state.epoch}"
    raise Fenced(manifest.topic, manifest.partition, what)


def _diverged(
    manifest: Manifest,
    message: str,
    *,
    hint: str = _RESYNC,
    lost_from: int = 0,
    lost_to: int = 0,
    lost_records: int = 0,
) -> ReplicaDiverged:
    return ReplicaDiverged(
        manifest.topic,
        manifest.partition,
        message,
        hint=hint,
        lost_from=lost_from,
        lost_to=lost_to,
        lost_records=lost_records,
    )


def _unknown(manifest: Manifest) -> tuple[object, ...]:
    unknown = (p.unknown for parts in (manifest.segments, manifest.gaps, manifest.lineage) for p in parts)
    return dict(manifest.unknown), [dict(u) for u in unknown if u]
