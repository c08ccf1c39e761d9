"""What a restore must know of its records before it writes the first one, from manifests and indexes alone.

One index after another is read; of each partition a few numbers and the first offset of whatever could be refused,
dropped or changed stay. Records themselves are only fetched where they may be too large for the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from keyfold.errors import ObjectNotFound
from keyfold.log.avro import varint
from keyfold.log.index import Ints
from keyfold.log.manifest import Manifest
from keyfold.log.record import Record
from keyfold.restore.source import RestoreSource, SegmentRecords

# An index knows the stored length of a record. Kafka's batch around it has 61 bytes, and numbers of other widths.
_BATCH_BYTES: Final = 61
_SLACK_BYTES: Final = 40
_LARGE_RECORDS_LOOKED_AT: Final = 100
_CODECS: Final[dict[str, Literal["gzip", "lz4", "zstd"]]] = {"gzip": "gzip", "lz4": "lz4", "zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """What to look for. `None`: no such limit. Times are ms since the epoch."""

    max_message_bytes: int | None = None
    oldest_kept_ms: int | None = None
    earliest_ms: int | None = None
    latest_ms: int | None = None
    compression: str = "none"
    header_bytes: int = 0


@dataclass(slots=True)
class OffsetCount:
    """How many records are so, and the first of them."""

    count: int = 0
    first_offset: int = -1

    def add(self, offsets: Ints) -> None:
        """Count more of them, at later offsets."""
        if len(offsets):
            self.count += len(offsets)
            if self.first_offset < 0:
                self.first_offset = int(offsets[0])


@dataclass(slots=True)
class RestoreSurvey:
    """What one partition's wanted records are like. `record_bytes` are stored bytes before compression."""

    partition: int
    manifest: Manifest
    end: int
    records: int = 0
    record_bytes: int = 0
    largest_bytes: int = 0
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    zero_timestamps: OffsetCount = field(default_factory=OffsetCount)
    keyless: OffsetCount = field(default_factory=OffsetCount)
    too_old: OffsetCount = field(default_factory=OffsetCount)
    too_early: OffsetCount = field(default_factory=OffsetCount)
    too_late: OffsetCount = field(default_factory=OffsetCount)
    too_large: list[tuple[int, int]] = field(default_factory=list)
    """(offset, bytes) of records that no batch of the target's can hold."""


def survey(source: RestoreSource, start: int, limits: TargetLimits) -> RestoreSurvey:
    """Look at a partition's wanted records from `start` on, in the newest version. Raises what reading raises."""
    while True:
        found = RestoreSurvey(source.place.partition, source.manifest, source.end)
        try:
            for part in source.parts(start):
                _add(found, source, part, limits)
        except ObjectNotFound as error:
            source.renew(error, start)
        else:
            return found


def _add(found: RestoreSurvey, source: RestoreSource, part: SegmentRecords, limits: TargetLimits) -> None:
    lengths, timestamps = (part.index.ints(name)[part.rows] for name in ("length", "timestamp"))
    found.records += len(part.rows)
    found.record_bytes += int(lengths.sum())
    found.zero_timestamps.add(part.offsets[timestamps == 0])
    found.keyless.add(part.offsets[part.keyless()])
    known = timestamps >= 0
    if known.any():
        low, high = int(timestamps[known].min()), int(timestamps[known].max())
        found.min_timestamp = low if found.min_timestamp is None else min(low, found.min_timestamp)
        found.max_timestamp = high if found.max_timestamp is None else max(high, found.max_timestamp)
    for where, limit, below in (
        (found.too_old, limits.oldest_kept_ms, True),
        (found.too_early, limits.earliest_ms, True),
        (found.too_late, limits.latest_ms, False),
    ):
        if limit is not None:
            where.add(part.offsets[known & ((timestamps < limit) if below else (timestamps > limit))])
    _add_large(found, source, part, lengths, limits)


def _add_large(
    found: RestoreSurvey, source: RestoreSource, part: SegmentRecords, lengths: Ints, limits: TargetLimits
) -> None:
    if limits.max_message_bytes is None:
        found.largest_bytes = max(found.largest_bytes, int(lengths.max()))
        return
    near = lengths + (_BATCH_BYTES + _SLACK_BYTES + limits.header_bytes) > limits.max_message_bytes
    rows = np.flatnonzero(near)[: max(0, _LARGE_RECORDS_LOOKED_AT - len(found.too_large))]
    found.largest_bytes = max(found.largest_bytes, int(lengths.max()))
    if not len(rows):
        return
    suspects = SegmentRecords(part.entry, part.index, part.rows[rows], part.offsets[rows])
    for record in source.records(suspects):
        size = batch_bytes(record, limits.compression) + limits.header_bytes
        if size > limits.max_message_bytes:
            found.too_large.append((record.offset, size))


def batch_bytes(record: Record, compression: str = "none") -> int:
    """Bytes of a Kafka record batch (format 2) with this record alone; compressed as far as that can be tried here."""
    body = [b"\0\0\0", *_field(record.key), *_field(record.value), varint(len(record.headers))]
    for name, value in record.headers:
        body += [*_field(name.encode()), *_field(value)]
    length = sum(map(len, body))
    size = len(varint(length)) + length
    codec = _CODECS.get(compression)
    if codec is not None:
        size = min(size, len(pa.compress(b"".join(body), codec=codec)))
    return _BATCH_BYTES + size


def _field(data: bytes | None) -> tuple[bytes, ...]:
    """Kafka writes lengths as Avro does."""
    return (varint(-1),) if data is None else (varint(len(data)), data)
