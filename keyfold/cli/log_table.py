"""The tables of `keyfold log list`: a row per topic, or a row per partition. Pure: figures in, lines out.

A partition whose manifest cannot be read counts as a partition, and its reason is below the table. DIRTY is the share
of stored bytes that the compactor has not cleaned, and `-` for topics that are not compacted.

A table holds the figures of each log and not its manifest: those of thousands of logs with all their segments would
take gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from keyfold.cli.output import dirty_segments
from keyfold.cli.segment_strip import is_compacted_topic
from keyfold.errors import KeyfoldError
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.runtime.text import aligned_lines, size_text

_TOPIC_HEADER = ("TOPIC", "PARTITIONS", "OFFSETS", "RECORDS", "SEGMENTS", "SIZE", "DIRTY", "")
_PARTITION_HEADER = ("TOPIC", "PARTITION", "START", "END", "RECORDS", "SEGMENTS", "SIZE", "DIRTY", "")


@dataclass(frozen=True, slots=True)
class LogFigures:
    """The figures of one log. `compacted_bytes` and `dirty_bytes` are 0 if its topic is not compacted."""

    log_start_offset: int
    next_offset: int
    record_count: int
    segment_count: int
    size_bytes: int
    compacted_bytes: int
    dirty_bytes: int
    is_compacted: bool
    replica_of: str

    @staticmethod
    def of(manifest: Manifest) -> LogFigures:
        """Return the figures of a manifest."""
        is_compacted = is_compacted_topic(manifest)
        return LogFigures(
            manifest.log_start_offset,
            manifest.next_offset,
            manifest.record_count,
            len(manifest.segments),
            manifest.size_bytes,
            manifest.size_bytes if is_compacted else 0,
            sum(s.size_bytes for s in dirty_segments(manifest)) if is_compacted else 0,
            is_compacted,
            "" if manifest.replica is None else manifest.replica.source,
        )


@dataclass(frozen=True, slots=True)
class ListedLog:
    """One partition, and its figures or the reason why its manifest cannot be read."""

    place: Place
    found: LogFigures | KeyfoldError


def table_of_topics(logs: Sequence[ListedLog]) -> Iterator[str]:
    """Yield a row per topic, with the sums over its partitions, and the unreadable partitions."""
    rows = [_topic_row(topic, list(of_topic)) for topic, of_topic in groupby(logs, key=lambda each: each.place.topic)]
    yield from _table(_TOPIC_HEADER, rows, logs)


def table_of_partitions(logs: Sequence[ListedLog]) -> Iterator[str]:
    """Yield a row per partition, and the unreadable partitions."""
    yield from _table(_PARTITION_HEADER, [_partition_row(each) for each in logs], logs)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], logs: Sequence[ListedLog]) -> Iterator[str]:
    yield from aligned_lines([header, *rows], right=range(1, len(header) - 1))
    for each in logs:
        if isinstance(each.found, KeyfoldError):
            reason = each.found.message.removeprefix(f"{each.place}: ")
            yield f"{each.place}: {type(each.found).__name__}: {reason}"


def _topic_row(topic: str, logs: Sequence[ListedLog]) -> Sequence[str]:
    readable = [each.found for each in logs if not isinstance(each.found, KeyfoldError)]
    offsets = sum(found.next_offset - found.log_start_offset for found in readable)
    unreadable = len(logs) - len(readable)
    notes = [f"{unreadable:,} unreadable"] if unreadable else []
    notes += sorted({f"replica of {found.replica_of}" for found in readable if found.replica_of})
    figures = (f"{offsets:,}", *_cells(readable)) if readable else ("-",) * 5
    return (topic, f"{len(logs):,}", *figures, ", ".join(notes))


def _partition_row(listed: ListedLog) -> Sequence[str]:
    place, found = listed.place, listed.found
    if isinstance(found, KeyfoldError):
        return (place.topic, str(place.partition), *("-",) * 6, "unreadable")
    note = f"replica of {found.replica_of}" if found.replica_of else ""
    offsets = (str(found.log_start_offset), str(found.next_offset))
    return (place.topic, str(place.partition), *offsets, *_cells([found]), note)


def _cells(logs: Sequence[LogFigures]) -> tuple[str, str, str, str]:
    size = sum(found.compacted_bytes for found in logs)
    dirty = sum(found.dirty_bytes for found in logs)
    is_compacted = any(found.is_compacted for found in logs)
    return (
        f"{sum(found.record_count for found in logs):,}",
        f"{sum(found.segment_count for found in logs):,}",
        size_text(sum(found.size_bytes for found in logs)),
        (f"{dirty / size:.0%}" if size else "0%") if is_compacted else "-",
    )
