"""The report of a run as text, without colours: a line per topic, details per partition, and a line per error.

text_lines     what a run prints to standard output: a line per topic and one for the run; `-v` adds the partitions
error_lines    what it prints to standard error: a line for each partition that failed
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from keyfold.runtime.text import count_text, names_text, size_text
from keyfold_compactor.report import metrics
from keyfold_compactor.report.report import PartitionOutcome, PartitionReport, RunReport

NO_LOG: Final = "no log found for the configured topics; `keyfold log list <url>` lists what is there"
NOT_REACHED: Final = "left for the next run"

_JAVA_FRAME: Final = re.compile(r"\s+at .*\)$|\s+\.\.\. \d+ (more|common frames omitted)$")
# In this order. Partitions without a report had nothing to do, or were not reached before the run was stopped.
_OUTCOMES: Final = (
    "cleaned",
    "expired",
    "not due",
    "skipped",
    "lost",
    "waiting after a failure",
    "failed",
    NOT_REACHED,
)


def text_lines(report: RunReport, *, is_verbose: bool = False) -> Iterable[str]:
    """Yield a line per topic, a line for the whole run, and what followed it: replicas, directories of keys, tables."""
    if is_verbose:
        for part in report.partitions:
            yield from _partition_lines(part)
    if not report.partitions and not report.quiet_partitions and not report.replicas:
        yield NO_LOG
        return
    for topic, outcomes in sorted(_outcomes(report).items()):
        yield f"{topic}: {_topic_text(outcomes, [p for p in report.partitions if p.place.topic == topic])}"
    yield _run_text(report)
    if is_verbose:
        yield from _verbose_lines(report)
    for each in report.after:
        yield from each.lines


def error_lines(report: RunReport) -> Iterator[str]:
    """Yield a line `error: ...` per partition that failed, and a hint. Lines that follow an error are indented.

    If Spark failed, all its partitions have the same error, which is told once.
    """
    failed = report.failed
    by_spark = [part for part in failed if report.executor_error and part.why == report.executor_error]
    if by_spark:
        names = names_text([str(part.place) for part in by_spark])
        yield from _error(f"{names} not cleaned", report.executor_error)
    for part in failed:
        if part in by_spark:
            continue
        why = {"": part.why, "retention failed: ": part.expired.error, "deletion failed: ": part.gc_error}
        yield from _error(str(part.place), "; ".join(f"{what}{text}" for what, text in why.items() if text))
    if len(failed) > len(by_spark):
        yield "hint: the next run tries again; `keyfold log verify` says whether a log is damaged"
    elif failed:
        yield "hint: the next run tries again"


def _error(what: str, why: str) -> Iterator[str]:
    first, *others = _without_frames(why)
    yield f"error: {what}: {first}"
    yield from (f"  {line}" for line in others)


def _without_frames(text: str) -> list[str]:
    """Return the lines of an error without those of Java's stack traces."""
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line and not _JAVA_FRAME.match(line)] or ["unknown error"]


def _outcomes(report: RunReport) -> dict[str, Counter[str]]:
    """Return how many partitions of each topic ended how."""
    found: dict[str, Counter[str]] = {}
    for part in report.partitions:
        found.setdefault(part.place.topic, Counter())[_outcome(part)] += 1
    for place, state in report.log_states.items():
        if place in report.reported:
            continue
        is_waiting = place in report.uncleanable
        word = "waiting after a failure" if is_waiting else NOT_REACHED if state.is_due else "not due"
        found.setdefault(place.topic, Counter())[word] += 1
    return found


def _outcome(part: PartitionReport) -> str:
    if part.is_failure:
        return "failed"
    return "not due" if part.outcome is PartitionOutcome.UNCHANGED else part.outcome.value


