"""The counters of one task, cheap to update from any of its threads.

    meter.count(names.ROLLS, "time")          a counter, or a level that goes up and down (`by` may be negative)
    meter.observe(names.FLUSH_SECONDS, 0.2)   a histogram
    meter.batch(...), meter.offsets_...       updates of several metrics at once
    meter.values(gauges)                      all samples as `TaskStatus.values`

Callers count once per batch, job or request, never once per record. A value's key is the sample's name followed by the
values of its labels, separated by bars, without the task's own labels: `keyfold_sink_rolls_total|time`,
`keyfold_sink_flush_seconds_bucket|0.5`. `keyfold_sink.metrics.names` defines the keys, and the worker turns them into
samples (`keyfold_sink.metrics.worker_figures`).
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from keyfold.log.manifest import SegmentEntry
from keyfold.metrics.metric import Metric
from keyfold.runtime.clock import Clock
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.definitions import TASK
from keyfold_sink.metrics.names import METRICS, ROLL_REASONS, SECONDS_BOUNDS, SET_BACK_CAUSES
from keyfold_sink.metrics.recent import Recent

BAR: Final = "|"
_COUNTS: Final = tuple(m for m in METRICS if m.subject == TASK and m.adds_up)
_OBJECT_KINDS: Final = ("segment", "index")
_STATM: Final = Path("/proc/self/statm")


def sample_key(name: str, labels: tuple[str, ...] = ()) -> str:
    """Return the key of one sample in `TaskStatus.values`. Label values contain no bar."""
    return BAR.join((name, *labels)) if labels else name


@dataclass(slots=True)
class _Batches:
    """Batches since the last report. Only the main thread uses it, without a lock."""

    count: int = 0
    records: int = 0
    largest: int = 0
    value_bytes: int = 0
    sent: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0


class TaskMeter:
    """The counters of one task. Thread-safe, except `batch`, `sent` and `values`, which only the main thread calls."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, float] = dict.fromkeys(_zeros(), 0.0)
        self._buckets: dict[tuple[str, tuple[str, ...]], list[float]] = {}
        now_s = clock.monotonic_s()
        self._recent: dict[Metric, Recent] = {metric: Recent(now_s) for metric in _RECENT}
        self._offsets_good = self._offsets_bad = 0
        self._in_flight_records = 0
        self._batches = _Batches()
        self._rebalancing_since_s: float | None = None
        self._rebalanced_s: float | None = None
        self.observe(names.FLUSH_SECONDS, None)

    # Counting

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to a counter, or to a level."""
        key = sample_key(metric.name, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + by

    def mark(self, metric: Metric, value: float) -> None:
        """Set a value."""
        with self._lock:
            self._values[metric.name] = value

    def observe(self, metric: Metric, seconds: float | None, *labels: str) -> None:
        """Add to a histogram; None only creates it."""
        with self._lock:
            buckets = self._buckets.setdefault((metric.name, labels), [0.0] * (len(SECONDS_BOUNDS) + 2))
            if seconds is not None:
                place = next((i for i, bound in enumerate(SECONDS_BOUNDS) if seconds <= bound), len(SECONDS_BOUNDS))
                buckets[place] += 1
                buckets[-1] += seconds

    def batch(self, records: int, value_bytes: int, began_s: float) -> None:
        """Count a batch that was read and put into segments; it was received at `began_s`."""
        took_ms = (self.clock.monotonic_s() - began_s) * 1000
        batches = self._batches
        batches.count += 1
        batches.records += records
        batches.value_bytes += value_bytes
        batches.total_ms += took_ms
        batches.largest = max(batches.largest, records)
        batches.longest_ms = max(batches.longest_ms, took_ms)

    def sent(self, records: int) -> None:
        """Count records put into a segment."""
        self._batches.sent += records

    def rolled(self, reason: RollReason, records: int) -> float:
        """Count a finished segment with this number of records (0 for a gap), and return the current time."""
        self.count(names.ROLLS, reason.value)
        self.in_flight(records)
        return self.clock.monotonic_s()

    def committed(self, entry: SegmentEntry | None, rolled_s: float) -> None:
        """Count a commit of a segment or over a gap, which was rolled at `rolled_s`."""
        self.count(names.COMMITS)
        self.observe(names.FLUSH_SECONDS, self.clock.monotonic_s() - rolled_s)
        if entry is not None:
            self.count(names.COMMITTED, by=entry.record_count)
            for kind, size_bytes in (("segment", entry.size_bytes), ("index", entry.index_size_bytes)):
                self.count(names.OBJECTS, kind)
                self.count(names.OBJECT_BYTES, kind, by=size_bytes)

    def in_flight(self, records: int) -> None:
        """Add records of segments in flight to the store; a negative number removes them."""
        with self._lock:
            self._in_flight_records += records

    def offsets_sent(self) -> None:
        """Count an offset commit sent to the group."""
        self.count(connect_names.OFFSET_COMMITS)

    def offsets_answered(self, sent_s: float | None, *, good: bool, late: bool = False) -> None:
        """Count the group's answer to an offset commit, sent at `sent_s` if that is known.

        `late`: the partitions no longer belong to this task.
        """
        now_s = self.clock.monotonic_s()
        with self._lock:
            if late:
                self._values[connect_names.OFFSETS_LATE.name] += 1
                self._recent[connect_names.OFFSETS_LATE_RATE].record(1, now_s)
            elif good:
                self._offsets_good += 1
                self._values[connect_names.OFFSETS_COMMITTED.name] += 1
                self._recent[connect_names.OFFSETS_COMMITTED_RATE].record(1, now_s)
            else:
                self._offsets_bad += 1
            if sent_s is not None:
                self._recent[connect_names.OFFSETS_AVG].record((now_s - sent_s) * 1000, now_s)

    def rebalance_began(self) -> None:
        """Record that the group assigns or revokes partitions."""
        with self._lock:
            if self._rebalancing_since_s is None:
                self._rebalancing_since_s = self.clock.monotonic_s()

    def rebalance_is_over(self) -> None:
        """Count the end of a rebalance, if one is in progress: all assigned partitions are claimed."""
        now_s = self.clock.monotonic_s()
        with self._lock:
            if self._rebalancing_since_s is not None:
                self._values[connect_names.REBALANCES.name] += 1
                self._recent[connect_names.REBALANCE_AVG].record((now_s - self._rebalancing_since_s) * 1000, now_s)
                self._rebalancing_since_s, self._rebalanced_s = None, now_s

    # Reporting

    def values(self, gauges: Mapping[str, float]) -> dict[str, float]:
        """Return all samples. The gauge `ACTIVE` has the records of open segments; those in flight are added here."""
        now_s = self.clock.monotonic_s()
        with self._lock:
            active = gauges.get(connect_names.ACTIVE.name, 0.0) + self._in_flight_records
            gauges = {**gauges, connect_names.ACTIVE.name: active}
            self._count_batches(now_s)
            self._recent[connect_names.ACTIVE_AVG].record(active, now_s)
            found = {**self._values, **self._lately(now_s), **self._rebalanced(now_s), **gauges}
            answered = self._offsets_good + self._offsets_bad
            if answered:
                found[connect_names.OFFSETS_GOOD.name] = self._offsets_good / answered
                found[connect_names.OFFSETS_BAD.name] = self._offsets_bad / answered
            for (name, labels), buckets in self._buckets.items():
                found.update(_histogram(name, labels, buckets))
        used = resource.getrusage(resource.RUSAGE_SELF)
        found[names.CPU.name] = used.ru_utime + used.ru_stime
        memory = resident_bytes()
        if memory is not None:
            found[names.MEMORY.name] = memory
        return found

    def _count_batches(self, now_s: float) -> None:
        batches, self._batches = self._batches, _Batches()
        self._values[connect_names.READ.name] += batches.records
        self._values[names.VALUE_BYTES.name] += batches.value_bytes
        self._values[connect_names.SENT.name] += batches.sent
        self._recent[connect_names.READ_RATE].record(batches.records, now_s)
        self._recent[connect_names.SENT_RATE].record(batches.sent, now_s)
        if batches.count:
            self._recent[connect_names.BATCH_AVG].add(batches.count, batches.records, batches.largest, now_s)
            self._recent[connect_names.PUT_AVG].add(batches.count, batches.total_ms, batches.longest_ms, now_s)

    def _lately(self, now_s: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric, recent in self._recent.items():
            if metric.name.endswith("_rate"):
                found[metric.name] = recent.rate(now_s)
                continue
            mean, largest = recent.mean(now_s), recent.largest(now_s)
            if mean is not None and largest is not None:
                found[metric.name] = mean
                found[_RECENT[metric].name] = largest
        return found

    def _rebalanced(self, now_s: float) -> dict[str, float]:
        found = {connect_names.REBALANCING.name: float(self._rebalancing_since_s is not None)}
        if self._rebalanced_s is not None:
            found[connect_names.SINCE_REBALANCE.name] = (now_s - self._rebalanced_s) * 1000
        return found


_RECENT: Final[Mapping[Metric, Metric]] = {
    connect_names.READ_RATE: connect_names.READ_RATE,
    connect_names.SENT_RATE: connect_names.SENT_RATE,
    connect_names.OFFSETS_COMMITTED_RATE: connect_names.OFFSETS_COMMITTED_RATE,
    connect_names.OFFSETS_LATE_RATE: connect_names.OFFSETS_LATE_RATE,
    connect_names.PUT_AVG: connect_names.PUT_MAX,
    connect_names.BATCH_AVG: connect_names.BATCH_MAX,
    connect_names.ACTIVE_AVG: connect_names.ACTIVE_MAX,
    connect_names.OFFSETS_AVG: connect_names.OFFSETS_MAX,
    connect_names.REBALANCE_AVG: connect_names.REBALANCE_MAX,
}
"""Metrics over the last minute: rates, and means with their maxima."""


def _zeros() -> list[str]:
    """Return the counters to begin at 0, so that the first event is an increase, by label if its values are known."""
    known = {names.ROLLS: ROLL_REASONS, names.SET_BACKS: SET_BACK_CAUSES}
    known[names.SOURCE_GAPS] = ("lost", "tombstones")
    known[names.SCHEMA_LOOKUPS] = ("found", "unknown", "unavailable", "refused")
    known |= {names.OBJECTS: _OBJECT_KINDS, names.OBJECT_BYTES: _OBJECT_KINDS}
    plain = [m.name for m in _COUNTS if not m.own_labels and m.kind != "histogram"]
    plain += [connect_names.OFFSET_COMMITS.name, connect_names.LAST_ERROR.name, connect_names.REBALANCES.name]
    return plain + [sample_key(metric.name, (value,)) for metric, values in known.items() for value in values]


def _histogram(name: str, labels: tuple[str, ...], buckets: list[float]) -> dict[str, float]:
    """Return the cumulative samples of a histogram, as in Prometheus."""
    found: dict[str, float] = {}
    count = 0.0
    for bound, inside in zip((*map(str, SECONDS_BOUNDS), "+Inf"), buckets, strict=False):
        count += inside
        found[sample_key(f"{name}_bucket", (*labels, bound))] = count
    found[sample_key(f"{name}_sum", labels)] = buckets[-1]
    return found


def resident_bytes() -> float | None:
    """Return the resident memory of this process, None if the system does not provide it."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return float(pages * resource.getpagesize())
