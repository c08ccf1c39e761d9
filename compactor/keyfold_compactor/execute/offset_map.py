"""Kafka's offset map: the last offset of every key in a log's dirty range, and which rows it supersedes.

Kafka keeps MD5 digests in a fixed buffer and trusts that none collide. Here whole keys are compared, in Arrow. The
dirty range is encoded once, so each distinct key gets a number. One assignment then sets the last offset of each
number, because offsets ascend. The clean part is only probed. It adds no key, so the map's memory follows the dirty
range.

A record without a key has no entry and no match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks, ArrowCodes

NOT_IN_MAP: Final = -1
# A pyarrow `binary` array addresses 2 GiB of values; beyond half of it keys move to 64-bit addresses.
BINARY_BYTES_MAX: Final = 2**30

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Keys, distinct and not null; `last_offsets[i]` is the last offset of `keys[i]` in the dirty range."""

    keys: ArrowArray
    last_offsets: Offsets

    def __len__(self) -> int:
        return len(self.keys)

    def probe(self, keys: ArrowChunks) -> Offsets:
        """Return per row the last offset of its key in the dirty range, or `NOT_IN_MAP`."""
        if len(self.keys) == 0 or len(keys) == 0:
            return np.full(len(keys), NOT_IN_MAP, np.int64)
        wanted = keys.cast(self.keys.type) if keys.type != self.keys.type else keys
        found = pc.index_in(wanted, value_set=self.keys, skip_nulls=True)
        numbers = found.fill_null(-1).to_numpy()
        found_offsets: Offsets = np.append(self.last_offsets, np.int64(NOT_IN_MAP))[numbers]  # -1 is the appended row
        return found_offsets


def build(
    keys: Sequence[ArrowChunks],
    offsets: Sequence[Offsets],
    first_dirty: int,
    *,
    binary_bytes_max: int = BINARY_BYTES_MAX,
) -> tuple[OffsetMap, list[Offsets]]:
    """Return the map of a dirty range, and per segment what `OffsetMap.probe` would return for its rows.

    `keys` and `offsets` are the columns of the range's segments in log order. Rows below `first_dirty` (a range may
    begin inside a segment) add nothing to the map, but are judged by it. If the keys have more than `binary_bytes_max`
    bytes in all, they get 64-bit addresses.
    """
    column = _concatenated(keys, binary_bytes_max)
    encoded = cast("ArrowCodes", column.dictionary_encode().combine_chunks()) if len(column) else None
    if encoded is None:
        return OffsetMap(pa.array([], column.type), np.empty(0, np.int64)), [np.empty(0, np.int64) for _ in keys]
    distinct = encoded.dictionary
    numbers = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    all_offsets = np.concatenate(offsets)
    last = np.full(len(distinct) + 1, NOT_IN_MAP, np.int64)
    dirty = slice(int(np.searchsorted(all_offsets, first_dirty)), None)
    last[numbers[dirty]] = all_offsets[dirty]  # ascending: the last assignment is the highest offset
    last[len(distinct)] = NOT_IN_MAP  # the number of the null key
    per_row = last[numbers]
    known = last[:-1] != NOT_IN_MAP
    if not known.all():
        distinct = distinct.filter(pa.array(known))
    ends = np.cumsum([len(o) for o in offsets])[:-1]
    return OffsetMap(distinct, last[:-1][known]), np.split(per_row, ends)


def _concatenated(keys: Sequence[ArrowChunks], binary_bytes_max: int) -> ArrowChunks:
    chunks = [chunk for column in keys for chunk in column.chunks]
    kind = chunks[0].type if chunks else pa.binary()
    if kind != pa.large_binary() and sum(c.nbytes for c in chunks) > binary_bytes_max:
        kind = pa.large_binary()
    return pa.chunked_array([c.cast(kind) if c.type != kind else c for c in chunks], kind)
