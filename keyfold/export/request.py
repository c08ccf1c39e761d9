"""The options of an export."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from keyfold.formats.avro_schema import Type
from keyfold.formats.format import Format

ROWS_PER_FILE: Final = 5_000_000
ROW_GROUP_ROWS: Final = 1024 * 1024
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024


class OnError(StrEnum):
    """What becomes of a record whose key or value is not of its format."""

    FAIL = "fail"
    NULL = "null"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """An export. `to_offset` is exclusive; offsets and the timestamp (ms) hold for every partition.

    `partitions` are read `parallel` at a time. A file has at most `rows_per_file` rows.
    """

    partitions: tuple[int, ...]
    latest: bool = False
    from_offset: int | None = None
    from_timestamp: int | None = None
    to_offset: int | None = None
    key_format: Format = Format.BYTES
    value_format: Format = Format.BYTES
    key_reader: Type | None = None
    value_reader: Type | None = None
    on_error: OnError = OnError.FAIL
    rows_per_file: int = ROWS_PER_FILE
    row_group_bytes: int = ROW_GROUP_BYTES
    parallel: int = 2
    overwrite: bool = False
