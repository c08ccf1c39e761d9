"""Which position a log can serve, and whether a reader may go on in a newer version of it.

A reader pins one manifest version. The objects of that version live on for a while after they were replaced
(`file.delete.delay.ms`), then they are collected, and a slow reader meets a 404. An *ordered* read may then go on in
the newest version from its position, because compaction never changes an offset and never moves a record: what is
left behind the position is what would have been read there anyway.

Two things would make a silent hole, and both are errors here:

    overtaken   the log start moved past the position (retention): records that were promised are gone;
    purged      a tombstone at or behind the position was removed, and this reader had still needed it, because it may
                have read (or hold from the start) the older value that the tombstone deletes.

The second is decided exactly and without clocks. A tombstone is *marked* by the pass whose commit leaves no older
record of its key. A reader that began after that commit never saw an older one and does not need the tombstone. So a
purge hurts only when the removed mark is younger than the last whole pass that the reader's first version knew
(`purged_epoch > last_pass_epoch`) and the tombstone was still ahead (`position <= purged_to`).

A log that goes on with another one (a replica that was promoted) serves readers of that one too: it has the same
records up to where it went its own way, under another log id. A third thing would make a silent hole there:

    parted      the reader has seen the old log beyond that point. What is there exists nowhere else, and what was
                compacted away because of it was never read.

So every version that was read must end at or before that point (`Anchor.seen_to`). The same is asked of a replica that
is behind the source that was read before: it ends too early. And of the passes that the reader knew only those count
that the version has too, in which it goes on: else it may still read there what they had removed, and later ones have
numbers that the new log gave to passes of its own.

The end of a read without `to_offset` is the end of the version that it reads *now*: a record that was compacted away
because of a newer one must be followed by that newer one, or the reader would see the key with no value at all.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from keyfold.errors import OffsetOutOfRange
from keyfold.log.manifest import Manifest, SegmentEntry


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a reader's first version knew; it goes with the reader's position, across restarts too.

    `seen_to` moves on: no version that was read ends behind it. -1 where that is not known. `last_pass_epoch` goes back
    where the reader goes on in a version that has not had that pass, as a replica's may be.
    """

    log_id: str
    version: int
    last_pass_epoch: int
    seen_to: int = field(default=-1, compare=False)


def anchor_of(manifest: Manifest) -> Anchor:
    """The anchor of a reader that begins with this version."""
    return Anchor(manifest.log_id, manifest.version, manifest.last_pass_epoch, manifest.next_offset)


def start_offset(manifest: Manifest, from_offset: int | None) -> int:
    """Where a read begins: `from_offset` (`next_offset` is legal), or the log start. Raises `OffsetOutOfRange`."""
    if from_offset is None:
        return manifest.log_start_offset
    if manifest.log_start_offset <= from_offset <= manifest.next_offset:
        return from_offset
    raise OffsetOutOfRange(
        manifest.topic,
        manifest.partition,
        f"offset {from_offset} is outside of the log, which has offsets "
        f"[{manifest.log_start_offset}, {manifest.next_offset}) in version {manifest.version}",
        hint=f"read from an offset between {manifest.log_start_offset} and {manifest.next_offset}, or omit the offset",
    )


def end_offset(manifest: Manifest, to_offset: int | None) -> int:
    """Where a read of this version ends, exclusive: `to_offset`, at most the log's end."""
    return manifest.next_offset if to_offset is None else min(to_offset, manifest.next_offset)


def check_resumed(anchor: Anchor, position: int, manifest: Manifest) -> Anchor:
    """The anchor with which a reader at `position` goes on in `manifest`: its own, but where the log was promoted.

    Raises `OffsetOutOfRange` where going on could hide a record that the reader needs.
    """
    if manifest.log_id != anchor.log_id:
        anchor = _inherited(anchor, position, manifest)
    elif manifest.next_offset < anchor.seen_to:
        raise OffsetOutOfRange(
            manifest.topic,
            manifest.partition,
            f"version {manifest.version} ends at offset {manifest.next_offset}, but this reader, at offset {position}, "
            f"has seen the log up to {anchor.seen_to}",
            hint="if this is a replica that lags behind its source, continue when it has caught up",
        )
    anchor = replace(anchor, last_pass_epoch=min(anchor.last_pass_epoch, manifest.last_pass_epoch))
    if position < manifest.log_start_offset:
        raise _lost(
            manifest,
            f"the log start moved to {manifest.log_start_offset} before offset {position} was read",
        )
    if manifest.purged_epoch > anchor.last_pass_epoch and position <= manifest.purged_to:
        raise _lost(
            manifest,
            f"tombstones up to offset {manifest.purged_to} were removed before this reader, at offset {position}, "
            f"had passed them (the reader began with version {anchor.version})",
        )
    return replace(anchor, seen_to=max(anchor.seen_to, manifest.next_offset))


def _inherited(anchor: Anchor, position: int, manifest: Manifest) -> Anchor:
    """The anchor of a reader of an older log in the log that goes on with it."""
    ancestor = manifest.ancestor(anchor.log_id)
    if ancestor is None:
        raise _lost(
            manifest,
            f"the log was created again (log id {anchor.log_id} became {manifest.log_id}) before offset {position} "
            "was read",
        )
    seen_to = max(position, anchor.seen_to)
    if seen_to > ancestor.next_offset:
        raise _lost(
            manifest,
            f"the log continues the log {ancestor.log_id} from offset {ancestor.next_offset}, but this reader, at "
            f"offset {position}, has seen that log up to {seen_to}",
        )
    known = min(anchor.last_pass_epoch, ancestor.last_epoch)
    return Anchor(manifest.log_id, manifest.version, known, anchor.seen_to)


def _lost(manifest: Manifest, message: str) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        manifest.topic,
        manifest.partition,
        message,
        hint="read again from the beginning; a slow reader needs larger delete.retention.ms and file.delete.delay.ms",
    )


def segment_at(manifest: Manifest, position: int) -> SegmentEntry | None:
    """The segment whose range holds `position`, or None at or past the end."""
    at = bisect_right(manifest.segments, position, key=lambda s: s.base_offset) - 1
    if at < 0:
        return None
    entry = manifest.segments[at]
    return entry if position < entry.next_offset else None


def segments_between(manifest: Manifest, position: int, end: int) -> tuple[SegmentEntry, ...]:
    """Segments that can have records in `[position, end)`, in order. By last offset, not by range: the rest of a range
    is a hole, and a segment that ends before the position is not opened.
    """
    return tuple(s for s in manifest.segments if s.last_offset >= position and s.base_offset < end)


def segments_from_time(manifest: Manifest, timestamp_ms: int) -> tuple[SegmentEntry, ...]:
    """Segments that can have a record with `timestamp >= timestamp_ms`, in offset order: the first of them answers,
    but for times before 1970: a manifest's bounds leave out -1, Kafka's "no timestamp".
    """
    return tuple(s for s in manifest.segments if s.max_timestamp >= timestamp_ms or timestamp_ms < 0)
