"""What a pass would free. A plan reads no index, so it has bounds, and an estimate where the manifest allows one.

    records_max    every record of the dirty part supersedes at most one record. In the clean part only tombstones go,
                   and the manifest counts them
    records        an estimate: of the clean part's offsets, earlier passes have removed a share. The same share of the
                   dirty records would go. Before the first pass there is no such share

`keyfold compact plan --exact` maps the logs, which reads their indexes. Then records are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keyfold.log.commit import Pinned
from keyfold.log.manifest import SegmentEntry, was_compacted
from keyfold.log.names import Place
from keyfold_compactor.decide.min_garbage import PassPlan
from keyfold_compactor.decide.policy import CleaningDecision
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import LogJob, log_job


@dataclass(frozen=True, slots=True)
class Gain:
    """Records and stored bytes that a pass would remove. `records` and `size_bytes` are None without an estimate."""

    records: int | None = 0
    size_bytes: int | None = 0
    records_max: int = 0
    bytes_max: int = 0
    is_exact: bool = False

    def __add__(self, other: Gain) -> Gain:
        return Gain(
            None if self.records is None or other.records is None else self.records + other.records,
            None if self.size_bytes is None or other.size_bytes is None else self.size_bytes + other.size_bytes,
            self.records_max + other.records_max,
            self.bytes_max + other.bytes_max,
            self.is_exact and other.is_exact,
        )


def gain(place: Place, pinned: Pinned, decision: CleaningDecision, settings: TopicSettings) -> Gain:
    """Return what the pass that `decision` asks for would remove, as far as the manifest tells."""
    if decision.is_merge:
        return Gain(is_exact=True)
    job = log_job(0, place, pinned, decision, settings, 0)
    # Segments that retention removes are not cleaned.
    entries = [entry for entry in job.entries if entry.base_offset >= decision.range.log_start]
    dirty = [entry for entry in entries if job.is_dirty(entry)]
    clean = [entry for entry in entries if not job.is_dirty(entry)]
    purged, purged_max = _purged(job, clean)
    keyless = sum(entry.keyless_count for entry in entries) if job.remove_keyless else 0
    dirty_count, clean_count = _keyed(dirty), _keyed(clean)
    # The first record of a log that has no clean part supersedes nothing.
    superseded_max = max(0, min(dirty_count, dirty_count + clean_count - 1))
    records_max = superseded_max + purged_max + keyless
    bytes_max = sum(entry.size_bytes for entry in entries) if records_max else 0
    span = decision.range.first_dirty - decision.range.log_start
    if superseded_max and not (was_compacted(pinned.manifest) and clean_count and span > 0):
        return Gain(None, None, records_max, bytes_max)
    share = max(0.0, 1 - sum(entry.record_count for entry in clean) / span) if superseded_max else 0.0
    records = min(records_max, round(share * dirty_count) + purged + keyless)
    all_records = sum(entry.record_count for entry in entries)
    size_bytes = round(bytes_max * records / all_records) if all_records else 0
    return Gain(records, size_bytes, records_max, bytes_max)


def exact_gain(job: LogJob, pass_plan: PassPlan) -> Gain:
    """Return what a pass removes by its plan, after the map. Bytes are an estimate by the sizes of the records."""
    records = sum(s.superseded_count + s.purged_count + s.keyless_count for s in pass_plan.stats)
    size_bytes = job.size_bytes - sum(s.kept_bytes for s in pass_plan.stats)
    return Gain(records, size_bytes, records, size_bytes, is_exact=True)


def total_gain(gains: Iterable[Gain]) -> Gain:
    """Return the sum."""
    return sum(gains, Gain(is_exact=True))


def _purged(job: LogJob, clean: Sequence[SegmentEntry]) -> tuple[int, int]:
    """Return how many marked tombstones certainly go from the clean part, and how many may go."""
    least = most = 0
    for entry in clean:
        marked = entry.tombstone_count - entry.unmarked_tombstone_count
        least += marked if job.purge.of_all(entry) == frozenset(entry.cleaned_epochs) else 0
        most += marked if job.purge.of_some(entry) else 0
    return least, most


def _keyed(entries: Sequence[SegmentEntry]) -> int:
    return sum(entry.record_count - entry.keyless_count for entry in entries)
