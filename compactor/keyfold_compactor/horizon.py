"""Which tombstones may go: those past their delete horizon, and of these the ones that every replica has received.

A tombstone is marked by the pass that left no older record of its key. From that pass's commit on two waits run:

    delete.retention.ms        readers have so long to see it; then it is *due*
    replica.hold.max.ms        beginning when it is due: a replica that has not received it holds it so long at most;
                               then it is *overdue*, goes all the same, and that replica needs a resync

What a replica has received is one offset in the source's manifest (`Hold.received_to`): it has had every tombstone
below it. A replica that is registered and has no entry there has received nothing. So a tombstone goes when it is due
and below the least of these offsets, or when it is overdue.

An index says of each tombstone which pass marked it; a manifest only which passes did in a segment. So from a manifest
alone a tombstone of a segment surely goes when all of the segment was received, and a log is due for that only: one
that is cleaned in each run because a tombstone *might* be below the offset would be cleaned for nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from keyfold.log.manifest import Manifest, SegmentEntry, is_over
from keyfold_compactor.settings import LONG_MAX, TopicSettings

UNHELD: Final = LONG_MAX
"""No replica holds anything."""

_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Purge:
    """Which marked tombstones a pass removes.

    Those of `due_epochs` below `held_from`, and those of `overdue_epochs` wherever they are. What is overdue is due.
    """

    due_epochs: frozenset[int] = _NONE
    held_from: int = UNHELD
    overdue_epochs: frozenset[int] = _NONE

    def of_all(self, entry: SegmentEntry) -> frozenset[int]:
        """The passes whose tombstones in a segment all go: where there are any, a pass over it gets something done."""
        return self._going(entry, entry.last_offset)

    def of_some(self, entry: SegmentEntry) -> frozenset[int]:
        """The passes of whose tombstones in a segment some may go: where there are none, it need not be read."""
        return self._going(entry, entry.base_offset)

    def held(self, entry: SegmentEntry) -> frozenset[int]:
        """The passes of whose tombstones in a segment some may be held."""
        if entry.last_offset < self.held_from:
            return _NONE
        return (self.due_epochs - self.overdue_epochs).intersection(entry.cleaned_epochs)

    def _going(self, entry: SegmentEntry, offset: int) -> frozenset[int]:
        return (self.due_epochs if offset < self.held_from else self.overdue_epochs).intersection(entry.cleaned_epochs)


@dataclass(frozen=True, slots=True)
class Held:
    """Tombstones that are due and stay, for people: in so many segments some may be at `from_offset` or above.

    `replicas` are those that have received no more than that; `until_ms` is the store time at which the first of these
    tombstones go even so.
    """

    from_offset: int
    replicas: tuple[str, ...]
    segments: int
    until_ms: int


def purge_of(manifest: Manifest, settings: TopicSettings, now_ms: int) -> Purge:
    """What a pass of this version removes at the store time `now_ms`."""
    due = due_epochs(manifest, settings.delete_retention_ms, now_ms)
    held = held_from(manifest, settings.replicas)
    if not due or held == UNHELD:
        return Purge(due)
    hold_ms = settings.delete_retention_ms + settings.replica_hold_max_ms
    return Purge(due, held, due_epochs(manifest, hold_ms, now_ms))


def due_epochs(manifest: Manifest, wait_ms: int, now_ms: int) -> frozenset[int]:
    """The passes that were committed longer than `wait_ms` ago."""
    return frozenset(p.epoch for p in manifest.passes if is_over(p.committed_at_ms, wait_ms, now_ms))


def held_from(manifest: Manifest, replicas: Collection[str]) -> int:
    """The first offset that one of these replicas has not received; `UNHELD` without any."""
    return min(_received(manifest, replicas).values(), default=UNHELD)


def held_by(manifest: Manifest, settings: TopicSettings, purge: Purge) -> Held | None:
    """What of a log is held, and by whom; None where nothing is."""
    held = [epochs for epochs in map(purge.held, manifest.segments) if epochs]
    if not held:
        return None
    epochs = frozenset[int]().union(*held)
    wait_ms = settings.delete_retention_ms + settings.replica_hold_max_ms
    slowest = [n for n, to in _received(manifest, settings.replicas).items() if to <= purge.held_from]
    return Held(
        from_offset=purge.held_from,
        replicas=tuple(sorted(slowest)),
        segments=len(held),
        until_ms=min(p.committed_at_ms for p in manifest.passes if p.epoch in epochs) + wait_ms,
    )


def _received(manifest: Manifest, replicas: Collection[str]) -> dict[str, int]:
    found = dict.fromkeys(replicas, 0)
    for hold in manifest.holds:
        if hold.replica in found:
            found[hold.replica] = max(found[hold.replica], hold.received_to)
    return found
