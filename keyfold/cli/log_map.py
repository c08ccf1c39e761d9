"""A map of logs as one HTML page without scripts, which needs nothing else. Pure: manifests in, text out.

Each partition is a strip of its segments in offset order, as wide as their stored bytes:

    colour      clean, or dirty; the part of a bar that is filled from below is garbage, where it was counted
    mark above  tombstones: not marked by a pass, marked, purgeable
    line        a gap in the offsets, or how far a replica has received the log

A strip opens with the keyboard, and shows the segments as a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from keyfold.cli.output import dirty_ratio
from keyfold.cli.segment_strip import (
    MARKED,
    PURGEABLE,
    UNMARKED,
    dirty_from,
    is_compacted_topic,
    most_advanced,
    tombstone_mark,
)
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.runtime.text import count_text, size_text, time_text

_WIDTH: Final = 1000
_HEIGHT: Final = 30
_MARK_HEIGHT: Final = 5
_BARS_MAX: Final = 300
_ROWS_MAX: Final = 300
_MARKS: Final = {UNMARKED: "unmarked", MARKED: "marked", PURGEABLE: "purgeable", " ": ""}


@dataclass(frozen=True, slots=True)
class MappedLog:
    """A partition to draw: its manifest, or why it cannot be read. `garbage`: superseded records by segment."""

    place: Place
    manifest: Manifest | None
    error: str = ""
    garbage: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """Neighbouring segments that are drawn as one: `[first, last]`, and where they are, in shares of the width."""

    entries: Sequence[SegmentEntry]
    x: float
    width: float
    is_dirty: bool
    garbage: float
    mark: str


def bars(log: MappedLog, now_ms: int, bars_max: int = _BARS_MAX) -> Iterator[Bar]:
    """Yield the bars of a log. If it has more segments than `bars_max`, a bar stands for several neighbours."""
    manifest = log.manifest
    if manifest is None or not manifest.segments:
        return
    compacted, segments = is_compacted_topic(manifest), manifest.segments
    dirty = dirty_from(manifest) if compacted else len(segments)
    total, step, x = sum(max(1, entry.size_bytes) for entry in segments), -(-len(segments) // bars_max), 0.0
    for first in range(0, len(segments), step):
        part = segments[first : first + step]
        width = sum(max(1, entry.size_bytes) for entry in part) / total
        records = sum(entry.record_count for entry in part)
        superseded = 0 if log.garbage is None else sum(log.garbage[first : first + step])
        marks = [tombstone_mark(manifest, entry, now_ms) if compacted else " " for entry in part]
        yield Bar(part, x, width, first >= dirty, superseded / max(1, records), most_advanced(marks))
        x += width


def page(title: str, logs: Sequence[MappedLog], *, now_ms: int) -> str:
    """Return the page."""
    parts = [_HEAD.format(title=escape(title), css=CSS, now=time_text(now_ms), legend=LEGEND)]
    topic = None
    for log in sorted(logs, key=lambda each: (each.place.topic, each.place.partition)):
        if log.place.topic != topic:
            topic = log.place.topic
            parts.append(f"<h2>{escape(topic)}</h2>")
        parts.append(_partition(log, now_ms))
    return "\n".join([*parts, "</main></body></html>\n"])


def _partition(log: MappedLog, now_ms: int) -> str:
    name = escape(str(log.place))
    if log.manifest is None:
        return f'<p class="bad"><b>{name}</b> {escape(log.error)}</p>'
    about = escape(summary(log.manifest, log.garbage))
    return (
        f"<details><summary><b>{name}</b> {strip(log, now_ms)} <span>{about}</span></summary>\n"
        f"{facts(log.manifest)}\n{segment_table(log)}</details>"
    )


def strip(log: MappedLog, now_ms: int, bars_max: int = _BARS_MAX) -> str:
    """Return the strip of a log that can be read, as SVG."""
    assert log.manifest is not None
    label = escape(f"{log.place}: {summary(log.manifest, log.garbage)}")
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
    return f"{head}{''.join(_drawn(log, now_ms, bars_max))}</svg>"


def summary(manifest: Manifest, garbage: Sequence[int] | None) -> str:
    """Return the one line beside a strip."""
    found = [
        f"offsets {manifest.log_start_offset:,} to {manifest.next_offset:,}",
        count_text(len(manifest.segments), "segment"),
        size_text(manifest.size_bytes),
    ]
    if is_compacted_topic(manifest):
        found.append(f"{dirty_ratio(manifest):.0%} dirty")
    if garbage is not None:
        found.append(f"{count_text(sum(garbage), 'superseded record')}")
    if manifest.is_replica:
        found.append("a replica")
    return ", ".join(found)


def _drawn(log: MappedLog, now_ms: int, bars_max: int) -> Iterator[str]:
    assert log.manifest is not None
    top, height = _MARK_HEIGHT + 2, _HEIGHT - _MARK_HEIGHT - 2
    for bar in bars(log, now_ms, bars_max):
        x, width, filled = _WIDTH * bar.x, max(0.6, _WIDTH * bar.width - 1), height * bar.garbage
        yield f"<g><title>{escape(_told(bar))}</title>"
        yield _rect("dirty" if bar.is_dirty else "clean", x, top, width, height)
        if bar.garbage:
            yield _rect("garbage", x, _HEIGHT - filled, width, filled)
        if bar.mark != " ":
            yield _rect(_MARKS[bar.mark], x, 0, width, _MARK_HEIGHT)
        yield "</g>"
    for kind, offset, told in _lines(log.manifest):
        drawn = _rect(kind, _WIDTH * _share(log.manifest, offset), 0, 2, _HEIGHT)
        yield f"<g><title>{escape(told)}</title>{drawn}</g>"


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>'


def _told(bar: Bar) -> str:
    first, last = bar.entries[0], bar.entries[-1]
    size, records = sum(e.size_bytes for e in bar.entries), sum(e.record_count for e in bar.entries)
    told = f"offsets {first.base_offset:,} to {last.last_offset:,}: {count_text(records, 'record')}, {size_text(size)}"
    if len(bar.entries) > 1:
        told = f"{count_text(len(bar.entries), 'segment')}, {told}"
    if bar.garbage:
        told += f", {bar.garbage:.0%} garbage"
    return f"{told}, {_MARKS[bar.mark]} tombstones" if bar.mark != " " else told


def _lines(manifest: Manifest) -> Iterator[tuple[str, int, str]]:
    for gap in manifest.gaps:
        yield "gap", gap.from_offset, f"gap from {gap.from_offset:,} to {gap.to_offset:,}: {gap.reason}"
    for hold in manifest.holds:
        if hold.received_to >= 0:
            yield "hold", hold.received_to, f"replica {hold.replica} has received the log up to {hold.received_to:,}"


def _share(manifest: Manifest, offset: int) -> float:
    """Return where an offset is, as a share of the strip's width."""
    total = sum(max(1, entry.size_bytes) for entry in manifest.segments)
    before = sum(max(1, entry.size_bytes) for entry in manifest.segments if entry.next_offset <= offset)
    return min(1.0, before / max(1, total))


