"""The cost of cleaning a log, estimated from its manifest: a plan reads no index.

Only the keys tell how much of a log is garbage. So these are upper bounds, for the case that every segment in the range
has some garbage. A segment without garbage costs only its index, and a block in which nothing survives is not read.
Small segments cost a few percent more, for their framing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from keyfold.log.commit import Pinned
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold_compactor.decide.merge import merges
from keyfold_compactor.decide.policy import CleaningDecision, decide_cleaning
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import log_job


@dataclass(frozen=True, slots=True)
class Cost:
    """Upper bounds in stored bytes: indexes and segments read, both written. `parts` is about the number of commits."""

    index_bytes_read: int = 0
    segment_bytes_read: int = 0
    bytes_written: int = 0
    parts: int = 0

    @property
    def moved_bytes(self) -> int:
        """All bytes that the throttle would count."""
        return self.index_bytes_read + self.segment_bytes_read + self.bytes_written

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.index_bytes_read + other.index_bytes_read,
            self.segment_bytes_read + other.segment_bytes_read,
            self.bytes_written + other.bytes_written,
            self.parts + other.parts,
        )

    def seconds_at(self, rate: float | None) -> float | None:
        """Return how long the throttle alone would take at `rate` bytes per second; None without a limit."""
        return None if rate is None else self.moved_bytes / rate


def cost(
    place: Place, pinned: Pinned, decision: CleaningDecision, settings: TopicSettings, pass_bytes: int
) -> Cost | None:
    """Return the cost of the pass that `decision` asks for; of a log that is not due, the cost of cleaning it now.

    Return None if there is nothing to clean even then.
    """
    if decision.is_merge:
        groups = merges(pinned.manifest.segments, decision.range.first_dirty, settings)
        return _moved([pinned.manifest.segments[at] for g in groups for at in g.kept], pass_bytes, index_reads=1)
    if decision.replica_of or not settings.compact:
        return None
    asked = decision if decision.is_due else decide_cleaning(pinned.manifest, settings, pinned.seen_ms, force=True)
    job = log_job(0, place, pinned, asked, settings, 0)
    # Segments that retention removes are not cleaned.
    entries = [entry for entry in job.entries if entry.base_offset >= decision.range.log_start]
    is_dirty = any(job.is_dirty(entry) for entry in entries)
    if not is_dirty and not decision.is_due:
        return None
    # The map looks for the dirty part's keys in the whole clean part; without a dirty part only for due tombstones.
    looked_at = [entry for entry in entries if is_dirty or job.needs_index(entry)]
    return _moved(looked_at, pass_bytes, index_reads=2)  # for the map, and again where a segment is rewritten


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum."""
    return sum(costs, Cost())


def _moved(entries: Sequence[SegmentEntry], pass_bytes: int, *, index_reads: int) -> Cost:
    index_bytes = sum(e.index_size_bytes for e in entries)
    segment_bytes = sum(e.size_bytes for e in entries)
    return Cost(
        index_bytes_read=index_reads * index_bytes,
        segment_bytes_read=segment_bytes,
        bytes_written=segment_bytes + index_bytes,
        parts=max(1, ceil(2 * segment_bytes / pass_bytes)),
    )
