"""The tables of `keyfold log list`: a row per topic, or a row per partition. Pure: manifests in, lines out.

A partition whose manifest cannot be read counts as a partition, and its reason is below the table. DIRTY is the share
of stored bytes that the compactor has not cleaned, and `-` for topics that are not compacted.
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
class ListedLog:
    """One partition, and its manifest or the reason why it cannot be read."""

    place: Place
    found: Manifest | KeyfoldError


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
    manifests = _manifests(logs)
    offsets = sum(m.next_offset - m.log_start_offset for m in manifests)
    unreadable = len(logs) - len(manifests)
    notes = [f"{unreadable:,} unreadable"] if unreadable else []
    notes += sorted({f"replica of {m.replica.source}" for m in manifests if m.replica is not None})
    figures = (f"{offsets:,}", *_figures(manifests)) if manifests else ("-",) * 5
    return (topic, f"{len(logs):,}", *figures, ", ".join(notes))


def _partition_row(listed: ListedLog) -> Sequence[str]:
    place, manifest = listed.place, listed.found
    if isinstance(manifest, KeyfoldError):
        return (place.topic, str(place.partition), *("-",) * 6, "unreadable")
    note = "" if manifest.replica is None else f"replica of {manifest.replica.source}"
    offsets = (str(manifest.log_start_offset), str(manifest.next_offset))
    return (place.topic, str(place.partition), *offsets, *_figures([manifest]), note)


def _figures(manifests: Sequence[Manifest]) -> tuple[str, str, str, str]:
    compacted = [m for m in manifests if is_compacted_topic(m)]
    dirty = sum(s.size_bytes for m in compacted for s in dirty_segments(m))
    size = sum(m.size_bytes for m in compacted)
    return (
        f"{sum(m.record_count for m in manifests):,}",
        f"{sum(len(m.segments) for m in manifests):,}",
        size_text(sum(m.size_bytes for m in manifests)),
        (f"{dirty / size:.0%}" if size else "0%") if compacted else "-",
    )


def _manifests(logs: Sequence[ListedLog]) -> list[Manifest]:
    return [each.found for each in logs if not isinstance(each.found, KeyfoldError)]
