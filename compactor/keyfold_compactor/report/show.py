"""What the command line prints: the report at the end of a run, and a plan.

Lines for a terminal are wrapped between words at its width. Lines for a pipe or a file are left whole.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from keyfold.log.names import Place
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.terminal import echo, echo_json, escaped
from keyfold.runtime.text import count_text, size_text
from keyfold_compactor.decide.horizon import HeldTombstones, plain_names
from keyfold_compactor.decide.policy import MaintenanceTask, PartitionReview
from keyfold_compactor.decide.retention import Expiry
from keyfold_compactor.report import metrics
from keyfold_compactor.report.cost import Cost, total
from keyfold_compactor.report.gain import Gain, total_gain
from keyfold_compactor.report.report import RunReport
from keyfold_compactor.report.report_text import NO_LOG, error_lines, text_lines

Costs = Mapping[Place, Cost]
"""The cost of cleaning, for each partition that has something to clean."""

Gains = Mapping[Place, Gain]
"""What a pass would free, for each partition that is due."""


log = structlog.get_logger(__name__)


def print_report(report: RunReport, *, as_json: bool, is_verbose: bool = False, is_quiet_silent: bool = False) -> None:
    """Print the report to standard output, and a text report's errors to standard error before that.

    `is_quiet_silent` omits the report of a run that did nothing (in a loop). JSON is one line unless standard output is
    a terminal; its errors are also events of the log. spark-submit also copies Python's standard error to standard
    output; the last line is still the report.
    """
    if is_quiet_silent and report.is_quiet:
        return
    if as_json:
        for part in report.failed:
            why = part.why or part.expired.error or part.gc_error
            log.error("partition failed", topic=part.place.topic, partition=part.place.partition, error=why)
        is_for_people = sys.stdout.isatty() and not is_quiet_silent
        echo_json(report_document(report), indent=2 if is_for_people else None)
        return
    print_lines(error_lines(report), err=True)
    print_lines(text_lines(report, is_verbose=is_verbose))


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, wrapped if this is a terminal."""
    is_terminal = (sys.stderr if err else sys.stdout).isatty()
    columns = shutil.get_terminal_size().columns if is_terminal else 0
    for line in lines:
        for piece in _wrapped(escaped(line), columns) if is_terminal else (line,):
            echo(piece, err=err)


