"""A log's segments as a strip, for `keyfold log describe`. Pure: a manifest in, lines out.

    │██░████████│███░████│▒▒▒▒│    segments, as wide as their stored bytes: clean, dirty, garbage
    │mmmmmmmmmmm│pppppppp│tttt│    segments with tombstones: unmarked, marked, purgeable
    0 log start     log end 1204

A segment has at least one cell, and a border to the next one. If there are more segments than that allows, a cell
stands for several, and there are no borders. Shades and letters need no colour. `ASCII` is for encodings without
shades.

A pass marks the tombstones of which it leaves no older record. A marked one is *purgeable*, so the next pass removes
it, when `delete.retention.ms` has passed since that pass and every replica that holds the log has received it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from keyfold.log.manifest import Manifest, SegmentEntry, is_over
from keyfold.runtime.text import count_text, size_text

_DELETE_RETENTION_MS: Final = 86_400_000  # Kafka's default
_CELLS_MIN: Final = 8
_CELLS_MAX: Final = 100
_CELLS_FOR_BORDERS: Final = 3  # per segment; with fewer, borders would hide the segments
UNMARKED, MARKED, PURGEABLE = "t", "m", "p"


@dataclass(frozen=True, slots=True)
class StripSigns:
    """The characters of a strip."""

    clean: str
    dirty: str
    garbage: str
    border: str


SHADES: Final = StripSigns("█", "▒", "░", "│")
ASCII: Final = StripSigns("#", "=", ".", "|")


@dataclass(frozen=True, slots=True)
class _Cell:
    """The segments of one cell: positions `[first, last]`, and whether it has a border on its left."""

    first: int
    last: int
    is_bordered: bool = False


def signs_for(encoding: str | None) -> StripSigns:
    """Return the characters that an encoding can represent."""
    try:
        f"{SHADES.clean}{SHADES.dirty}{SHADES.garbage}{SHADES.border}".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return SHADES


def is_compacted_topic(manifest: Manifest) -> bool:
    """Return whether the topic's `cleanup.policy` includes `compact`, or is not known."""
    return "compact" in manifest.settings.get("cleanup.policy", "compact")


def dirty_from(manifest: Manifest) -> int:
    """Return the position of the first segment with a record at or above `first_dirty_offset`."""
    return bisect_right(manifest.segments, manifest.first_dirty_offset - 1, key=lambda s: s.last_offset)


def strip_lines(
    manifest: Manifest, *, now_ms: int, width: int, signs: StripSigns, garbage: Sequence[int] | None = None
) -> Iterator[str]:
    """Yield the strip and its legend, at most `width` characters wide. `garbage`: superseded records by segment.

    A topic that is not compacted has no dirty part, and its tombstones mean nothing.
    """
    if not manifest.segments:
        return
    cells = _cells(manifest.segments, max(_CELLS_MIN, min(width - 2, _CELLS_MAX)))
    compacted = is_compacted_topic(manifest)
    states = _states(manifest, cells, signs, garbage) if compacted else [signs.clean] * len(cells)
    yield _drawn(cells, states, signs)
    marks = [tombstone_mark(manifest, entry, now_ms) if compacted else " " for entry in manifest.segments]
    if set(marks) != {" "}:
        yield _drawn(cells, [most_advanced(marks[c.first : c.last + 1]) for c in cells], signs)
    start, end = f"{manifest.log_start_offset} log start", f"log end {manifest.next_offset}"
    yield f"{start}  {end:>{max(0, _width(cells) - len(start) - 2)}}"
    yield from _wrapped(list(_legend(manifest, marks, signs, garbage, compacted=compacted)), width)


