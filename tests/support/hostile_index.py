"""Indexes as an attacker writes them: any Parquet options, any pages, any footer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from keyfold.log.avro import varint
from keyfold.log.index import ROWS, BlockTable, _check
from keyfold.log.index_pages import read_footer
from keyfold.runtime.arrow_types import ArrowArray, ArrowChunks

KEYFOLDS: Final[dict[str, Any]] = {"compression": "zstd", "store_schema": False, "use_dictionary": False}
_KEY: Final = ROWS.get_field_index("key")


def index_file(
    keys: Sequence[bytes | None] | ArrowArray | ArrowChunks,
    *,
    length: int = 7,
    group_rows: int | None = None,
    **options: Any,
) -> bytes:
    """An index with these keys whose footer is right, written with any options of `pq.ParquetWriter`."""
    row_count = len(keys)
    numbers = np.arange(row_count)
    columns: dict[str, npt.NDArray[np.generic] | ArrowArray | ArrowChunks] = {
        "offset": numbers,
        "timestamp": numbers,
        "is_tombstone": np.zeros(row_count, bool),
    }
    columns |= {"cleaned_epoch": pa.nulls(row_count, pa.int32()), "block": np.zeros(row_count, np.int32)}
    columns |= {
        "position": 7 * numbers,
        "length": np.full(row_count, length),
        "key": keys if isinstance(keys, pa.ChunkedArray) else pa.array(keys, pa.binary()),
    }
    blocks = BlockTable(*(np.array([n], np.int64) for n in (0, 100, row_count, 0, 0)))
    meta = {"keyfold.format": "1", "keyfold.codec": "null", "keyfold.sync": bytes(16).hex()}
    meta["keyfold.blocks"] = blocks.encode().decode()
    meta["keyfold.check"] = _check(meta)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, ROWS, **{**KEYFOLDS, **options}) as writer:
        table = pa.table({name: columns[name] for name in ROWS.names}).cast(ROWS)
        writer.write_table(table, row_group_size=group_rows or row_count)
        writer.add_key_value_metadata(meta)
    return sink.getvalue()


def data_page(stored: bytes, unpacked_bytes: int, value_count: int, encoding: int) -> bytes:
    """A data page without a checksum whose header says what it likes."""
    header = b"\x15\0" + b"\x15" + varint(unpacked_bytes) + b"\x15" + varint(len(stored))
    values = b"".join(b"\x15" + varint(number) for number in (value_count, encoding, 3, 3))
    return header + b"\x2c" + values + b"\0\0" + stored


def with_key_page(data: bytes, page: bytes) -> bytes:
    """Write another page over the first one of the keys, which has to be the larger one."""
    chunk = read_footer(data).groups[0].chunks[_KEY]
    assert len(page) <= chunk.size_bytes
    return data[: chunk.start] + page + data[chunk.start + len(page) :]


def footer_of(data: bytes) -> bytes:
    """The footer of a Parquet file."""
    end = len(data) - 8
    return data[end - int.from_bytes(data[end : end + 4], "little") : end]


def with_footer(data: bytes, footer: bytes) -> bytes:
    """The same pages with another footer."""
    pages = data[: len(data) - 8 - len(footer_of(data))]
    return pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"