def _topic_text(outcomes: Counter[str], parts: Sequence[PartitionReport]) -> str:
    counted = ", ".join(f"{outcomes[word]:,} {word}" for word in _OUTCOMES if outcomes[word])
    records = sum(part.removed + part.expired.records for part in parts)
    freed = sum(part.before.bytes - part.after.bytes for part in parts)
    seconds = max((part.seconds for part in parts), default=0.0)
    if not records and not freed and not seconds:
        return counted
    return f"{counted}; {_freed_text(records, freed)}, {seconds:.1f} s"


def _freed_text(records: float, size_bytes: float) -> str:
    """Say what went. A merge or a small log may take more bytes than before, for its framing."""
    text = f"{count_text(int(records), 'record')} removed"
    return f"{text}, {size_text(size_bytes)} freed" if size_bytes >= 0 else f"{text}, {size_text(-size_bytes)} added"


def _run_text(report: RunReport) -> str:
    total = cast("dict[str, float]", report.document()["totals"])
    looked_at = count_text(len(report.partitions) + report.quiet_partitions, "partition")
    if not total["bytes_read"] and not total["records_expired"]:
        return f"{looked_at} in {report.seconds:.1f} s"
    freed = _freed_text(total["records_removed"] + total["records_expired"], total["bytes_freed"])
    return (
        f"{looked_at} in {report.seconds:.1f} s; {freed}; "
        f"{size_text(total['bytes_read'])} read, {size_text(total['bytes_written'])} written"
    )


def _verbose_lines(report: RunReport) -> Iterator[str]:
    total = cast("dict[str, float]", report.document()["totals"])
    yield (
        f"{count_text(int(total['records_kept']), 'record')} kept, "
        f"{count_text(int(total['objects_deleted']), 'object')} and "
        f"{count_text(int(total['orphans_deleted']), 'orphan')} deleted, "
        f"{total['throttle_wait_s']:.1f} s of waits for the byte rate"
    )
    yield from metrics.text_lines(report)


def _held_text(part: PartitionReport) -> str:
    return f", {part.held_tombstones:,} of them held for replicas" if part.held_tombstones else ""


def _partition_lines(part: PartitionReport) -> Sequence[str]:
    lines: list[str] = []
    expired = part.expired
    if expired.segments:
        lines.append(
            f"{part.place}: retention removed {count_text(expired.segments, 'segment')}, "
            f"{count_text(expired.records, 'record')}, {size_text(expired.bytes)}; "
            f"the log starts at {part.after.log_start_offset}"
        )
    if expired.error:
        lines.append(f"{part.place}: retention failed: {expired.error}")
    if part.outcome is PartitionOutcome.CLEANED:
        lines.append(
            f"{part.place}: {part.before.records:,} -> {count_text(part.after.records, 'record')} "
            f"({part.superseded:,} superseded, {count_text(part.purged_tombstones, 'tombstone')} purged, "
            f"{part.marked_tombstones:,} marked, {part.after.tombstones:,} kept{_held_text(part)}), "
            f"{part.before.segments:,} -> {count_text(part.after.segments, 'segment')}, "
            f"{size_text(part.before.bytes)} -> {size_text(part.after.bytes)}"
        )
        if part.parts > 1:
            lines.append(f"{part.place}: {part.parts_committed} of {part.parts} parts committed; {part.why or 'done'}")
        if part.segments_left:
            lines.append(
                f"{part.place}: {count_text(part.segments_left, 'segment')} not rewritten, "
                "garbage below segment.min.garbage.ratio"
            )
    elif part.why:
        lines.append(f"{part.place}: {part.outcome.value}: {part.why}")
        if part.parts_committed:
            lines.append(
                f"{part.place}: {part.parts_committed} of {part.parts} parts were committed before that and remain "
                f"in effect: {count_text(part.removed, 'record')} removed"
            )
    if part.garbage.object_count:
        orphans = len(part.garbage.orphans) + len(part.garbage.uploads)
        lines.append(
            f"{part.place}: deleted {count_text(len(part.garbage.replaced), 'replaced object')}, "
            f"{count_text(orphans, 'orphan')}"
        )
    if part.gc_error:
        lines.append(f"{part.place}: deletion failed: {part.gc_error}")
    return lines