def _cells(segments: Sequence[SegmentEntry], width: int) -> list[_Cell]:
    sizes = [max(1, entry.size_bytes) for entry in segments]
    count = len(sizes)
    if count * _CELLS_FOR_BORDERS <= width:
        widths = _apportioned(sizes, width - (count - 1))
        return [_Cell(at, at, at > 0 and n == 0) for at, cells in enumerate(widths) for n in range(cells)]
    ends = list(accumulate(sizes))
    bounds = [ends[-1] * n // width for n in range(width + 1)]
    return [
        _Cell(bisect_right(ends, start), min(count - 1, bisect_right(ends, max(start, end - 1))))
        for start, end in pairwise(bounds)
    ]


def _apportioned(sizes: Sequence[int], cells: int) -> list[int]:
    """Divide cells by size. Each one gets at least one cell."""
    spare, total = cells - len(sizes), sum(sizes)
    widths = [1 + spare * size // total for size in sizes]
    by_rest = sorted(range(len(sizes)), key=lambda at: spare * sizes[at] % total, reverse=True)
    for at in by_rest[: cells - sum(widths)]:
        widths[at] += 1
    return widths


def _states(
    manifest: Manifest, cells: Sequence[_Cell], signs: StripSigns, garbage: Sequence[int] | None
) -> Iterator[str]:
    """Yield the sign of each cell. Garbage takes its share of the cells; what is less than a cell is carried on."""
    dirty = dirty_from(manifest)
    carried = 0.0
    for number, cell in enumerate(cells):
        if garbage is not None:
            records = sum(entry.record_count for entry in manifest.segments[cell.first : cell.last + 1])
            carried += sum(garbage[cell.first : cell.last + 1]) / max(1, records)
            if carried >= 0.5:
                carried -= 1
                yield signs.garbage
                continue
        is_dirty = _is_dirty(cell, dirty, is_first=number == 0, is_last=number == len(cells) - 1)
        yield signs.dirty if is_dirty else signs.clean


def _is_dirty(cell: _Cell, dirty: int, *, is_first: bool, is_last: bool) -> bool:
    """Return whether most segments of a cell are dirty. The cells at both ends show a small part too."""
    if is_first and dirty > 0:
        return False
    return cell.last >= dirty if is_last else (cell.first + cell.last) // 2 >= dirty


def _drawn(cells: Sequence[_Cell], signs_of_cells: Iterator[str] | Sequence[str], signs: StripSigns) -> str:
    inside = "".join(
        f"{signs.border if cell.is_bordered else ''}{sign}" for cell, sign in zip(cells, signs_of_cells, strict=True)
    )
    return f"{signs.border}{inside}{signs.border}"


def _width(cells: Sequence[_Cell]) -> int:
    return 2 + len(cells) + sum(cell.is_bordered for cell in cells)


def tombstone_mark(manifest: Manifest, entry: SegmentEntry, now_ms: int) -> str:
    """Return the sign of a segment's tombstones. They are purgeable if all marked ones are."""
    if not entry.tombstone_count:
        return " "
    if not entry.cleaned_epochs:
        return UNMARKED
    try:
        wait_ms = int(manifest.settings.get("delete.retention.ms", _DELETE_RETENTION_MS))
    except ValueError:
        wait_ms = _DELETE_RETENTION_MS
    due = {p.epoch for p in manifest.passes if is_over(p.committed_at_ms, wait_ms, now_ms)}
    is_held = any(entry.last_offset >= hold.received_to for hold in manifest.holds)
    return PURGEABLE if due.issuperset(entry.cleaned_epochs) and not is_held else MARKED


def most_advanced(marks: Sequence[str]) -> str:
    """Return the sign that is shown for several segments: that of the tombstones which are removed first."""
    return max(marks, key=f" {UNMARKED}{MARKED}{PURGEABLE}".index)


def _legend(
    manifest: Manifest, marks: Sequence[str], signs: StripSigns, garbage: Sequence[int] | None, *, compacted: bool
) -> Iterator[str]:
    if not compacted:
        yield f"{signs.clean} {count_text(len(manifest.segments), 'segment')}"
        return
    dirty = dirty_from(manifest)
    for sign, name, part in (
        (signs.clean, "clean", manifest.segments[:dirty]),
        (signs.dirty, "dirty", manifest.segments[dirty:]),
    ):
        if part:
            yield f"{sign} {name} {size_text(sum(entry.size_bytes for entry in part))}"
    if garbage is not None:
        yield f"{signs.garbage} garbage {count_text(sum(garbage), 'record')}"
    unmarked = sum(entry.unmarked_tombstone_count for entry in manifest.segments)
    if unmarked:
        yield f"{UNMARKED} {count_text(unmarked, 'unmarked tombstone')}"
    for sign, name in ((MARKED, "marked"), (PURGEABLE, "purgeable")):
        of_sign = (e for e, mark in zip(manifest.segments, marks, strict=True) if mark == sign)
        count = sum(entry.tombstone_count - entry.unmarked_tombstone_count for entry in of_sign)
        if count:
            yield f"{sign} {count_text(count, f'{name} tombstone')}"


def _wrapped(items: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for item in items:
        if line and len(line) + 2 + len(item) > width:
            yield line
            line = ""
        line = f"{line}  {item}" if line else item
    if line:
        yield line
