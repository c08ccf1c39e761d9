"""The Parquet files of a table: rows of one partition, and positions of rows that are hidden.

A partition of the table is a part of a partition of the topic, or all of it: no file has rows of two of either kind.

Every file has a name that is used once, below `data/`. It is part of the table when a snapshot names it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType

from keyfold.export.files import PartitionFiles, WrittenFile
from keyfold.export.request import ROW_GROUP_BYTES, ROWS_PER_FILE
from keyfold.export.target import StagedFile
from keyfold.log.arrow_numbers import Ints
from keyfold.log.objects import ObjectStream
from keyfold.runtime.arrow_types import arrow_schema as schema_of
from keyfold.runtime.arrow_types import column_of
from keyfold.runtime.buffers import Bytes
from keyfold.table.file_io import ObjectFiles
from keyfold.table.partitioning import is_by_topic_partition, split
from keyfold.table.table import FILE_PATH_ID, POSITION_ID
from keyfold.table.types import FIELD_ID, arrow_schema

_POSITIONS: Final = schema_of(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(FILE_PATH_ID).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_ID).encode()}),
    ]
)

_OPEN_MAX: Final = 64
"""Files of one partition of a topic that are written at once; more of them are written one after another."""


class _StagedObject:
    """A `StagedFile` that is one request where it is small; `publish` creates the object."""

    def __init__(self, files: ObjectFiles, name: str) -> None:
        self._stream = ObjectStream(files.store, files.key(name), files.retry)
        self.name = name
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Bytes) -> int:
        """See `StagedFile`."""
        size = memoryview(data).nbytes
        self._stream.write([bytes(data)])
        self.size_bytes += size
        return size

    def flush(self) -> None:
        """See `StagedFile`."""

    def close(self) -> None:
        """See `StagedFile`."""
        self.closed = True

    def publish(self) -> None:
        """See `StagedFile`."""
        self._stream.finish()

    def discard(self) -> None:
        """See `StagedFile`."""
        self._stream.abandon()


@dataclass(frozen=True, slots=True)
class FileWriter:
    """A writer of the files of one commit. `commit_id` is in their names, and no other commit has it."""

    files: ObjectFiles
    metadata: TableMetadata
    schema: Schema
    commit_id: str

    def data(self, partition: int, tables: Iterable[pa.Table]) -> list[DataFile]:
        """Write the rows of a topic's partition, in the order of their offsets, with the columns of the schema."""
        spec = self.metadata.spec()
        row_group_bytes = ROW_GROUP_BYTES if is_by_topic_partition(spec) else ROW_GROUP_BYTES // 8
        opened: OrderedDict[Record, PartitionFiles] = OrderedDict()
        written: list[DataFile] = []
        try:
            for table in tables:
                for record, rows in split(table, spec, self.schema):
                    if record not in opened:
                        if len(opened) == _OPEN_MAX:
                            written += self._published(*opened.popitem(last=False))
                        opened[record] = self._opened(partition, row_group_bytes)
                    opened.move_to_end(record)
                    opened[record].write(rows)
            while opened:
                written += self._published(*opened.popitem(last=False))
        except BaseException:
            for files in opened.values():
                files.discard()
            raise
        return written

    def _opened(self, partition: int, row_group_bytes: int) -> PartitionFiles:
        return PartitionFiles(
            arrow_schema(self.schema),
            lambda first_offset: self._staged(partition, f"{first_offset:020d}-{self.commit_id}"),
            rows_per_file=ROWS_PER_FILE,
            row_group_bytes=row_group_bytes,
            metadata={"partition": partition},
            decimals_as_integers=True,
        )

    def _published(self, record: Record, files: PartitionFiles) -> list[DataFile]:
        """Complete the files of one partition of the table."""
        try:
            written = files.finish()
            for each in written:
                each.staged.publish()
        except BaseException:
            files.discard()
            raise
        return [self._described(record, each) for each in written]

    def hidden(self, number: int, data: DataFile, positions: Ints) -> DataFile:
        """Write the positions of all hidden rows of one data file. `number` is unique in the commit."""
        path = data.file_path
        table = pa.Table.from_arrays(
            [pa.repeat(pa.scalar(path), len(positions)), column_of(positions)], schema=_POSITIONS
        )
        out = BytesIO()
        pq.write_table(
            table,
            out,
            compression="zstd",
            use_dictionary=["file_path"],  # type: ignore[arg-type]  # the stubs miss names of columns
            column_encoding={"pos": "DELTA_BINARY_PACKED"},
        )
        location = f"{self.metadata.location}/data/{self.commit_id}-{number:05d}-deletes.parquet"
        self.files.create(location, out.getvalue())
        text = to_bytes(StringType(), path)
        found = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=data.partition,
            record_count=len(positions),
            file_size_in_bytes=len(out.getvalue()),
            column_sizes={},
            value_counts={FILE_PATH_ID: len(positions), POSITION_ID: len(positions)},
            null_value_counts={FILE_PATH_ID: 0, POSITION_ID: 0},
            nan_value_counts={},
            lower_bounds={FILE_PATH_ID: text, POSITION_ID: to_bytes(LongType(), int(np.min(positions)))},
            upper_bounds={FILE_PATH_ID: text, POSITION_ID: to_bytes(LongType(), int(np.max(positions)))},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
        )
        found.spec_id = data.spec_id
        return found

    def _staged(self, partition: int, name: str) -> StagedFile:
        location = f"{self.metadata.location}/data/partition={partition}/{name}.parquet"
        return _StagedObject(self.files, location)

    def _described(self, partition: Record, written: WrittenFile) -> DataFile:
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=written.footer,
            stats_columns=compute_statistics_plan(self.schema, self.metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(self.schema),
        )
        found = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=written.staged.name,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=written.staged.size_bytes,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        found.spec_id = self.metadata.default_spec_id
        return found
