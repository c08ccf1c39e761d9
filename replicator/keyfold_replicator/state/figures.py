"""How far a replica of one partition is behind, from the manifests of both sides. Pure.

    Pending     what the next round would send: bytes, records, segments, and the timestamps of its new records
    Lag         how far the replica is behind, in offsets (like a Kafka consumer's lag) and in time
    Figures     both, and their origin: two manifests, or the source's manifest and its cursor

Something is pending while the source names objects that the replica does not: new segments, and segments that a
cleaning pass has written. After a pass much may be pending although no record is missing. Then bytes, records and
segments say what will be sent, the lag in offsets and in records is 0, and there is no earliest or latest time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from keyfold.log.commit import Pinned
from keyfold.log.manifest import NO_OFFSET, UNSTAMPED, Manifest, SegmentEntry
from keyfold.log.names import Role, parse_name

NO_TIME: Final = -1


@dataclass(frozen=True, slots=True)
class Pending:
    """What is to be sent. `bytes` are stored bytes of segments and indexes, `records` those of the segments to be sent.

    `earliest_ms` and `latest_ms` bound the timestamps of records that the replica lacks; -1 if it lacks none, or they
    have no timestamp. A segment with some new records counts with the bounds of all its records.
    """

    bytes: int = 0
    records: int = 0
    segments: int = 0
    earliest_ms: int = NO_TIME
    latest_ms: int = NO_TIME

    def __add__(self, other: Pending) -> Pending:
        return Pending(
            self.bytes + other.bytes,
            self.records + other.records,
            self.segments + other.segments,
            _earlier(self.earliest_ms, other.earliest_ms),
            max(self.latest_ms, other.latest_ms),
        )


def _earlier(one_ms: int, other_ms: int) -> int:
    return max(one_ms, other_ms) if NO_TIME in {one_ms, other_ms} else min(one_ms, other_ms)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind. `records` are offsets from the replica's end to the source's, including compacted records.

    The name is older than the difference. `existing_records` are the records that the source has at these offsets. If a
    pass has merged them with earlier records, they are an upper bound: a manifest counts the records of a segment.

    `ms` is the time, by the source's store, since the source committed the oldest change that the replica lacks: an
    appended record, or a segment that a pass replaced.
    """

    records: int = 0
    ms: int = 0
    existing_records: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """Pending and lag. With `is_by_cursor` the replica did not answer, and rewrites by passes are not included."""

    pending: Pending = Pending()
    lag: Lag = Lag()
    is_by_cursor: bool = False


def figures(source: Pinned, replica: Manifest | None, *, received_at_ms: int = UNSTAMPED) -> ReplicaFigures:
    """Compute the figures from the manifests of both sides; None: nothing was committed at the replica yet.

    `received_at_ms` is when the cursor at the source last moved (store time there), -1 if there is none.
    """
    manifest = source.manifest
    received_to = manifest.log_start_offset if replica is None else replica.next_offset
    if replica is not None and replica.replica is not None:
        # By the other store's clock; but it tells of rounds, too, that brought no new offsets and moved no cursor.
        received_at_ms = max(received_at_ms, replica.replica.received_at_ms)
    there = frozenset[str]() if replica is None else replica.object_names()
    missing = [s for s in manifest.segments if s.name not in there or s.index_name not in there]
    since_ms = [
        *_appended(source, received_to, received_at_ms),
        *(_known(r.unlinked_at_ms, source) for r in manifest.replaced if r.name in there),
    ]
    return ReplicaFigures(_pending(missing, there, received_to), _lag(source, received_to, since_ms))


def figures_by_cursor(source: Pinned, received_to: int, *, received_at_ms: int = UNSTAMPED) -> ReplicaFigures:
    """Compute the figures from the source alone: `received_to` is its cursor, -1 if nothing was received yet."""
    manifest = source.manifest
    received_to = manifest.log_start_offset if received_to == NO_OFFSET else received_to
    missing = [s for s in manifest.segments if s.last_offset >= received_to]
    since_ms = _appended(source, received_to, received_at_ms)
    return ReplicaFigures(
        _pending(missing, frozenset(), received_to), _lag(source, received_to, since_ms), is_by_cursor=True
    )


def _pending(missing: Iterable[SegmentEntry], there: frozenset[str], received_to: int) -> Pending:
    size_bytes = records = segments = 0
    earliest_ms, latest_ms = NO_TIME, NO_TIME
    for entry in missing:
        segments += 1
        if entry.index_name not in there:
            size_bytes += entry.index_size_bytes
        if entry.name not in there:
            size_bytes += entry.size_bytes
            records += entry.record_count
        if entry.last_offset >= received_to and entry.max_timestamp != NO_TIME:
            earliest_ms = _earlier(earliest_ms, entry.min_timestamp)
            latest_ms = max(latest_ms, entry.max_timestamp)
    return Pending(size_bytes, records, segments, earliest_ms, latest_ms)


def _lag(source: Pinned, received_to: int, since_ms: Iterable[int]) -> Lag:
    manifest = source.manifest
    start = max(received_to, manifest.log_start_offset)
    oldest_ms = min(since_ms, default=source.seen_ms)
    existing = sum(_records_from(start, entry) for entry in manifest.segments)
    return Lag(max(0, manifest.next_offset - start), max(0, source.seen_ms - oldest_ms), existing)


def _records_from(offset: int, entry: SegmentEntry) -> int:
    """Return how many records a segment has from an offset on, at most."""
    return max(0, min(entry.record_count, entry.last_offset + 1 - offset))


def _appended(source: Pinned, received_to: int, received_at_ms: int) -> list[int]:
    """Return the append times of records that the replica lacks, one for each segment that has any."""
    new = (s for s in source.manifest.segments if s.last_offset >= received_to)
    return [_appended_ms(entry, source, received_at_ms) for entry in new]


def _appended_ms(entry: SegmentEntry, source: Pinned, received_at_ms: int) -> int:
    # A pass keeps the latest of the times that it merges. A replica that is away for long must not look better after
    # each pass. So the records' own time counts there, if it is later than what the replica has received.
    appended_ms = _known(entry.appended_at_ms, source)
    name = parse_name(entry.name)
    if name is None or name.role is not Role.COMPACTOR or NO_TIME in {entry.min_timestamp, received_at_ms}:
        return appended_ms
    return min(appended_ms, max(entry.min_timestamp, received_at_ms))


def _known(time_ms: int, source: Pinned) -> int:
    """Return a time that the next commit will record; until then it is the manifest's own age."""
    if time_ms != UNSTAMPED:
        return time_ms
    return source.seen_ms if source.modified_ms == UNSTAMPED else source.modified_ms
