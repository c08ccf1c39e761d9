"""Decide which records of a segment stay: Kafka's rule (Cleaner.shouldRetainRecord) on whole columns.

A record in the cleaned range is removed if it is

    superseded     it has a key, and the offset map has a later offset of that key;
    purged         it is a tombstone, marked by a pass whose delete horizon has passed, and no replica holds it;
    keyless        it has no key, and the topic asks for Kafka's rule for such records.

Every remaining tombstone without a mark gets one: after a full pass no older record of its key is left below it, and
`delete.retention.ms` starts with the commit of this pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.log.manifest import NO_EPOCH, NO_OFFSET
from keyfold.runtime.arrow_types import ArrowArray
from keyfold_compactor.decide.horizon import Purge

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeepDecision:
    """The decision for one segment: `keep` per row, counts, and what a purge must write into the manifest.

    `held_count` are tombstones kept only for replicas.
    """

    keep: Bools
    superseded_count: int
    purged_count: int
    held_count: int
    keyless_count: int
    mark_count: int
    tombstone_count: int
    kept_payload_bytes: int
    payload_bytes: int
    purged_to: int
    purged_epoch: int

    @property
    def kept_count(self) -> int:
        """Number of records that stay."""
        return int(np.count_nonzero(self.keep))


def retain(rows: pa.Table, superseded: Bools, *, purge: Purge, remove_keyless: bool) -> KeepDecision:
    """Decide about all rows of one index (see `keyfold.log.index`).

    `superseded` says per row whether the offset map has a later offset of its key.
    """
    offsets = rows["offset"].to_numpy()
    tombstone = rows["is_tombstone"].to_numpy()
    marks = rows["cleaned_epoch"].combine_chunks().fill_null(NO_EPOCH).to_numpy(zero_copy_only=False)
    lengths = rows["length"].to_numpy()
    due = tombstone & ~superseded & _is_in(marks, purge.due_epochs)
    purged = due
    if len(offsets) and offsets[-1] >= purge.held_from:
        purged = due & ((offsets < purge.held_from) | _is_in(marks, purge.overdue_epochs))
    keep = ~(superseded | purged)
    keyless_count = 0
    if remove_keyless:
        keyless = pc.is_null(rows["key"]).to_numpy()
        keyless_count = int(np.count_nonzero(keyless))
        keep &= ~keyless
    kept_tombstone = tombstone & keep
    return KeepDecision(
        keep=keep,
        superseded_count=int(np.count_nonzero(superseded)),
        purged_count=int(np.count_nonzero(purged)),
        held_count=int(np.count_nonzero(due)) - int(np.count_nonzero(purged)),
        keyless_count=keyless_count,
        mark_count=int(np.count_nonzero(kept_tombstone & (marks == NO_EPOCH))),
        tombstone_count=int(np.count_nonzero(kept_tombstone)),
        kept_payload_bytes=int(lengths[keep].sum()),
        payload_bytes=int(lengths.sum()),
        purged_to=int(offsets[purged].max()) if purged.any() else NO_OFFSET,
        purged_epoch=int(marks[purged].max()) if purged.any() else NO_EPOCH,
    )


def _is_in(marks: npt.NDArray[np.int64], epochs: frozenset[int]) -> Bools:
    return np.isin(marks, np.fromiter(epochs, np.int64, len(epochs)))


def old_marks(rows: pa.Table, keep: Bools) -> ArrowArray:
    """Return the `cleaned_epoch` of the rows that stay, unchanged."""
    return rows["cleaned_epoch"].filter(pa.array(keep)).combine_chunks()


def new_marks(rows: pa.Table, keep: Bools, epoch: int) -> ArrowArray:
    """Return the `cleaned_epoch` of the rows that stay: unchanged, or `epoch` for tombstones without a mark."""
    kept = rows.select(["is_tombstone", "cleaned_epoch"]).filter(pa.array(keep))
    marks = kept["cleaned_epoch"].combine_chunks()
    is_new = pc.and_(kept["is_tombstone"].combine_chunks(), pc.is_null(marks))
    marked: ArrowArray = pc.if_else(is_new, pa.scalar(epoch, marks.type), marks)
    return marked
