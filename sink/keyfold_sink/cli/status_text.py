"""What `keyfold sink status` and `offsets` print for people. Pure: answers of the REST API in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from keyfold.runtime.text import aligned_lines, count_text, duration_text
from keyfold_sink.progress import since_text, until_text
from keyfold_sink.rest import shapes
from keyfold_sink.status import RunState

_HEADS: Final = ("STATE", "LAG", "BUFFERED", "NEXT ROLL", "LAST COMMIT")
_WORKING: Final = frozenset({RunState.RUNNING, RunState.PAUSED})

Partitions = Sequence[shapes.PartitionDetails]


def is_well(status: shapes.ConnectorStatus, partitions: Partitions) -> bool:
    """Whether the sink does what was requested: nothing has failed or makes no progress."""
    states = [status.connector.state, *(task.state for task in status.tasks), *(part.state for part in partitions)]
    return not {RunState.FAILED, RunState.UNASSIGNED}.intersection(states)


def status_lines(
    status: shapes.ConnectorStatus, partitions: Partitions, now_ms: int, *, each: bool = False
) -> Iterator[str]:
    """Yield the state of a sink, of its topics or (with `each`) partitions, and what does not work, with the reason."""
    running = sum(task.state in _WORKING for task in status.tasks)
    workers = len({task.worker_id for task in status.tasks})
    tasks = f"{running:,} of {count_text(len(status.tasks), 'task')} working" if status.tasks else "no tasks"
    where = f" on {count_text(workers, 'worker')}" if workers else ""
    yield f"{status.name}: {status.connector.state}, {tasks}{where}, {count_text(len(partitions), 'partition')}"
    if partitions:
        yield ""
        yield from _table(partitions, now_ms, each=each)
    reasons = list(_reasons(status, partitions, now_ms))
    if reasons:
        yield ""
        yield from reasons


def offsets_lines(offsets: shapes.ConnectorOffsets) -> Iterator[str]:
    """Yield the end of each partition's log."""
    rows = [
        (f"{one.partition.kafka_topic}-{one.partition.kafka_partition}", f"{one.offset.kafka_offset:,}")
        for one in offsets.offsets
    ]
    yield from aligned_lines([("PARTITION", "LOG END"), *rows], right={1})


def _table(partitions: Partitions, now_ms: int, *, each: bool) -> Iterator[str]:
    if each:
        rows = [
            (
                f"{part.topic}-{part.partition}",
                "-" if part.next_offset is None else f"{part.next_offset:,}",
                *_cells([part], now_ms),
            )
            for part in partitions
        ]
        yield from aligned_lines([("PARTITION", "LOG END", *_HEADS), *rows], right={1, 3, 4})
        return
    by_topic: dict[str, list[shapes.PartitionDetails]] = {}
    for part in partitions:
        by_topic.setdefault(part.topic, []).append(part)
    topics = [(topic, f"{len(parts):,}", *_cells(parts, now_ms)) for topic, parts in by_topic.items()]
    yield from aligned_lines([("TOPIC", "PARTITIONS", *_HEADS), *topics], right={1, 3, 4})


def _cells(parts: Partitions, now_ms: int) -> tuple[str, ...]:
    states = sorted({part.state.value for part in parts})
    rolls = [part.next_roll_ms for part in parts if part.next_roll_ms is not None]
    commits = [part.last_commit_ms for part in parts if part.last_commit_ms is not None]
    return (
        "/".join(states),
        _sum(part.lag for part in parts),
        _sum(part.buffered_records for part in parts),
        until_text(min(rolls), now_ms) if rolls else "-",
        since_text(max(commits), now_ms) if commits else "-",
    )


def _sum(counts: Iterable[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return f"{sum(known):,}" if known else "-"


def _reasons(status: shapes.ConnectorStatus, partitions: Partitions, now_ms: int) -> Iterator[str]:
    """Yield what does not work, and why. A task's trace may repeat the errors of its partitions."""
    for task in status.tasks:
        if task.state not in _WORKING or task.trace:
            yield f"task {task.id} ({task.worker_id}): {task.state}{_because(task.trace)}"
    traces = " ".join(task.trace or "" for task in status.tasks)
    for part in partitions:
        if part.error and part.error not in traces and part.blocked_since_ms is not None:
            blocked = duration_text(max(0, now_ms - part.blocked_since_ms) / 1000)
            yield f"{part.topic}-{part.partition}: {part.state}, blocked for {blocked}: {part.error}"


def _because(trace: str | None) -> str:
    return "" if not trace else ": " + "; ".join(line for line in trace.splitlines() if line)
