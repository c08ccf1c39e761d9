"""What the driver sends to tasks, and what they answer: plain values that can be pickled.

A log is cleaned in two steps. `LogJob` asks for the map: the answer is small (`SegmentStats` per segment), the masks
that say which record goes stay where they were made. `UnitJob` asks for one output; the masks of its segments come to
it from there. The driver never gets a key or a record. An answer with an `error` fails its own partition alone.

A log that is small beside its batch may be cleaned in one go (`LogJob.at_once`): the task that has mapped it does its
units too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from keyfold.errors import KeyfoldError
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import Place
from keyfold.store.api import ObjectStore
from keyfold.store.pace import Pacer
from keyfold_compactor.horizon import Purge
from keyfold_compactor.plan import SegmentStats
from keyfold_compactor.settings import Encoding


class StoreSource(Protocol):
    """A description of the bucket from which a task opens its own store (`keyfold.store.s3.S3Location`)."""

    def open(self, pacer: Pacer | None = None) -> ObjectStore:
        """A store whose bytes the pacer lets through."""


@dataclass(frozen=True, slots=True)
class Limits:
    """By what the units of a log are chosen once it is mapped (`at_once.choice_of`), in stored bytes.

    `segment_bytes` is what an output may have, `unit_bytes` what one may be made from, `max_bytes` what a part of the
    pass may move; `floor` is the share of garbage that makes a segment worth rewriting. With `keeps_ages` segments that
    stay dirty are not merged, for `max.compaction.lag.ms` counts from the oldest of them.
    """

    segment_bytes: int
    unit_bytes: int
    floor: float
    max_bytes: int
    keeps_ages: bool = False


@dataclass(frozen=True, slots=True)
class LogJob:
    """One log of a run. `entries` are its segments below `end`; `[first_dirty, end)` is what the map is made of.

    With `at_once` the task that maps it may go on to its units.
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
    at_once: Limits | None = None

    @property
    def size_bytes(self) -> int:
        """Stored bytes of its segments."""
        return sum(e.size_bytes for e in self.entries)

    @property
    def index_bytes(self) -> int:
        """What mapping this log reads at most."""
        return sum(e.index_size_bytes for e in self.entries)

    def is_dirty(self, entry: SegmentEntry) -> bool:
        """Whether a segment holds offsets of the dirty range."""
        return entry.next_offset > self.first_dirty and self.end > self.first_dirty

    def needs_index(self, entry: SegmentEntry) -> bool:
        """Whether a clean segment must be read even though no key of the map could be in it."""
        return bool(
            entry.unmarked_tombstone_count or self.purge.of_some(entry) or (self.remove_keyless and entry.keyless_count)
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
    """What the map of one log found, one `SegmentStats` per entry of its job; or why there is none.

    `made` are the answers of its units where the task has done these too, None where nobody has yet.
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

    It holds nothing of the log's other segments: a log of thousands has a unit for each few of them. Without
    `is_marking` tombstones keep the marks that they have: an older record of their key may be left in the log.
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
        """Stored bytes of the segments that it is made from."""
        return sum(s.entry.size_bytes for s in self.sources)

    def mask_keys(self) -> list[MaskKey]:
        """The masks that this unit needs: those of segments that lose a record."""
        return [(self.log, s.position) for s in self.sources if s.kept_count < s.entry.record_count]


@dataclass(frozen=True, slots=True)
class UnitAnswer:
    """The segment that a unit made and uploaded; or why there is none."""

    log: int
    group: int
    entry: SegmentEntry | None = None
    error: str = ""
    traffic: Traffic = Traffic()


Done = Callable[[int], None]
"""Told how many more logs or units are done, while the others are at work; from any thread, but from one at a time."""


class Executor(Protocol):
    """Runs the two steps of a batch. `slots` is how many tasks run at once."""

    @property
    def slots(self) -> int:
        """Tasks that run at the same time."""

    def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:
        """Map every log; answers in any order. A log that fails says so in its answer.

        Of jobs with `at_once` the units may be done too, in the same task.
        """

    def rewrite(self, hands: Sequence[Sequence[UnitJob]], done: Done) -> list[UnitAnswer]:
        """Do all units, one task per hand; answers in any order. A batch may ask several times, for its parts."""

    def forget(self) -> None:
        """The batch is over: its masks are not needed any more."""


def reason(error: BaseException) -> str:
    """An error as the report shows it: keyfold's own speak for themselves, others need their type."""
    return str(error) if isinstance(error, KeyfoldError) else f"{type(error).__name__}: {error}"


Answer = TypeVar("Answer", MapAnswer, UnitAnswer)


def waited(answer: Answer, wait_s: float) -> Answer:
    """The answer with the time that its task waited for the throttle."""
    return replace(answer, traffic=replace(answer.traffic, wait_s=wait_s))
