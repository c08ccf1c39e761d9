"""Writer of rows to Parquet files: row groups of bounded bytes, files of bounded rows, zstd, and the origin in footers.

Memory holds a row group until it is full, so its size is limited by bytes, not only by rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from keyfold.export.request import ROW_GROUP_ROWS
from keyfold.export.target import StagedFile

METADATA_KEY = "keyfold.export"

Stage = Callable[[int], StagedFile]
"""Begins the file whose first row has this offset."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is written and not published yet."""

    staged: StagedFile
    rows: int
    first_offset: int
    last_offset: int
    footer: pq.FileMetaData


class PartitionFiles:
    """Writes the rows of one partition, in order. For one thread. Ends with `finish` or `discard`."""

    def __init__(
        self,
        schema: pa.Schema,
        stage: Stage,
        *,
        rows_per_file: int,
        row_group_bytes: int,
        metadata: Mapping[str, object],
        decimals_as_integers: bool = False,
    ) -> None:
        self._schema = schema
        self._stage = stage
        self._rows_per_file = rows_per_file
        self._row_group_bytes = row_group_bytes
        self._metadata = metadata
        self._decimals_as_integers = decimals_as_integers
        self._held: list[pa.Table] = []
        self._held_bytes = self._held_rows = 0
        self._file: _OpenFile | None = None
        self._written: list[WrittenFile] = []

    def write(self, table: pa.Table) -> None:
        """Take rows."""
        while table.num_rows:
            file = self._opened(table)
            room = min(self._rows_per_file - file.rows - self._held_rows, ROW_GROUP_ROWS - self._held_rows)
            part, table = table.slice(0, room), table.slice(room)
            self._held.append(part)
            self._held_rows += part.num_rows
            self._held_bytes += part.nbytes
            if self._held_bytes >= self._row_group_bytes or self._held_rows >= ROW_GROUP_ROWS or part.num_rows == room:
                self._write_group()
            if file.rows >= self._rows_per_file:
                self._end_file()

    def _opened(self, table: pa.Table) -> _OpenFile:
        if self._file is None:
            staged = self._stage(table.column("offset")[0].as_py())
            self._file = _OpenFile(staged, self._schema, decimals_as_integers=self._decimals_as_integers)
        return self._file

    def _write_group(self) -> None:
        if self._file is not None and self._held_rows:
            self._file.write(pa.concat_tables(self._held))
            self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _end_file(self) -> None:
        if self._file is not None:
            self._written.append(self._file.finish(self._metadata))
            self._file = None

    def finish(self) -> list[WrittenFile]:
        """Write the remaining rows, and return the files in order."""
        self._write_group()
        self._end_file()
        return self._written

    def discard(self) -> None:
        """Forget all of it."""
        self._held = []
        if self._file is not None:
            self._file.discard()
        for file in self._written:
            file.staged.discard()


class _OpenFile:
    def __init__(self, staged: StagedFile, schema: pa.Schema, *, decimals_as_integers: bool) -> None:
        self.staged = staged
        self._footers: list[pq.FileMetaData] = []
        self.rows = 0
        self._first = self._last = -1
        self._writer = pq.ParquetWriter(
            cast("IO[bytes]", staged),  # it has what pyarrow calls of a file
            schema,
            compression="zstd",
            use_dictionary=True,
            write_page_checksum=True,
            store_schema=True,
            store_decimal_as_integer=decimals_as_integers,
            metadata_collector=self._footers,
        )

    def write(self, group: pa.Table) -> None:
        offsets = group.column("offset")
        if self._first < 0:
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self.rows += group.num_rows
        self._writer.write_table(group, row_group_size=group.num_rows)

    def discard(self) -> None:
        self.staged.discard()
        with suppress(pa.ArrowException, OSError, ValueError):
            self._writer.close()  # its footer goes nowhere

    def finish(self, metadata: Mapping[str, object]) -> WrittenFile:
        about = {**metadata, "rows": self.rows, "first_offset": self._first, "last_offset": self._last}
        self._writer.add_key_value_metadata({METADATA_KEY: json.dumps(about)})
        self._writer.close()
        self.staged.close()
        return WrittenFile(self.staged, self.rows, self._first, self._last, self._footers[0])
