"""Counts, sizes, times and names as people read them, the same in the output of every command."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

_NAMES_SHOWN: Final = 5


def size_text(n_bytes: float) -> str:
    """Format a number of bytes, such as `3.4 MiB`. It may be negative."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Format a number of things, such as `1 record` or `1,234 records`; `plural` is the noun's if it is not regular."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def time_text(timestamp_ms: int) -> str:
    """Format a timestamp in UTC; return the number if it is beyond the calendar, and `-` if it is negative."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def duration_text(seconds: float) -> str:
    """Format a duration in its largest unit, such as `14 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def names_text(names: Sequence[str]) -> str:
    """List the first few names, and how many more there are."""
    left = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {left} more" if left > 0 else "")


def ranges_text(numbers: Sequence[int]) -> str:
    """Describe ascending numbers, such as `0-4, 7`: the first few ranges, and how many more there are."""
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after != before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after != before + 1), numbers[-1]]
    return names_text([str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)])


def aligned_lines(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> Iterator[str]:
    """Align rows of cells in columns, two spaces apart. The columns `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:>{width}}" if at in right else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
