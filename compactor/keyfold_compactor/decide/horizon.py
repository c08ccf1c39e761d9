"""Decide which tombstones a pass removes: those past their delete horizon that every replica has received.

A tombstone is marked by the pass that leaves no older record of its key. Two waits start with that pass's commit:

    delete.retention.ms        the time in which readers can see the tombstone; then it is *due*
    replica.hold.max.ms        starts when it is due: a replica that has not received it holds it for at most this time;
                               then it is *overdue* and is removed anyway, and that replica needs a resync

The source's manifest has one offset for each replica (`Hold.received_to`): the replica has received every tombstone
below it. A registered replica without an entry has received nothing. So a tombstone is removed when it is due and below
the lowest of these offsets, or when it is overdue.

An index says for each tombstone which pass marked it. A manifest only says which passes marked tombstones in a segment.
So a manifest alone proves that a segment's tombstones can go only if all of the segment was received, and only that
makes a log due. Otherwise every run would clean a log in vain, because a tombstone *might* be below the offset.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.log.manifest import Manifest, SegmentEntry, is_over
from keyfold.runtime.clock import NEVER_MS
from keyfold_compactor.decide.settings import TopicSettings

UNHELD: Final = NEVER_MS
"""No replica holds anything."""

_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Purge:
    """The marked tombstones that a pass removes.

    These are tombstones of `due_epochs` below `held_from`, and all tombstones of `overdue_epochs`. Overdue epochs are
    due.
    """

    due_epochs: frozenset[int] = _NONE
    held_from: int = UNHELD
    overdue_epochs: frozenset[int] = _NONE

    def of_all(self, entry: SegmentEntry) -> frozenset[int]:
        """Return the passes whose tombstones in a segment all go. With any, a pass over the segment has an effect."""
        return self._going(entry, entry.last_offset)

    def of_some(self, entry: SegmentEntry) -> frozenset[int]:
        """Return the passes with tombstones in a segment that may go. Without any, it need not be read."""
        return self._going(entry, entry.base_offset)

    def held(self, entry: SegmentEntry) -> frozenset[int]:
        """Return the passes with tombstones in a segment that may be held."""
        if entry.last_offset < self.held_from:
            return _NONE
        return (self.due_epochs - self.overdue_epochs).intersection(entry.cleaned_epochs)

    def _going(self, entry: SegmentEntry, offset: int) -> frozenset[int]:
        return (self.due_epochs if offset < self.held_from else self.overdue_epochs).intersection(entry.cleaned_epochs)


@dataclass(frozen=True, slots=True)
class HeldTombstones:
    """Tombstones that are due and held, for reports: `segments` may have some at `from_offset` or above.

    `replicas` are those that have received nothing beyond that offset. `until_ms` is the store time at which the first
    of these tombstones are removed anyway.
    """

    from_offset: int
    replicas: tuple[str, ...]
    segments: int
    until_ms: int


def purge_of(manifest: Manifest, settings: TopicSettings, now_ms: int) -> Purge:
    """Return what a pass over this version removes at the store time `now_ms`."""
    due = due_epochs(manifest, settings.delete_retention_ms, now_ms)
    held = held_from(manifest, settings.replicas)
    if not due or held == UNHELD:
        return Purge(due)
    hold_ms = settings.delete_retention_ms + settings.replica_hold_max_ms
    return Purge(due, held, due_epochs(manifest, hold_ms, now_ms))


def due_epochs(manifest: Manifest, wait_ms: int, now_ms: int) -> frozenset[int]:
    """Return the passes that were committed longer than `wait_ms` ago."""
    return frozenset(p.epoch for p in manifest.passes if is_over(p.committed_at_ms, wait_ms, now_ms))


def held_from(manifest: Manifest, replicas: Collection[str]) -> int:
    """Return the first offset that one of these replicas has not received; `UNHELD` without replicas."""
    return min(_received(manifest, replicas).values(), default=UNHELD)


def held_by(manifest: Manifest, settings: TopicSettings, purge: Purge) -> HeldTombstones | None:
    """Return the tombstones of a log that replicas hold; None if there are none."""
    held = [epochs for epochs in map(purge.held, manifest.segments) if epochs]
    if not held:
        return None
    epochs = frozenset[int]().union(*held)
    wait_ms = settings.delete_retention_ms + settings.replica_hold_max_ms
    slowest = [n for n, to in _received(manifest, settings.replicas).items() if to <= purge.held_from]
    return HeldTombstones(
        from_offset=purge.held_from,
        replicas=tuple(sorted(slowest)),
        segments=len(held),
        until_ms=min(p.committed_at_ms for p in manifest.passes if p.epoch in epochs) + wait_ms,
    )


def plain_names(hold_names: Sequence[str]) -> tuple[str, ...]:
    """Return the registered names of replicas."""
    return tuple(name.partition("@")[0] for name in hold_names)


def _received(manifest: Manifest, replicas: Collection[str]) -> dict[str, int]:
    found = dict.fromkeys(replicas, 0)
    for hold in manifest.holds:
        if hold.replica in found:
            found[hold.replica] = max(found[hold.replica], hold.received_to)
    return found
