"""Judgement of records that only one side has; `keyfold.verify.compare` has the rules.

A suspect is looked up again on both sides before it becomes a finding: both sides may have been compacted or expired
records during the comparison.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from keyfold.errors import OffsetOutOfRange
from keyfold.log.gaps import records_in
from keyfold.log.manifest import WHOLE_RANGE, Gap, Manifest
from keyfold.log.names import Place, Role, parse_name
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.verify.findings import REPORT, Finding, FindingKind
from keyfold.verify.key_hashes import COMPARED, IN_LOG, IN_TOPIC, TOMBSTONE, Grouped, HashedRows
from keyfold.verify.key_rules import Suspect, Suspects

Bools = npt.NDArray[np.bool_]
_PROVED_AT_MOST: Final = 20
_KEYLESS: Final = "records without a key are only in Kafka: keyless.records=remove may have removed them"
_BELOW_PURGED: Final = "records below purged_to are only in Kafka: their tombstones may be outside of the sample"
_TO_DO: Final = "Kafka still has it: prevent the topic from deleting it, and report this"


class _Topic(Protocol):
    def settings(self) -> Mapping[str, str]:
        """The topic's settings."""

    def ends(self, partition: int) -> tuple[int, int]:
        """First offset, and the offset after the last."""

    def read(self, partition: int, from_offset: int, to_offset: int) -> Iterator[Record]:
        """Records of a range."""


def segment_key(place: Place, manifest: Manifest, offset: int) -> str:
    """The segment whose range holds an offset; the manifest if none does."""
    at = bisect_right(manifest.segments, offset, key=lambda s: s.base_offset) - 1
    return place.key(manifest.segments[at].name) if at >= 0 else place.manifest_key


