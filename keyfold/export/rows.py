"""Records of a batch as exported rows: decoded keys and values, and values that do not fit.

    partition        int32                    key, value               the type that their format has
    offset           int64                    key_error, value_error   string; only with `--on-error null`
    timestamp        timestamp ms, UTC        headers                  list of (name, value)
    timestamp_type   string                   leader_epoch             int32
    key_bytes                binary; only where it is asked for

Rows are in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from keyfold.export.request import OnError
from keyfold.formats.column_width import in_parts
from keyfold.formats.columns import BadRows, Column
from keyfold.formats.errors import FormatMismatch, mismatch_at
from keyfold.formats.format import RecordPart
from keyfold.log.names import Place
from keyfold.runtime.arrow_types import ArrowArray, arrow_schema

_EXAMPLES: Final = 5
_HINT: Final = "continue without it with --on-error null or --on-error skip"
HEADERS: Final = pa.list_(pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]))


@dataclass(slots=True)
class FormatMismatches:
    """Values of a partition that did not fit: numbers of skipped records and of values set to null, and examples."""

    skipped: int = 0
    nulled: int = 0
    examples: list[str] = field(default_factory=list)


class RowConverter:
    """A converter of a topic's records to rows. Thread-safe."""

    def __init__(self, key: Column, value: Column, on_error: OnError, *, key_bytes: bool = False) -> None:
        self._columns = {RecordPart.KEY: key, RecordPart.VALUE: value}
        self._on_error = on_error
        self._key_bytes = key_bytes
        self.schema = self._schema()

    def _schema(self) -> pa.Schema:
        parts = [pa.field(part.value, column.type) for part, column in self._columns.items()]
        if self._on_error is OnError.NULL:
            parts += [pa.field(f"{part.value}_error", pa.string()) for part in RecordPart]
        return arrow_schema(
            [
                pa.field("partition", pa.int32(), nullable=False),
                pa.field("offset", pa.int64(), nullable=False),
                pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
                pa.field("timestamp_type", pa.string(), nullable=False),
                *parts,
                pa.field("headers", HEADERS, nullable=False),
                pa.field("leader_epoch", pa.int32(), nullable=False),
                *([pa.field("key_bytes", pa.binary())] if self._key_bytes else []),
            ]
        )

    def tables(self, place: Place, batch: pa.RecordBatch, mismatches: FormatMismatches) -> Iterator[pa.Table]:
        """Yield the rows of some records, in one table unless they are too wide. Counts into `mismatches`.

        Raises `RecordFormatMismatch` for the first record that does not fit.
        """
        return in_parts(batch, lambda part: self._table(place, part, mismatches))

    def _table(self, place: Place, batch: pa.RecordBatch, mismatches: FormatMismatches) -> pa.Table:
        decoded = {
            part: column.decode(batch.column(part.value), batch.column("headers"))
            for part, column in self._columns.items()
        }
        bad = {part: found.mismatches for part, found in decoded.items() if found.mismatches}
        if bad:
            self._judge(place, batch.column("offset"), bad, mismatches)
        made: dict[str, ArrowArray] = {name: batch.column(name) for name in batch.schema.names}
        made["key_bytes"] = made[RecordPart.KEY.value]
        made |= {part.value: found.array for part, found in decoded.items()}
        made["partition"] = pa.repeat(pa.scalar(place.partition, pa.int32()), len(batch))
        if self._on_error is OnError.NULL:
            made |= {f"{part.value}_error": _errors(bad.get(part, ()), len(batch)) for part in RecordPart}
        arrays = [_as(made[each.name], each.type) for each in self.schema]
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        return table.filter(_others(bad.values(), len(batch))) if bad and self._on_error is OnError.SKIP else table

    def _judge(
        self, place: Place, offsets: ArrowArray, bad: dict[RecordPart, BadRows], mismatches: FormatMismatches
    ) -> None:
        found = sorted(((row, part, mismatch) for part, rows in bad.items() for row, mismatch in rows), key=_by_row)
        errors = (
            mismatch_at(place.topic, place.partition, offsets[row].as_py(), part, mismatch, hint=_HINT)
            for row, part, mismatch in found
        )
        if self._on_error is OnError.FAIL:
            raise next(errors)
        mismatches.examples += [error.message for error in islice(errors, _EXAMPLES - len(mismatches.examples))]
        if self._on_error is OnError.SKIP:
            mismatches.skipped += len({row for row, _, _ in found})
        else:
            mismatches.nulled += len(found)


def _by_row(found: tuple[int, RecordPart, FormatMismatch]) -> int:
    return found[0]


def _as(array: ArrowArray, kind: pa.DataType) -> ArrowArray:
    return array if array.type == kind else array.cast(kind)


def _errors(bad: Iterable[tuple[int, FormatMismatch]], size: int) -> ArrowArray:
    """Return the error of each row, null for none."""
    texts: list[str | None] = [None] * size
    for row, mismatch in bad:
        texts[row] = mismatch.message
    return pa.array(texts, pa.string())


def _others(bad: Iterable[BadRows], size: int) -> ArrowArray:
    keep = np.ones(size, np.bool_)
    for rows in bad:
        keep[[row for row, _ in rows]] = False
    return pa.array(keep)
