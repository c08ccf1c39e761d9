"""What the command line prints: progress during a run, the report at its end, and a plan."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from keyfold.log.names import Place
from keyfold.runtime.clock import Clock
from keyfold.runtime.terminal import echo, echo_json
from keyfold_compactor.decide.horizon import Held, plain_names
from keyfold_compactor.decide.policy import Chore, Look
from keyfold_compactor.decide.retention import Expiry
from keyfold_compactor.report import metrics
from keyfold_compactor.report.cost import Cost, total
from keyfold_compactor.report.progress import LoggedProgress, Progress
from keyfold_compactor.report.report import RunReport, size_text, text_lines

Costs = Mapping[Place, Cost]
"""The cost of cleaning, for each partition that has something to clean."""


class TerminalProgress:
    """A progress bar for the current stage."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)

    def begin(self, stage: str, total: int) -> None:
        """See `Progress.begin`."""
        self._bar.reset(self._task, total=total, description=stage)

    def step(self, count: int = 1) -> None:
        """See `Progress.step`."""
        self._bar.advance(self._task, count)


@contextlib.contextmanager
def progress(clock: Clock, *, as_json: bool) -> Iterator[Progress]:
    """Show a bar on standard error if that is a terminal, else log an event now and then."""
    if as_json or not sys.stderr.isatty():
        yield LoggedProgress(clock)
        return
    columns = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield TerminalProgress(bar)


def print_report(report: RunReport, *, as_json: bool, is_quiet_silent: bool = False) -> None:
    """Print the report to standard output. `is_quiet_silent` omits the report of a run that did nothing (in a loop).

    JSON is one line unless standard output is a terminal. spark-submit also copies Python's standard error to standard
    output; the last line is still the report.
    """
    if is_quiet_silent and report.is_quiet:
        return
    if as_json:
        is_for_people = sys.stdout.isatty() and not is_quiet_silent
        echo_json(report_document(report), indent=2 if is_for_people else None)
        return
    for line in (*text_lines(report), *metrics.text_lines(report)):
        echo(line)


def report_document(report: RunReport) -> dict[str, Any]:
    """Return a run's report as JSON, with the metrics of docs/metrics.md."""
    found = report.document()
    partitions = found.pop("partitions")
    return {**found, "metrics": metrics.document(report), "partitions": partitions}


def plan_document(looks: Sequence[Look], costs: Costs | None = None, rate: float | None = None) -> dict[str, Any]:
    """Return a plan as JSON; `rate` is the limit in bytes per second."""
    costs = costs or {}
    due, whole = _in_all(looks, costs)
    return {
        "partitions_looked_at": len(looks),
        "partitions_to_clean": due,
        "cost_at_most": _cost_document(whole, rate),
        "partitions": [
            {**_document(k), "cost_at_most": _cost_document(costs.get(k.place), rate)} for k in _ordered(looks)
        ],
    }


def plan_lines(looks: Sequence[Look], costs: Costs | None = None, rate: float | None = None) -> Iterable[str]:
    """Yield a plan as text: each partition, then a total. `rate` is the limit in bytes per second."""
    costs = costs or {}
    for look in _ordered(looks):
        found = _document(look)
        name = f"{found['topic']}-{found['partition']}"
        if look.error is not None:
            yield f"{name}: error: {found['error']}"
        elif found["will_clean"]:
            verb = "merge" if look.verdict is not None and look.verdict.is_merge else "clean"
            yield (
                f"{name}: {verb} [{found['log_start_offset']}, {found['end_offset']}): "
                f"{'; '.join(found['reasons'])} (dirty ratio {found['dirty_ratio']:.3f}, "
                f"{size_text(found['clean_bytes'])} clean, {size_text(found['cleanable_bytes'])} cleanable)"
            )
            if look.place in costs:
                yield f"{name}: cost: {_cost_text(costs[look.place], rate)}"
        else:
            forced = f" (--force: {_cost_text(costs[look.place], rate)})" if look.place in costs else ""
            yield f"{name}: skip: {found['why_not']}{forced}"
        if look.verdict is not None and look.verdict.held is not None:
            yield f"{name}: {_held_text(look.verdict.held)}"
        yield from (f"{name}: {chore}" for chore in found.get("chores", ()) if chore != Chore.EXPIRE.value)
        if look.verdict is not None and look.verdict.expiry.is_asked:
            yield f"{name}: retention: {_retention_text(look.verdict.expiry)}"
    if not looks:
        yield "no log found for the configured topics; `keyfold log list <url>` lists what is there"
        return
    due, whole = _in_all(looks, costs)
    yield f"{len(looks)} partitions looked at, {due} to clean" + (f": {_cost_text(whole, rate)}" if due else "")


def _in_all(looks: Sequence[Look], costs: Costs) -> tuple[int, Cost]:
    due = [k.place for k in looks if k.verdict is not None and k.verdict.is_due]
    return len(due), total(costs[place] for place in due if place in costs)


def _cost_text(found: Cost, rate: float | None) -> str:
    text = (
        f"at most {size_text(found.index_bytes_read + found.segment_bytes_read)} read and "
        f"{size_text(found.bytes_written)} written"
    )
    seconds = found.seconds_at(rate)
    return text if seconds is None else f"{text}, {seconds:.0f} s at log.cleaner.io.max.bytes.per.second"


def _cost_document(found: Cost | None, rate: float | None) -> dict[str, Any] | None:
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


def _document(look: Look) -> dict[str, Any]:
    found: dict[str, Any] = {"topic": look.place.topic, "partition": look.place.partition}
    if look.verdict is None:
        return {**found, "error": str(look.error)}
    parts = look.verdict.range
    return {
        **found,
        "will_clean": look.verdict.is_due,
        "reasons": [r.value for r in look.verdict.reasons],
        "why_not": look.verdict.why_not,
        "chores": [c.value for c in look.verdict.chores],
        "log_start_offset": parts.log_start,
        "first_dirty_offset": parts.first_dirty,
        "first_uncleanable_offset": parts.end,
        "end_offset": look.verdict.end,
        "clean_bytes": parts.clean_bytes,
        "cleanable_bytes": parts.cleanable_bytes,
        "dirty_ratio": parts.dirty_ratio,
        "overdue_ms": look.verdict.overdue_ms,
        "held_tombstones": _held_document(look.verdict.held),
        "retention": _retention_document(look.verdict.expiry),
    }


def _held_document(found: Held | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "from_offset": found.from_offset,
        "replicas": list(plain_names(found.replicas)),
        "segments": found.segments,
        "until_ms": found.until_ms,
    }


def _held_text(found: Held) -> str:
    who = " and ".join(plain_names(found.replicas))
    until = datetime.fromtimestamp(found.until_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"tombstones past their delete horizon are held from offset {found.from_offset} on until they reach replica "
        f"{who}, at the latest until {until} (replica.hold.max.ms)"
    )


def _retention_document(found: Expiry) -> dict[str, Any]:
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
        f"{len(found.segments)} segments expire ({', '.join(causes)}), {found.record_count} records, "
        f"{size_text(found.size_bytes)}; the log will start at {found.log_start_offset}"
    )
    return f"{text}; {found.why_not}" if found.why_not else text


def _ordered(looks: Sequence[Look]) -> list[Look]:
    """Sort partitions in the order in which a run cleans them."""
    return sorted(
        looks,
        key=lambda k: (
            k.verdict is not None and not k.verdict.is_due,
            k.verdict.rank if k.verdict else (0, 0, 0.0),
            k.place.topic,
            k.place.partition,
        ),
    )
