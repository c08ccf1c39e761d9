"""Positions that a log can serve, and the rules for continuing a read in a newer version.

A reader pins one manifest version. Replaced objects of that version stay for a while (`file.delete.delay.ms`), then
they are deleted, and a slow reader gets a 404. An *ordered* read may then continue in the newest version from its
position, because compaction never changes an offset and never moves a record: the remaining records after the position
are those that the reader would have read anyway.

Two cases would silently skip records, and both are errors:

    overtaken   the log start moved past the position (retention): records that the reader needs are gone;
    purged      a tombstone at or after the position was removed although this reader still needed it, because it may
                have read (or hold from the start) the older value that the tombstone deletes.

The second case is decided exactly and without clocks. A tombstone is *marked* by the pass whose commit leaves no older
record of its key. A reader that started after that commit never saw an older one and does not need the tombstone. So a
removed tombstone only matters if its mark is newer than the last whole pass of the reader's first version
(`purged_epoch > last_pass_epoch`), and if the reader had not reached it (`position <= purged_to`).

A log that continues another one (a promoted replica) also serves readers of the old one: it has the same records up to
the point where the logs diverged, with another log id. A third case would silently skip records there:

    diverged    the reader has seen the old log beyond that point. The records there exist nowhere else, and the reader
                never read the records that were compacted because of them.

So every version that was read must end at or before that point (`Anchor.seen_to`). The same holds for a replica that is
behind the source that was read before: it ends too early. And of the passes that the reader knew, only those count that
the new version has too. Otherwise the reader could still read records there that the others had removed; and the new
log may have given their numbers to its own passes.

A read without `to_offset` ends at the end of the version that it reads *now*: if a record was compacted because of a
newer one, the reader must also read the newer one, or it would see the key without any value.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from keyfold.errors import OffsetOutOfRange
from keyfold.log.manifest import Manifest, SegmentEntry


@dataclass(frozen=True, slots=True)
class Anchor:
    """The state of a reader's first version, stored with the reader's position, also across restarts.

    `seen_to` moves forward: no version that was read ends after it; -1 if unknown. `last_pass_epoch` goes back if the
    reader continues in a version without that pass, for example in a replica.
    """

    log_id: str
    version: int
    last_pass_epoch: int
    seen_to: int = field(default=-1, compare=False)


def anchor_of(manifest: Manifest) -> Anchor:
    """Return the anchor of a reader that starts with this version."""
    return Anchor(manifest.log_id, manifest.version, manifest.last_pass_epoch, manifest.next_offset)


def start_offset(manifest: Manifest, from_offset: int | None) -> int:
    """Return the start of a read: `from_offset` (up to `next_offset`), or the log start. Raises `OffsetOutOfRange`."""
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
    """Return the end of a read of this version, exclusive: `to_offset`, at most the log's end."""
    return manifest.next_offset if to_offset is None else min(to_offset, manifest.next_offset)


def check_resumed(anchor: Anchor, position: int, manifest: Manifest) -> Anchor:
    """Return the anchor of a reader that continues in `manifest` at `position`; it only changes after a promotion.

    Raises `OffsetOutOfRange` if continuing could hide a record that the reader needs.
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
    """Return the anchor of a reader of an older log in the log that continues it."""
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
            f"a replica was promoted that has the old log ({ancestor.log_id}) only below offset {ancestor.next_offset};"
            f" this reader, at offset {position}, has seen the old log below offset {seen_to}, so it may know records "
            "that are not in the log now",
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
    """Return the segment whose range contains `position`, or None at or after the end."""
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
