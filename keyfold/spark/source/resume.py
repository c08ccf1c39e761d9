"""Whether a reader of many tasks may continue in a newer version of a log, and from where.

    always          `keyfold.read.position.check_resumed`: neither overtaken by the log start, nor a tombstone purged
                    that was still to be read, nor another log
    of a snapshot   records that were compacted away must have given way to records *inside* the snapshot, so nothing
                    at or behind the snapshot's end may have been cleaned: else a key would be missing from it

Tasks that read side by side are no more than one ordered reader: each asks about its own position, with the anchor that
all have; a tombstone that lies behind one of them was read, or is asked about by the task that has its offset.

The second is a question of `mapped_to`: no pass has removed a record for one at or behind it. A part of a pass, and a
pass that leaves segments with little garbage, remove records for newer ones behind the `first_dirty_offset` that they
commit. That is asked too, for a log whose compactor wrote no `mapped_to` yet.

With `failOnDataLoss` off, what the first rule refuses is skipped, and logged.
"""

from __future__ import annotations

import structlog

from keyfold.errors import ObjectNotFound, OffsetOutOfRange, SnapshotLost
from keyfold.log.manifest import Manifest
from keyfold.read.position import Anchor, anchor_of, check_resumed

log = structlog.get_logger(__name__)


def resume(anchor: Anchor, position: int, manifest: Manifest, *, fail: bool) -> tuple[int, Anchor]:
    """Where a reader continues in a newer version, and its anchor from then on.

    Raises `OffsetOutOfRange` where that hides what the reader needs; or says so in the log and goes on behind it.
    """
    try:
        return position, check_resumed(anchor, position, manifest)
    except OffsetOutOfRange as lost:
        if fail:
            raise with_way_out(lost) from None
        is_other = manifest.log_id != anchor.log_id
        go_on = manifest.log_start_offset if is_other else max(position, manifest.log_start_offset)
        log.warning(
            "data loss ignored because failOnDataLoss is false",
            topic=manifest.topic,
            partition=manifest.partition,
            lost=lost.message,
            position=position,
            next_position=go_on,
        )
        return go_on, anchor_of(manifest)


def with_way_out(lost: OffsetOutOfRange) -> OffsetOutOfRange:
    """The same, with what this reader can be told to do about it."""
    hint = f"{lost.hint}, or set failOnDataLoss to false to continue without the lost records" if lost.hint else None
    return OffsetOutOfRange(lost.topic, lost.partition, _bare(lost), hint=hint)


def _bare(lost: OffsetOutOfRange) -> str:
    return lost.message.removeprefix(f"{lost.topic}-{lost.partition}: ")


def check_snapshot(log_end: int, manifest: Manifest, missing: ObjectNotFound) -> None:
    """Raise `SnapshotLost` where a pass has cleaned beyond the snapshot's end."""
    if max(manifest.first_dirty_offset, manifest.mapped_to) > log_end:
        raise SnapshotLost(
            manifest.topic,
            manifest.partition,
            f"the log was compacted beyond offset {log_end}, where this read ends, and `{missing.key}` was deleted",
            hint="read it again; file.delete.delay.ms must be longer than the read",
        ) from missing
