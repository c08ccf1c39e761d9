"""What pages tell of topics, sinks and passes. Pure: manifests and documents in, rows out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from keyfold.cli.log_map import MappedLog
from keyfold.cli.log_table import LogFigures
from keyfold.log.manifest import Manifest
from keyfold.runtime.text import count_text, size_text, time_text

GB_MONTH_PRICE: Final = 0.023
"""US dollars for a gigabyte and a month, as of S3's standard storage in us-east-1."""

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class TopicRow:
    """The figures of a topic, as text. `dirty` is empty for a topic without compaction, `garbage` if not counted."""

    topic: str
    partitions: str
    records: str
    segments: str
    size: str
    dirty: str
    garbage: str
    newest: str
    month_price: str
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """What the page of topics needs of a partition: the manifests of thousands of logs would take gigabytes."""

    topic: str
    figures: LogFigures | None
    superseded: int | None
    appended_at_ms: int
    error: str

    @staticmethod
    def of(log: MappedLog) -> PartitionFigures:
        """Return the figures of a partition, or why it cannot be read."""
        segments = () if log.manifest is None else log.manifest.segments
        return PartitionFigures(
            log.place.topic,
            None if log.manifest is None else LogFigures.of(log.manifest),
            None if log.garbage is None else sum(log.garbage),
            max((entry.appended_at_ms for entry in segments), default=-1),
            log.error,
        )


def topic_rows(
    logs: Iterable[PartitionFigures], now_ms: int, gb_month_price: float = GB_MONTH_PRICE
) -> Iterator[TopicRow]:
    """Yield a row for each topic; `logs` are in the order of topics."""
    for topic, of_topic in groupby(logs, key=lambda log: log.topic):
        yield _topic_row(topic, list(of_topic), now_ms, gb_month_price)


def _topic_row(topic: str, logs: Sequence[PartitionFigures], now_ms: int, gb_month_price: float) -> TopicRow:
    figures = [log.figures for log in logs if log.figures is not None]
    size = sum(each.size_bytes for each in figures)
    compacted = sum(each.compacted_bytes for each in figures)
    records = sum(each.record_count for each in figures)
    superseded = [log.superseded for log in logs if log.superseded is not None]
    return TopicRow(
        topic,
        f"{len(logs):,}",
        f"{records:,}",
        f"{sum(each.segment_count for each in figures):,}",
        size_text(size),
        f"{sum(each.dirty_bytes for each in figures) / compacted:.0%}" if compacted else "",
        f"{sum(superseded) / max(1, records):.0%}" if superseded else "",
        age_text(max(log.appended_at_ms for log in logs), now_ms),
        _price_text(size / 1e9 * gb_month_price),
        [log.error for log in logs if log.error],
    )


def _price_text(dollars: float) -> str:
    return f"${dollars:,.2f}" if dollars >= 0.01 or not dollars else "below $0.01"


def age_text(time_ms: int, now_ms: int) -> str:
    """Return how long ago a time was; empty for an unknown one."""
    if time_ms <= 0:
        return ""
    seconds = max(0, now_ms - time_ms) // 1000
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s} {unit} ago"
    return f"{seconds} s ago"


@dataclass(frozen=True, slots=True)
class PassRow:
    """Cleaning passes of one day: how many partitions had any, and how many passes there were."""

    day: str
    partitions: int
    passes: int
    share: float


def pass_rows(manifests: Iterable[Manifest]) -> list[PassRow]:
    """Return the passes that manifests remember by day, the newest first. `share` is of the day with the most."""
    by_day: dict[int, list[int]] = {}
    for manifest in manifests:
        for each in manifest.passes:
            if each.committed_at_ms > 0:
                by_day.setdefault(each.committed_at_ms // _DAY_MS, []).append(manifest.partition)
    most = max(map(len, by_day.values()), default=1)
    return [
        PassRow(time_text(day * _DAY_MS)[:10], len(set(numbers)), len(numbers), len(numbers) / most)
        for day, numbers in sorted(by_day.items(), reverse=True)
    ]


@dataclass(frozen=True, slots=True)
class ReportedPartition:
    """What a sink's task says of a partition: a part of the sink's own status document."""

    topic: str
    partition: int
    state: str
    next_offset: int = -1
    end_offset: int = -1
    oldest_record_ms: int = -1
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReportedTask:
    """One task of a worker."""

    number: int
    state: str
    partitions: tuple[ReportedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportedWorker:
    """One worker of a sink, as its status document has it."""

    worker_id: str
    reported_ms: int
    tasks: tuple[ReportedTask, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One partition of a sink, as text. `lag` is in records, `not_durable` the age of the oldest record in memory."""

    topic: str
    partition: int
    state: str
    worker: str
    lag: str
    lag_records: int
    not_durable: str
    error: str


def sink_rows(workers: Iterable[ReportedWorker], now_ms: int) -> list[SinkRow]:
    """Return a row for each partition, those with the most lag first."""
    rows = [_sink_row(worker, each, now_ms) for worker in workers for task in worker.tasks for each in task.partitions]
    return sorted(rows, key=lambda row: (-row.lag_records, row.topic, row.partition))


def _sink_row(worker: ReportedWorker, each: ReportedPartition, now_ms: int) -> SinkRow:
    is_known = each.end_offset >= 0 and each.next_offset >= 0
    lag = max(0, each.end_offset - each.next_offset) if is_known else -1
    return SinkRow(
        each.topic,
        each.partition,
        each.state,
        worker.worker_id,
        count_text(lag, "record") if is_known else "unknown",
        lag,
        age_text(each.oldest_record_ms, now_ms),
        each.error,
    )


def worker_text(workers: Sequence[ReportedWorker], now_ms: int) -> str:
    """Return which workers a sink has, and when they reported."""
    told = (f"{each.worker_id} reported {age_text(each.reported_ms, now_ms)}" for each in workers)
    return ", ".join(told) or "no worker"
