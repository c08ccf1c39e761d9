"""A record as in Kafka, and a batch of records as columns.

Readers return `Record`. The sink's hot loop fills `RecordColumns`: one Python list per field, so that a block is
encoded with a few passes over columns and not record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import lt
from typing import Final

NO_TIMESTAMP: Final = "NoTimestampType"
CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"

# In the order of the enum in the record schema. Kafka's own ids are the index minus one (TimestampType.java).
TIMESTAMP_TYPES: Final = (NO_TIMESTAMP, CREATE_TIME, LOG_APPEND_TIME)

# A record batch without a leader epoch, Kafka's RecordBatch.NO_PARTITION_LEADER_EPOCH.
NO_LEADER_EPOCH: Final = -1

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log.

    `timestamp` is in ms since the epoch (-1 for the type NoTimestampType). A null `value` with a key is a tombstone.
    `headers` keep their order, duplicates and null values. `leader_epoch` is -1 if unknown.
    """

    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    leader_epoch: int = NO_LEADER_EPOCH

    @property
    def is_tombstone(self) -> bool:
        """Whether the record has a key and a null value; a keyless record is not a tombstone."""
        return self.value is None and self.key is not None


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records as columns of equal length, offsets ascending.

    `timestamp_types` are indexes into `TIMESTAMP_TYPES`. `headers` has None or an empty sequence for a record without
    headers.
    """

    offsets: Sequence[int]
    timestamps: Sequence[int]
    timestamp_types: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Sequence[Header] | None]
    leader_epochs: Sequence[int]

    def __len__(self) -> int:
        return len(self.offsets)


def check_columns(columns: RecordColumns, last_offset: int) -> None:
    """Raise `ValueError` if a batch cannot follow `last_offset`, before any record is added."""
    check_lengths(columns)
    offsets = columns.offsets
    if offsets[0] <= last_offset or not all(map(lt, offsets, islice(offsets, 1, None))):
        before, after = next((a, b) for a, b in pairwise((last_offset, *offsets)) if b <= a)
        raise ValueError(f"offset {after} follows offset {before}: offsets must ascend within a segment")
    if offsets[-1] >= 2**63:
        raise ValueError(f"offset {offsets[-1]} does not fit into a signed 64-bit number")
    if min(columns.timestamps) < -(2**63) or max(columns.timestamps) >= 2**63:
        raise ValueError("a timestamp does not fit into 64 bits")
    if min(columns.timestamp_types) < 0 or max(columns.timestamp_types) >= len(TIMESTAMP_TYPES):
        raise ValueError(f"a timestamp type must be between 0 and {len(TIMESTAMP_TYPES) - 1}")
    if min(columns.leader_epochs) < -(2**31) or max(columns.leader_epochs) >= 2**31:
        raise ValueError("a leader epoch does not fit into 32 bits")


def check_lengths(columns: RecordColumns) -> None:
    """Raise `ValueError` if the columns differ in length."""
    n = len(columns.offsets)
    fields = (columns.timestamps, columns.timestamp_types, columns.keys, columns.values)
    if any(len(field) != n for field in (*fields, columns.headers, columns.leader_epochs)):
        raise ValueError("the columns differ in length")
