"""The strip of a log's segments: what it shows, at any width, for any number of segments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.cli.segment_strip import ASCII, SHADES, signs_for, strip_lines
from keyfold.log.manifest import Hold, Manifest, Pass, SegmentEntry
from tests.support.manifests import empty_manifest, entry, sink_name

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def segments(*sizes: int) -> tuple[SegmentEntry, ...]:
    """Ten records per segment."""
    return tuple(entry(sink_name(10 * at), 10 * at, 10 * at + 10, size_bytes=size) for at, size in enumerate(sizes))


def manifest_of(entries: tuple[SegmentEntry, ...], *, dirty: int = 0, **changes: object) -> Manifest:
    """A log whose segments from position `dirty` on are dirty."""
    log = empty_manifest(segments=entries, next_offset=10 * len(entries), first_dirty_offset=10 * dirty)
    return replace(log, **changes)  # type: ignore[arg-type]  # fields by name, of any type


def drawn(manifest: Manifest, width: int = 60, garbage: tuple[int, ...] | None = None, now_ms: int = 0) -> list[str]:
    return list(strip_lines(manifest, now_ms=now_ms, width=width, signs=ASCII, garbage=garbage))


def test_widths_are_the_shares_of_the_bytes() -> None:
    strip, axis, legend = drawn(manifest_of(segments(100, 200, 100), dirty=1), width=44)
    assert strip == f"|{'#' * 10}|{'=' * 20}|{'=' * 10}|"
    assert axis == f"{'0 log start':<34}log end 30"
    assert legend == "# clean 100 B  = dirty 300 B"


def test_a_small_segment_has_a_cell() -> None:
    strip = drawn(manifest_of(segments(10**9, 1, 1), dirty=2), width=20)[0]
    assert strip == f"|{'#' * 14}|#|=|"


def test_a_cell_of_many_segments_has_no_border_and_small_parts_are_visible() -> None:
    strip = drawn(manifest_of(segments(*[1000] * 999, 1), dirty=999), width=40)[0]
    assert strip == f"|{'#' * 37}=|"
    strip = drawn(manifest_of(segments(*[1000] * 1000), dirty=500), width=42)[0]
    assert strip == f"|{'#' * 20}{'=' * 20}|"
    strip = drawn(manifest_of(segments(*[1] * 99, 10**6), dirty=1), width=42)[0]
    assert strip == f"|#{'=' * 39}|", "a small clean part is visible, too"


def test_garbage_takes_its_share() -> None:
    strip, _, *legend = drawn(manifest_of(segments(100, 100), dirty=1), width=43, garbage=(5, 0))
    assert (strip.count("."), strip.count("#"), strip.count("=")) == (10, 10, 20)
    assert legend == ["# clean 100 B  = dirty 100 B", ". garbage 5 records"]
    strip = drawn(manifest_of(segments(*[100] * 500), dirty=0), width=42, garbage=(10,) * 250 + (0,) * 250)[0]
    assert strip == f"|{'.' * 20}{'=' * 20}|"


def test_tombstones_are_unmarked_then_marked_then_purgeable() -> None:
    without = segments(100, 100, 100)[2]
    passes = (Pass(2, 1000), Pass(3, 1000 + DAY_MS))
    marked = [
        entry(sink_name(10 * at), 10 * at, 10 * at + 10, tombstones=2, unmarked=0, cleaned_epochs=(epoch,))
        for at, epoch in enumerate((2, 3))
    ]
    unmarked = entry(sink_name(30), 30, 40, tombstones=1)
    entries = (*marked, without, unmarked)
    manifest = manifest_of(entries, dirty=3, passes=passes)
    now_ms = 1000 + DAY_MS + HOUR_MS
    marks = drawn(manifest, width=25, now_ms=now_ms)[1]
    assert marks == "|ppppp|mmmmm|     |ttttt|"
    legend = " ".join(drawn(manifest, width=25, now_ms=now_ms)[3:])
    assert "t 1 unmarked tombstone m 2 marked tombstones p 2 purgeable tombstones" in legend
    shorter = manifest_of(entries, dirty=3, passes=passes, settings={"delete.retention.ms": "60000"})
    assert drawn(shorter, width=25, now_ms=now_ms)[1] == "|ppppp|ppppp|     |ttttt|"
    held = manifest_of(entries, dirty=3, passes=passes, holds=(Hold("dr", -1, 0, received_to=9),))
    assert drawn(held, width=25, now_ms=now_ms)[1] == "|mmmmm|mmmmm|     |ttttt|"


def test_a_topic_that_is_not_compacted_has_neither_dirt_nor_marks() -> None:
    entries = tuple(entry(sink_name(10 * at), 10 * at, 10 * at + 10, tombstones=1) for at in range(2))
    deleted = manifest_of(entries, settings={"cleanup.policy": "delete"})
    assert drawn(deleted, width=23) == [f"|{'#' * 10}|{'#' * 10}|", "0 log start  log end 20", "# 2 segments"]
    both = manifest_of(entries, settings={"cleanup.policy": "compact,delete"})
    assert drawn(both, width=23)[0] == f"|{'=' * 10}|{'=' * 10}|"


def test_an_empty_log_has_no_strip() -> None:
    assert drawn(manifest_of(())) == []


@pytest.mark.parametrize(
    ("encoding", "signs"),
    [("utf-8", SHADES), ("cp437", SHADES), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no-such", ASCII)],
)
def test_encodings_without_shades_get_ascii(encoding: str | None, signs: object) -> None:
    assert signs_for(encoding) is signs


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=60),
    st.integers(0, 60),
    st.integers(30, 140),
)
def test_lines_fit_the_width_and_show_both_parts(sizes: list[int], dirty: int, width: int) -> None:
    manifest = manifest_of(segments(*sizes), dirty=min(dirty, len(sizes)))
    lines = drawn(manifest, width=width, garbage=(1,) * len(sizes))
    assert all(len(line) <= width for line in lines)
    strip = drawn(manifest, width=width)[0]
    assert ("#" in strip) == (dirty > 0)
    assert ("=" in strip) == (dirty < len(sizes))
