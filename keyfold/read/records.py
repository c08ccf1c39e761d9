"""Arrow batches as single records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import pyarrow as pa

from keyfold.log.record import Header, Record
from keyfold.runtime.arrow_types import ArrowCodes, ArrowLists, values_of


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of a batch that has all columns of `keyfold.log.arrow.RECORDS`."""
    # Numbers by numpy and names by hand: Arrow makes a Python object for each of theirs before it makes ours.
    kinds = cast("ArrowCodes", batch.column("timestamp_type"))
    names = values_of(kinds.dictionary)
    return map(
        Record,
        batch.column("offset").to_numpy().tolist(),
        batch.column("timestamp").view(pa.int64()).to_numpy().tolist(),
        [names[i] for i in kinds.indices.to_numpy().tolist()],
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        _headers(cast("ArrowLists", batch.column("headers"))),
        batch.column("leader_epoch").to_numpy().tolist(),
    )


def _headers(column: ArrowLists) -> list[tuple[Header, ...]]:
    structs = cast("pa.StructArray", column.flatten())
    if not len(structs):
        return [()] * len(column)
    names, values = (values_of(structs.field(i)) for i in range(2))
    pairs = list(zip(names, values, strict=True))
    bounds = values_of(column.offsets)
    return [tuple(pairs[low - bounds[0] : high - bounds[0]]) for low, high in pairwise(bounds)]