def facts(manifest: Manifest) -> str:
    """Return what else a manifest says, as a list of terms."""
    rows = [
        ("version", f"{manifest.version:,}"),
        ("first dirty offset", f"{manifest.first_dirty_offset:,}"),
        ("log id", manifest.log_id),
        *((f"{gap.from_offset:,} to {gap.to_offset:,} missing", gap.reason) for gap in manifest.gaps),
        *((f"replica {hold.replica}", f"received up to {hold.received_to:,}") for hold in manifest.holds),
        *sorted(manifest.settings.items()),
    ]
    told = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f"<dl>{told}</dl>"


def segment_table(log: MappedLog) -> str:
    """Return the newest segments of a log that can be read, as a table."""
    assert log.manifest is not None
    segments = list(enumerate(log.manifest.segments))[-_ROWS_MAX:]
    heads = ("first offset", "last offset", "records", "superseded", "tombstones", "unmarked", "bytes", "appended")
    rows = "".join(_row(entry, None if log.garbage is None else log.garbage[at]) for at, entry in segments)
    left = len(log.manifest.segments) - len(segments)
    note = f"<caption>The {len(segments)} newest segments; {left:,} more are not listed.</caption>" if left else ""
    titles = "".join(f'<th scope="col">{name}</th>' for name in heads)
    region = f'<div class="wide" tabindex="0" role="region" aria-label="Segments of {escape(str(log.place))}">'
    return f"{region}<table>{note}<thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>"


