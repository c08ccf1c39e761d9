"""What one read is about: a manifest version for each partition, and the part of it that is wanted.

All of it is decided in the driver, from manifests alone, before Spark sees a path. A pin never changes afterwards, so
a DataFrame is one moment of the log however often it is computed and whatever is appended or compacted meanwhile.

    offsets       [start, end) of each partition; segments outside are not opened
    timestamps    [from, to) in ms; segments whose times cannot match are not opened. A record without a timestamp
                  matches no time at all
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from keyfold.errors import ConfigError, OffsetOutOfRange
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.read.log import Log
from keyfold.read.position import segments_between, start_offset

Offsets = int | Mapping[int, int] | None
"""One offset for all partitions, or one for each that is named, or none."""

When = int | datetime | None
"""Milliseconds since the epoch, or an aware datetime."""

LOADS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Times:
    """Record timestamps that are wanted, in ms: from `from_ms` up to and without `to_ms`; None: no bound."""

    from_ms: int | None = None
    to_ms: int | None = None

    @staticmethod
    def of(from_timestamp: When, to_timestamp: When) -> Times:
        """Bounds as a user gives them. Raises `ConfigError` for a datetime without a time zone."""
        return Times(_ms("from_timestamp", from_timestamp), _ms("to_timestamp", to_timestamp))

    @property
    def are_all(self) -> bool:
        """Whether any time will do, none included."""
        return self.from_ms is None and self.to_ms is None

    @property
    def first_ms(self) -> int:
        """The lower bound: never below 0, which -1 (no timestamp) is."""
        return max(self.from_ms or 0, 0)

    def may_match(self, entry: SegmentEntry) -> bool:
        """Whether a record of this segment can be within the bounds."""
        if self.are_all:
            return True
        return entry.max_timestamp >= self.first_ms and (self.to_ms is None or entry.min_timestamp < self.to_ms)


ANY_TIME: Final = Times()


def _ms(name: str, when: When) -> int | None:
    if not isinstance(when, datetime):
        return when
    if when.tzinfo is None:
        raise ConfigError(name, f"{when} has no time zone", hint="use a datetime with a time zone, or milliseconds")
    # Whole numbers: a float of seconds is off by a millisecond now and then.
    since = when - datetime.fromtimestamp(0, when.tzinfo)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One version of one partition's log, and the offsets `[start, end)` of it that are wanted."""

    place: Place
    manifest: Manifest
    start: int
    end: int
    times: Times = ANY_TIME

    @property
    def entries(self) -> tuple[SegmentEntry, ...]:
        """Segments that can have a wanted record, in order."""
        if self.start >= self.end:
            return ()
        between = segments_between(self.manifest, self.start, self.end)
        return tuple(entry for entry in between if self.times.may_match(entry))

    @property
    def is_cut(self) -> bool:
        """Whether a segment that is opened can have records outside `[start, end)`."""
        entries = self.entries
        return bool(entries) and (self.start > entries[0].base_offset or self.end <= entries[-1].last_offset)

    @property
    def record_count(self) -> int:
        """Records in the segments that are opened: at least as many as are wanted."""
        return sum(entry.record_count for entry in self.entries)

    def cut(self, start: int, end: int) -> PartitionSnapshot:
        """The same version between other offsets."""
        return replace(self, start=start, end=end)


def pin_log(
    log: Log,
    partitions: Iterable[int] | None = None,
    *,
    from_offset: Offsets = None,
    to_offset: Offsets = None,
    times: Times = ANY_TIME,
) -> tuple[PartitionSnapshot, ...]:
    """Read the newest manifest of each partition (None: of all that there are), in partition order.

    Raises `TopicNotFound`, `LogNotFound`, `OffsetOutOfRange`, `ConfigError`, and what `Log.manifest` raises.
    """
    wanted = tuple(log.partitions()) if partitions is None else tuple(sorted(set(partitions)))
    if not wanted:
        raise ConfigError("partitions", "is empty: name at least one partition, or omit it for all")
    for name, offsets in (("from_offset", from_offset), ("to_offset", to_offset)):
        strangers = sorted(set(offsets) - set(wanted)) if isinstance(offsets, Mapping) else []
        if strangers:
            raise ConfigError(
                name, f"names partitions {strangers}, which are not read; the partitions are {list(wanted)}"
            )
    with ThreadPoolExecutor(min(LOADS_AT_ONCE, len(wanted))) as pool:
        manifests = list(pool.map(log.manifest, wanted))
    return tuple(
        _pin(log.place(partition), manifest, from_offset, to_offset, times)
        for partition, manifest in zip(wanted, manifests, strict=True)
    )


def _pin(place: Place, manifest: Manifest, from_offset: Offsets, to_offset: Offsets, times: Times) -> PartitionSnapshot:
    end = manifest.next_offset
    upto = to_offset.get(place.partition) if isinstance(to_offset, Mapping) else to_offset
    if upto is not None:
        end = min(end, upto)
    if isinstance(from_offset, Mapping):
        start = start_offset(manifest, from_offset.get(place.partition))
    elif from_offset is None:
        start = manifest.log_start_offset
    elif from_offset < manifest.log_start_offset:
        raise _before_start(manifest, from_offset)
    else:
        start = from_offset  # one number for all: a partition that ends before it has nothing to give
    return PartitionSnapshot(place, manifest, start, end, times)


def _before_start(manifest: Manifest, from_offset: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        manifest.topic,
        manifest.partition,
        f"offset {from_offset} is below the log start {manifest.log_start_offset} of version {manifest.version}",
        hint="omit from_offset to read from the log start, or set an offset for each partition",
    )


def head_and_tail(
    pins: Sequence[PartitionSnapshot],
) -> tuple[tuple[PartitionSnapshot, ...], tuple[PartitionSnapshot, ...]]:
    """The dirty head and the clean tail of each partition, those without segments left out.

    In the tail, below `first_dirty_offset`, a key occurs once; the head holds what was appended since.
    """
    heads = (pin.cut(max(pin.start, pin.manifest.first_dirty_offset), pin.end) for pin in pins)
    tails = (pin.cut(pin.start, min(pin.end, pin.manifest.first_dirty_offset)) for pin in pins)
    return tuple(pin for pin in heads if pin.entries), tuple(pin for pin in tails if pin.entries)