def _wrapped(line: str, columns: int) -> Sequence[str]:
    """Cut a line between words. Its later pieces are indented, and a longer word stays whole."""
    indent = " " * (len(line) - len(line.lstrip(" ")) + 4)
    return textwrap.wrap(
        line, max(columns, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def report_document(report: RunReport) -> JsonObject:
    """Return a run's report as JSON, with the metrics of docs/metrics.md."""
    found = report.document()
    partitions = found.pop("partitions")
    return {**found, "metrics": metrics.document(report), "partitions": partitions}


def plan_document(
    reviews: Sequence[PartitionReview],
    costs: Costs | None = None,
    rate: float | None = None,
    gains: Gains | None = None,
) -> JsonObject:
    """Return a plan as JSON; `rate` is the limit in bytes per second."""
    costs, gains = costs or {}, gains or {}
    due, whole = _in_all(reviews, costs)
    return {
        "partitions_looked_at": len(reviews),
        "partitions_to_clean": due,
        "cost_at_most": _cost_document(whole, rate),
        "frees": _gain_document(total_gain(gains.values())),
        "partitions": [
            {
                **_document(review),
                "cost_at_most": _cost_document(costs.get(review.place), rate),
                "frees": _gain_document(gains.get(review.place)),
            }
            for review in _ordered(reviews)
        ],
    }


def plan_lines(
    reviews: Sequence[PartitionReview],
    costs: Costs | None = None,
    rate: float | None = None,
    gains: Gains | None = None,
) -> Iterable[str]:
    """Yield a plan as text: each partition, then a total. `rate` is the limit in bytes per second."""
    costs, gains = costs or {}, gains or {}
    for review in _ordered(reviews):
        found: dict[str, Any] = _document(review)
        name = f"{found['topic']}-{found['partition']}"
        if review.error is not None:
            yield f"{name}: error: {found['error']}"
        elif found["will_clean"]:
            verb = "merge" if review.decision is not None and review.decision.is_merge else "clean"
            yield (
                f"{name}: {verb} [{found['log_start_offset']}, {found['end_offset']}): "
                f"{'; '.join(found['reasons'])} (dirty ratio {found['dirty_ratio']:.3f}, "
                f"{size_text(found['clean_bytes'])} clean, {size_text(found['cleanable_bytes'])} cleanable)"
            )
            yield from (f"{name}: {text}" for text in _effect_texts(review, costs, rate, gains))
        else:
            forced = f" (--force: {_cost_text(costs[review.place], rate)})" if review.place in costs else ""
            yield f"{name}: skip: {found['why_not']}{forced}"
        if review.decision is not None and review.decision.held is not None:
            yield f"{name}: {_held_text(review.decision.held)}"
        yield from (f"{name}: {task}" for task in found.get("chores", ()) if task != MaintenanceTask.EXPIRE.value)
        if review.decision is not None and review.decision.expiry.is_asked:
            yield f"{name}: retention: {_retention_text(review.decision.expiry)}"
    if not reviews:
        yield NO_LOG
        return
    due, whole = _in_all(reviews, costs)
    yield f"{count_text(len(reviews), 'partition')} looked at, {due:,} to clean"
    if due and gains:
        yield f"in all, frees: {_gain_text(total_gain(gains.values()))}"
    if due:
        yield f"in all, cost: {_cost_text(whole, rate)}"


def _in_all(reviews: Sequence[PartitionReview], costs: Costs) -> tuple[int, Cost]:
    due = [review.place for review in reviews if review.decision is not None and review.decision.is_due]
    return len(due), total(costs[place] for place in due if place in costs)


def _effect_texts(review: PartitionReview, costs: Costs, rate: float | None, gains: Gains) -> Iterable[str]:
    """Say what a pass would free and cost. A merge frees nothing."""
    if review.place in gains and review.decision is not None and not review.decision.is_merge:
        yield f"frees: {_gain_text(gains[review.place])}"
    if review.place in costs:
        yield f"cost: {_cost_text(costs[review.place], rate)}"


def _gain_text(found: Gain) -> str:
    """Name what is an estimate and what is a bound."""
    if found.records is None or found.size_bytes is None:
        text = f"at most {count_text(found.records_max, 'record')} of {size_text(found.bytes_max)}"
        return f"{text} (no estimate before the first pass; --exact counts them)"
    if found.is_exact:
        return f"{count_text(found.records, 'record')}, about {size_text(found.size_bytes)}"
    return (
        f"about {count_text(found.records, 'record')}, {size_text(found.size_bytes)} "
        f"(estimated from earlier passes; at most {count_text(found.records_max, 'record')})"
    )


def _gain_document(found: Gain | None) -> JsonObject | None:
    if found is None:
        return None
    return {
        "records": found.records,
        "bytes": found.size_bytes,
        "records_at_most": found.records_max,
        "bytes_at_most": found.bytes_max,
        "is_exact": found.is_exact,
    }


def _cost_text(found: Cost, rate: float | None) -> str:
    text = (
        f"at most {size_text(found.index_bytes_read + found.segment_bytes_read)} read and "
        f"{size_text(found.bytes_written)} written"
    )
    seconds = found.seconds_at(rate)
    return text if seconds is None else f"{text}, {seconds:.0f} s at log.cleaner.io.max.bytes.per.second"


def _cost_document(found: Cost | None, rate: float | None) -> JsonObject | None:
    if found is None:
        return None
    seconds = found.seconds_at(rate)
    return {
        "index_bytes_read": found.index_bytes_read,
        "segment_bytes_read": found.segment_bytes_read,
        "bytes_written": found.bytes_written,
        "commits": found.parts,
        "throttled_seconds": None if seconds is None else round(seconds, 3),
    }


def _document(review: PartitionReview) -> JsonObject:
    found: JsonObject = {"topic": review.place.topic, "partition": review.place.partition}
    if review.decision is None:
        return {**found, "error": str(review.error)}
    parts = review.decision.range
    return {
        **found,
        "will_clean": review.decision.is_due,
        "reasons": [r.value for r in review.decision.reasons],
        "why_not": review.decision.why_not,
        "chores": [c.value for c in review.decision.maintenance],
        "log_start_offset": parts.log_start,
        "first_dirty_offset": parts.first_dirty,
        "first_uncleanable_offset": parts.end,
        "end_offset": review.decision.end,
        "clean_bytes": parts.clean_bytes,
        "cleanable_bytes": parts.cleanable_bytes,
        "dirty_ratio": parts.dirty_ratio,
        "overdue_ms": review.decision.overdue_ms,
        "held_tombstones": _held_document(review.decision.held),
        "retention": _retention_document(review.decision.expiry),
    }


def _held_document(found: HeldTombstones | None) -> JsonObject | None:
    if found is None:
        return None
    return {
        "from_offset": found.from_offset,
        "replicas": list(plain_names(found.replicas)),
        "segments": found.segments,
        "until_ms": found.until_ms,
    }


def _held_text(found: HeldTombstones) -> str:
    who = " and ".join(plain_names(found.replicas))
    until = datetime.fromtimestamp(found.until_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"tombstones past their delete horizon are held from offset {found.from_offset} on until they reach replica "
        f"{who}, at the latest until {until} (replica.hold.max.ms)"
    )


def _retention_document(found: Expiry) -> JsonObject:
    return {
        "segments": len(found.segments),
        "by_size": found.by_size,
        "by_time": found.by_time,
        "records": found.record_count,
        "bytes": found.size_bytes,
        "log_start_offset": found.log_start_offset,
        "why_not_more": found.why_not,
    }


def _retention_text(found: Expiry) -> str:
    if not found.segments:
        return f"nothing expires: {found.why_not}"
    causes = [
        f"{count} by {key}"
        for count, key in ((found.by_size, "retention.bytes"), (found.by_time, "retention.ms"))
        if count
    ]
    text = (
        f"{count_text(len(found.segments), 'segment')} {'expires' if len(found.segments) == 1 else 'expire'} "
        f"({', '.join(causes)}), "
        f"{count_text(found.record_count, 'record')}, "
        f"{size_text(found.size_bytes)}; the log will start at {found.log_start_offset}"
    )
    return f"{text}; {found.why_not}" if found.why_not else text


def _ordered(reviews: Sequence[PartitionReview]) -> list[PartitionReview]:
    """Sort partitions in the order in which a run cleans them."""
    return sorted(
        reviews,
        key=lambda review: (
            review.decision is not None and not review.decision.is_due,
            review.decision.rank if review.decision else (0, 0, 0.0),
            review.place.topic,
            review.place.partition,
        ),
    )