class DifferenceRules:
    """The judge of one partition's comparison, below the offset `stop`."""

    def __init__(
        self, log: Log, partition: int, topic: _Topic, manifest: Manifest, stop: int, *, is_whole: bool
    ) -> None:
        self.place = log.place(partition)
        self.stop = stop
        self.is_explained = False
        self._log = log
        self._partition = partition
        self._topic = topic
        self._manifest = manifest
        self._is_whole = is_whole
        policies = {topic.settings().get("cleanup.policy", "delete"), manifest.settings.get("cleanup.policy", "delete")}
        self._is_compacted = any("compact" in policy for policy in policies)
        self._gaps = sorted(manifest.gaps, key=lambda g: g.from_offset)
        self._taken: Counter[Gap] = Counter()
        self._spans = list(_sink_spans(manifest))
        self._unjudged: Counter[str] = Counter()

    # At once

    def kafka_alone(self, record: Record) -> Finding | None:
        """Judge a record that only Kafka has. If the result is None and not `is_explained`, its key decides later."""
        self.is_explained = record.offset < self.stop and self._is_gap(record.offset)
        if self.is_explained or record.offset >= self.stop:
            return None
        if self._is_in_sink_span(record.offset):
            self.is_explained = True
            return self._lost(record.offset, "a sink wrote the records before and after it")
        if record.key is None:
            self.is_explained = True
            self._unjudged[_KEYLESS] += 1
        return None

    def log_alone_without_key(self, record: Record) -> Finding | None:
        """Judge a record without a key that only the log has: Kafka's cleaner removes such records."""
        return None if self._is_compacted else self._unexpected(record.offset)

    def _is_gap(self, offset: int) -> bool:
        for gap in self._gaps:
            if gap.from_offset > offset:
                return False
            if offset < gap.to_offset and (gap.record_count == WHOLE_RANGE or self._taken[gap] < records_in(gap)):
                self._taken[gap] += 1
                return True
        return False

    def _is_in_sink_span(self, offset: int) -> bool:
        at = bisect_right(self._spans, offset, key=lambda span: span[0]) - 1
        return at >= 0 and offset <= self._spans[at][1]

    # By key

    def by_key(self, rows: HashedRows) -> Iterator[Finding]:
        """Yield findings about records that are judged by key."""
        lost, outlived, unexpected, resurrected = Suspects(), Suspects(), Suspects(), Suspects()
        for group in rows.groups():
            self._find_lost(group, lost, outlived)
            if not self._is_compacted:
                self._find(group, self._only(group, IN_LOG), unexpected)
            elif self._is_whole:
                last = ~group.followed() & (group.flags & TOMBSTONE == 0)
                self._find(group, self._only(group, IN_LOG) & last, resurrected)
        yield from self._proved(lost, lambda s: self._lost(s.offset, "the log has no newer record of this key"))
        yield from self._proved(outlived, self._outlived)
        yield from self._proved(unexpected, lambda s: self._unexpected(s.offset))
        yield from self._proved(resurrected, lambda s: self._resurrected(s.offset))

    def _only(self, group: Grouped, side: int) -> Bools:
        found: Bools = group.flags & (IN_LOG | IN_TOPIC | COMPARED) == side | COMPARED
        return found

    def _find_lost(self, group: Grouped, suspects: Suspects, outlived: Suspects) -> None:
        """Find records that only Kafka has, and that no record known to the log supersedes.

        A tombstone may have been purged, but never while the log had a value that it deletes.
        """
        known = group.flags & (IN_LOG | COMPARED) != 0
        is_last = np.zeros(len(known), np.bool_)
        where = np.flatnonzero(known)
        is_last[where] = np.append(group.hash[where][1:] != group.hash[where][:-1], True)
        found = is_last & self._only(group, IN_TOPIC)
        purged = group.offset <= self._manifest.purged_to
        may_be_purged = found & purged & (group.flags & TOMBSTONE != 0)
        older = group.value_before()
        still = may_be_purged & (older >= 0)
        outlived.add(group.offset[older[still]], group.offset[still], group.flags[still])
        found &= ~may_be_purged
        if not self._is_whole:
            unsure = found & purged
            self._unjudged[_BELOW_PURGED] += int(unsure.sum())
            found &= ~unsure
        self._find(group, found, suspects)

    @staticmethod
    def _find(group: Grouped, found: Bools, suspects: Suspects) -> None:
        suspects.add(group.offset[found], np.full(int(found.sum()), -1), group.flags[found])

    def _proved(self, suspects: Suspects, tell: Callable[[Suspect], Finding | None]) -> Iterator[Finding]:
        found = [finding for s in suspects.first(_PROVED_AT_MOST) if (finding := tell(s)) is not None]
        yield from found
        more = suspects.count - min(len(suspects.some), _PROVED_AT_MOST)
        if more and found:
            first = found[0]
            yield Finding(first.kind, self.place.manifest_key, f"{more} more like this", first.lost, first.to_do)

    def notes(self) -> Iterator[Finding]:
        """Yield notes about records that were not judged."""
        for why, count in self._unjudged.items():
            if count:
                yield Finding(FindingKind.NOT_COMPARED, self.place.manifest_key, f"{count} {why}")

    # Looked up again

    def _lost(self, offset: int, why: str) -> Finding | None:
        theirs = self._in_topic(offset)
        if theirs is None or self._in_log(offset) is not None:
            return None
        key = segment_key(self.place, self._manifest, offset)
        what = f"Kafka has a record of key {theirs.key!r} at this offset, the log has none, and {why}"
        if theirs.is_tombstone:
            lost = f"the tombstone of key {theirs.key!r}: the deleted value is visible again"
            return Finding(FindingKind.TOMBSTONE_LOST, key, what, lost, _TO_DO, offset=offset)
        lost = f"the record of key {theirs.key!r}"
        return Finding(FindingKind.RECORD_LOST, key, what, lost, _TO_DO, offset=offset)

    def _outlived(self, suspect: Suspect) -> Finding | None:
        ours, theirs = self._in_log(suspect.offset), self._in_topic(suspect.newer)
        if ours is None or theirs is None or ours.key != theirs.key:
            return None
        return self._lost(suspect.newer, f"the log still has the value that it deletes, at offset {suspect.offset}")

    def _unexpected(self, offset: int) -> Finding | None:
        ours = self._in_log(offset)
        if ours is None or self._in_topic(offset) is not None or offset < self._topic.ends(self._partition)[0]:
            return None
        what = (
            f"the log has a record of key {ours.key!r} at this offset, Kafka has none, and the topic is not compacted"
        )
        key = segment_key(self.place, self._manifest, offset)
        return Finding(FindingKind.RECORD_UNEXPECTED, key, what, to_do=REPORT, offset=offset)

    def _resurrected(self, offset: int) -> Finding | None:
        ours = self._in_log(offset)
        if ours is None or self._in_topic(offset) is not None or offset < self._topic.ends(self._partition)[0]:
            return None
        what = (
            f"this is the latest record of key {ours.key!r} in the log, but Kafka has no record of this key any more: "
            "a tombstone deleted it in Kafka, and the log never received the tombstone or lost it"
        )
        lost = f"the tombstone of key {ours.key!r}: the deleted key is visible again"
        to_do = "write a tombstone for this key to the topic; check `gaps` for a sink that lagged too far behind"
        return Finding(FindingKind.KEY_RESURRECTED, segment_key(self.place, self._manifest, offset), what, lost, to_do,
                       offset=offset)  # fmt: skip

    def _in_topic(self, offset: int) -> Record | None:
        start, end = self._topic.ends(self._partition)
        return next(self._topic.read(self._partition, offset, offset + 1), None) if start <= offset < end else None

    def _in_log(self, offset: int) -> Record | None:
        try:
            return next(self._log.read(self._partition, from_offset=offset, to_offset=offset + 1), None)
        except OffsetOutOfRange:
            return None  # retention removed it meanwhile


def _sink_spans(manifest: Manifest) -> Iterator[tuple[int, int]]:
    """Yield the first and last offset that each sink segment was written from, in order."""
    for entry in manifest.segments:
        name = parse_name(entry.name)
        if name is not None and name.role is Role.SINK:
            yield max(name.base_offset, entry.base_offset), entry.last_offset
