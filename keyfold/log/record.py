"""A record as in Kafka, and a batch of records as columns.

Readers return `Record`. The sink's hot loop fills `RecordColumns`: one Python list per field, so that a block is
encoded with a few passes over columns and not record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
