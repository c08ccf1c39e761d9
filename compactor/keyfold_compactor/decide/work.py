"""What the driver sends to tasks, and what they answer: plain values that can be pickled.

A log is cleaned in two steps. `LogJob` asks for the map. Its answer is small (`SegmentStats` per segment); the masks
that say which records are removed stay where they were made. `UnitJob` asks for one output, and gets the masks of its
segments from there. The driver never receives a key or a record. An answer with an `error` fails only its own
partition.

A log that is small beside its batch may be cleaned in one stage (`LogJob.single_stage`): the task that mapped it also
does its units.
"""

from __future__ import annotations

from dataclasses import dataclass

from keyfold.errors import KeyfoldError
from keyfold.log.commit import Pinned
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold_compactor.decide.horizon import Purge, purge_of
from keyfold_compactor.decide.plan import SegmentStats
from keyfold_compactor.decide.policy import CleaningDecision
from keyfold_compactor.decide.settings import Encoding, TopicSettings


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """Limits for choosing a log's units after its map (`single_stage.plan_pass`), in stored bytes.

    An output has at most `segment_bytes` and is made from at most `unit_bytes`. A part of the pass moves at most
    `max_bytes`. `min_garbage_ratio` is the share of garbage that makes a segment worth rewriting. With `keeps_ages`,
    segments that stay dirty are not merged, because `max.compaction.lag.ms` counts from the oldest of them.
    """

    segment_bytes: int
    unit_bytes: int
    min_garbage_ratio: float
    max_bytes: int
    keeps_ages: bool = False


@dataclass(frozen=True, slots=True)
class LogJob:
    """One log of a run. `entries` are its segments below `end`; the map is made of `[first_dirty, end)`.

    With `single_stage` the task that maps the log may also do its units.
    """

    number: int
    place: Place
    entries: tuple[SegmentEntry, ...]
    first_dirty: int
    end: int
    epoch: int
    sync_marker: bytes
    purge: Purge
    remove_keyless: bool
    encoding: Encoding
    single_stage: UnitLimits | None = None

    @property
    def size_bytes(self) -> int:
        """Stored bytes of the log's segments."""
        return sum(e.size_bytes for e in self.entries)

    @property
    def index_bytes(self) -> int:
        """Maximum bytes that mapping this log reads."""
        return sum(e.index_size_bytes for e in self.entries)

    def is_dirty(self, entry: SegmentEntry) -> bool:
        """Whether a segment has offsets of the dirty range."""
        return entry.next_offset > self.first_dirty and self.end > self.first_dirty

    def needs_index(self, entry: SegmentEntry) -> bool:
        """Whether a clean segment must be read even if the map has none of its keys."""
        return bool(
            entry.unmarked_tombstone_count or self.purge.of_some(entry) or (self.remove_keyless and entry.keyless_count)
        )


def log_job(
    number: int,
    place: Place,
    pinned: Pinned,
    decision: CleaningDecision,
    settings: TopicSettings,
    epoch: int,
) -> LogJob:
    """Return what tasks need to know about one log."""
    manifest = pinned.manifest
    return LogJob(
        number=number,
        place=place,
        entries=tuple(s for s in manifest.segments if s.next_offset <= decision.end),
        first_dirty=decision.range.first_dirty,
        end=decision.end,
        epoch=epoch,
        sync_marker=manifest.sync_marker,
        purge=purge_of(manifest, settings, pinned.seen_ms),
        remove_keyless=settings.remove_keyless,
        encoding=settings.encoding,
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    """Stored bytes that a task moved, and how long the throttle made it wait."""

    read_bytes: int = 0
    written_bytes: int = 0
    wait_s: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
            self.wait_s + other.wait_s,
        )


@dataclass(frozen=True, slots=True)
class MapAnswer:
    """Result of the map of one log: one `SegmentStats` per entry of its job, or the error.

    `made` are the answers of its units if the task did these too, else None.
    """

    number: int
    stats: tuple[SegmentStats, ...] = ()
    error: str = ""
    traffic: Traffic = Traffic()
    made: tuple[UnitAnswer, ...] | None = None


MaskKey = tuple[int, int]
"""A log's number and a segment's position in its job."""


@dataclass(frozen=True, slots=True)
class UnitSource:
    """One segment that a unit reads: its position in the log's job, and how many of its records stay."""

    position: int
    entry: SegmentEntry
    kept_count: int


@dataclass(frozen=True, slots=True)
class UnitJob:
    """One output of one log: `sources` are the segments that still have records.

    It has nothing about the log's other segments, because a log of thousands of segments has a unit for each few of
    them. Without `is_marking` tombstones keep their marks: an older record of their key may be left in the log.
    """

    log: int
    group: int
    place: Place
    epoch: int
    sync_marker: bytes
    encoding: Encoding
    sources: tuple[UnitSource, ...]
    base_offset: int
    next_offset: int
    is_remark: bool
    is_marking: bool = True

    @property
    def source_bytes(self) -> int:
        """Stored bytes of the segments that the output is made from."""
        return sum(s.entry.size_bytes for s in self.sources)

    def mask_keys(self) -> list[MaskKey]:
        """Return the masks that this unit needs: those of segments that lose a record."""
        return [(self.log, s.position) for s in self.sources if s.kept_count < s.entry.record_count]


@dataclass(frozen=True, slots=True)
class UnitAnswer:
    """The segment that a unit made and uploaded, or the error."""

    log: int
    group: int
    entry: SegmentEntry | None = None
    error: str = ""
    traffic: Traffic = Traffic()


def reason(error: BaseException) -> str:
    """Format an error for the report. Other errors than keyfold's own show their type."""
    return str(error) if isinstance(error, KeyfoldError) else f"{type(error).__name__}: {error}"
