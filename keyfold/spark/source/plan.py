"""From ranges of offsets to tasks: pinned segments, cut at blocks, packed by stored bytes.

    SegmentPiece     a part of one segment that is not worth cutting further
    SpanSlice        neighbouring pieces of one partition: what a task reads in order, by a pinned list of segments
    tasks            slices packed until they have enough bytes; small partitions share a task

Big segments are cut where their blocks begin, so a task fetches nothing twice but the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from keyfold.log.index import BlockTable
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.read.position import Anchor, segments_between
from keyfold.spark.source.admission import Tables, share_of


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Records of one segment with `start <= offset < end`; `size_bytes` are the stored bytes of their blocks."""

    entry: SegmentEntry
    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Span:
    """What is to be read of one partition, and of which version.

    `log_end` is that version's end where the reader asked for no end of his own: then its records are a snapshot, which
    must not lose a record to a newer one beyond it. None: the reader goes on behind `end`, or asked for just this.
    """

    partition: int
    start: int
    end: int
    anchor: Anchor
    entries: tuple[SegmentEntry, ...]
    log_end: int | None = None


@dataclass(frozen=True, slots=True)
class SpanSlice:
    """A part of a span, with those of its segments that have records in it."""

    partition: int
    start: int
    end: int
    anchor: Anchor
    entries: tuple[SegmentEntry, ...]
    log_end: int | None
    size_bytes: int


def span_of(manifest: Manifest, start: int, end: int, anchor: Anchor, *, log_end: int | None = None) -> Span:
    """The span `[start, end)` of a version."""
    entries = segments_between(manifest, start, end) if start < end else ()
    return Span(manifest.partition, start, end, anchor, entries, log_end)


def pieces_of(span: Span, cut_bytes: int, tables: Tables) -> list[SegmentPiece]:
    """A span in pieces of about `cut_bytes`, or of one block where blocks are larger."""
    found: list[SegmentPiece] = []
    for entry in span.entries:
        start, end = max(span.start, entry.base_offset), min(span.end, entry.next_offset)
        size_bytes = round(entry.size_bytes * share_of(entry, start, end))
        if size_bytes <= cut_bytes:
            found.append(SegmentPiece(entry, start, end, size_bytes))
        else:
            found.extend(_cut(entry, tables(span.partition, entry), start, end, cut_bytes))
    return found


def _cut(entry: SegmentEntry, table: BlockTable, start: int, end: int, cut_bytes: int) -> Iterable[SegmentPiece]:
    begin = max(0, int(np.searchsorted(table.first_offset, start, side="right")) - 1)
    stop = int(np.searchsorted(table.first_offset, end, side="left"))
    sizes = table.length[begin:stop]
    total = int(sizes.sum())
    # Parts of the same size, rather than full ones and a rest.
    part = (np.cumsum(sizes) - 1) * -(-total // cut_bytes) // max(total, 1)
    firsts = np.flatnonzero(np.diff(part, prepend=-1))
    offsets = [start, *table.first_offset[begin + firsts[1:]].tolist(), end]
    bounds = [*firsts.tolist(), len(sizes)]
    for number, (low, high) in enumerate(pairwise(bounds)):
        yield SegmentPiece(entry, int(offsets[number]), int(offsets[number + 1]), int(sizes[low:high].sum()))


def tasks_of(spans: Sequence[Span], max_bytes: int, min_tasks: int, tables: Tables) -> list[tuple[SpanSlice, ...]]:
    """Spans shared out over tasks of about `max_bytes`, at least about `min_tasks`. Order is kept."""
    total = sum(entry.size_bytes * share_of(entry, span.start, span.end) for span in spans for entry in span.entries)
    fill_bytes = max(1, min(max_bytes, -(-int(total) // min_tasks)))
    pieces = [(span, piece) for span in spans for piece in pieces_of(span, fill_bytes, tables)]
    groups: list[list[tuple[Span, SegmentPiece]]] = []
    filled = 0
    for span, piece in pieces:
        if not groups or filled + piece.size_bytes > fill_bytes * 1.1:
            groups.append([])
            filled = 0
        groups[-1].append((span, piece))
        filled += piece.size_bytes
    return [_slices(group) for group in groups]


def _slices(group: list[tuple[Span, SegmentPiece]]) -> tuple[SpanSlice, ...]:
    by_span: list[tuple[Span, list[SegmentPiece]]] = []
    for span, piece in group:
        if not by_span or by_span[-1][0] is not span:
            by_span.append((span, []))
        by_span[-1][1].append(piece)
    return tuple(
        SpanSlice(
            span.partition,
            pieces[0].start,
            pieces[-1].end,
            span.anchor,
            _entries(pieces),
            span.log_end,
            sum(piece.size_bytes for piece in pieces),
        )
        for span, pieces in by_span
    )


def _entries(pieces: list[SegmentPiece]) -> tuple[SegmentEntry, ...]:
    found: list[SegmentEntry] = []
    for piece in pieces:
        if not found or found[-1] is not piece.entry:
            found.append(piece.entry)
    return tuple(found)
