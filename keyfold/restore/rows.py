"""Arrow batches as what a producer is given: (offset, timestamp, key, value, headers), without an object a record.

`Record` is frozen, and to make one takes longer than to produce it. Bytes are cut out of the column's buffer: Arrow's
`to_pylist` makes a scalar of each element first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import Final, cast

import numpy as np
import pyarrow as pa

from keyfold.log.record import Header
from keyfold.runtime.arrow_types import ArrowArray, ArrowLists, numbers_in

COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")

Row = tuple[int, int, bytes | None, bytes | None, list[Header] | None]
"""Offset, timestamp (ms), key, value, headers (None if there are none)."""


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The records of a batch that has the columns `COLUMNS`."""
    return zip(
        batch.column("offset").to_numpy().tolist(),
        batch.column("timestamp").cast(pa.int64()).to_numpy().tolist(),
        bytes_of(batch.column("key")),
        bytes_of(batch.column("value")),
        _headers(cast("ArrowLists", batch.column("headers"))),
        strict=False,  # headers may be an endless None
    )


def bytes_of(array: ArrowArray) -> list[bytes | None]:
    """The elements of a binary or string column, as bytes."""
    if not len(array):
        return []
    _, bounds, data = array.buffers()
    raw = b"" if data is None else data.to_pybytes()
    at = numbers_in(bounds, np.int32)[array.offset : array.offset + len(array) + 1].tolist()
    found: list[bytes | None] = [raw[low:high] for low, high in pairwise(at)]
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[row] = None
    return found


def _headers(column: ArrowLists) -> Iterator[list[Header] | None]:
    structs = cast("pa.StructArray", column.flatten())
    if not len(structs):
        return repeat(None)
    names = [(name or b"").decode() for name in bytes_of(structs.field(0))]
    pairs: list[Header] = list(zip(names, bytes_of(structs.field(1)), strict=True))
    at = column.offsets.to_numpy()
    return (pairs[low:high] or None for low, high in pairwise((at - at[0]).tolist()))