def _row(entry: SegmentEntry, garbage: int | None) -> str:
    cells = (
        f"{entry.base_offset:,}",
        f"{entry.last_offset:,}",
        f"{entry.record_count:,}",
        "" if garbage is None else f"{garbage:,}",
        f"{entry.tombstone_count:,}",
        f"{entry.unmarked_tombstone_count:,}",
        f"{entry.size_bytes:,}",
        time_text(entry.appended_at_ms) if entry.appended_at_ms > 0 else "",
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


_HEAD: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{css}</style></head><body><main>
<h1>{title}</h1>
<p>As of {now}. Each strip has a partition's segments in offset order, as wide as their stored bytes. Open it for
a table.</p>
{legend}"""

LEGEND: Final = """<ul class="legend"><li><i class="clean"></i>clean</li><li><i class="dirty"></i>dirty</li>
<li><i class="garbage"></i>superseded records</li><li><i class="unmarked"></i>tombstones without a mark</li>
<li><i class="marked"></i>marked tombstones</li><li><i class="purgeable"></i>purgeable tombstones</li>
<li><i class="gap"></i>gap</li><li><i class="hold"></i>received by a replica</li></ul>"""

CSS: Final = """
:root{color-scheme:light dark;--text:#1b1f24;--back:#fff;--faint:#57606a;--line:#d0d7de;--clean:#3f7fbf;--dirty:#d29922;
--garbage:#7a1f1f;--unmarked:#8c959f;--marked:#8250df;--purgeable:#cf222e;--gap:#000;--hold:#1a7f37}
@media (prefers-color-scheme:dark){:root{--text:#e6edf3;--back:#0d1117;--faint:#9198a1;--line:#3d444d;--clean:#58a6ff;
--dirty:#e3b341;--garbage:#a03030;--unmarked:#6e7681;--marked:#bc8cff;--purgeable:#ff7b72;--gap:#fff;--hold:#3fb950}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);margin:0}
main{max-width:76rem;margin:0 auto;padding:1rem}
summary{display:grid;grid-template-columns:minmax(7rem,12rem) 1fr minmax(8rem,20rem);gap:1rem;align-items:center;
padding:.3rem 0;cursor:pointer;border-bottom:1px solid var(--line)}
summary b::before{content:"▸ "}details[open]>summary b::before{content:"▾ "}
summary span{color:var(--faint);font-size:.9em}
svg{width:100%;height:30px;display:block}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0 1.5rem}
.wide{overflow-x:auto}
td,th{padding:.15rem .7rem;text-align:right;border-bottom:1px solid var(--line)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}
dt{color:var(--faint)}dd{margin:0;overflow-wrap:anywhere}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;padding:0;list-style:none}
.legend i{display:inline-block;width:.9rem;height:.9rem;margin-right:.4rem;vertical-align:-.1rem}
.bad{border-left:4px solid var(--purgeable);padding-left:.7rem}
.clean{fill:var(--clean);background:var(--clean)}.dirty{fill:var(--dirty);background:var(--dirty)}
.garbage{fill:var(--garbage);background:var(--garbage)}.unmarked{fill:var(--unmarked);background:var(--unmarked)}
.marked{fill:var(--marked);background:var(--marked)}.purgeable{fill:var(--purgeable);background:var(--purgeable)}
.gap{fill:var(--gap);background:var(--gap)}.hold{fill:var(--hold);background:var(--hold)}
@media (max-width:45rem){summary{grid-template-columns:1fr}}
"""
