"""Comparison of a log with the Kafka topic that it was written from, in the range that the topic still has.

Both sides are read in offset order and merged. Records on both sides must be equal: key, value, headers, timestamp and
its type, and the leader epoch if both sides know it. Records on one side only need an explanation:

    only in Kafka, below the log's end  a gap of the manifest; or the log has, or had, a newer record of the key; or a
                                        tombstone up to `purged_to`. Never within the range of a single sink segment: a
                                        sink writes every record
    only in the log                     Kafka's own compaction: a newer record of the key, a tombstone that was due, no
                                        key. Never in a topic that is not compacted

The record that decides about a key can be anywhere in the range, so all records go into `verify_hashes`, in bounded
memory. Both sides may change during the comparison: Kafka is read up to its end at the start, and every difference is
looked up again on both sides before it is reported.

With a part of the range, or a sample of it, newer records of Kafka outside of it are unknown; records that cannot be
judged for that reason are counted in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from keyfold.errors import Corrupt, ObjectNotFound
from keyfold.log.index import read_index
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.verify.compare_rules import DifferenceRules, segment_key
from keyfold.verify.findings import Finding, FindingKind, Findings, VerifyReport
from keyfold.verify.key_hashes import COMPARED, IN_LOG, IN_TOPIC, ROWS_AT_ONCE, TOMBSTONE, HashedRows, row_flags

_ROWS_AT_A_TIME: Final = 20_000
_WINDOW_OFFSETS: Final = 10_000


class TopicReader(Protocol):
    """A topic in Kafka. May be used by several threads."""

    def topic_id(self) -> str:
        """Return the topic's id as Kafka prints it; empty if the brokers have none."""

    def partitions(self) -> Sequence[int]:
        """Return the numbers of its partitions."""

    def settings(self) -> Mapping[str, str]:
        """Return the topic's settings, by Kafka's names."""

    def ends(self, partition: int) -> tuple[int, int]:
        """Return the first offset, and the offset after the last committed record."""

    def read(self, partition: int, from_offset: int, to_offset: int) -> Iterator[Record]:
        """Yield the records with `from_offset <= offset < to_offset`, in order; both within `ends`."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a comparison: a range of offsets, and the share `sample` of it (in windows of 10,000 offsets)."""

    from_offset: int = 0
    to_offset: int | None = None
    sample: float = 1.0


ALL: Final = Extent()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The findings of a comparison, and the number of compared records."""

    findings: tuple[Finding, ...]
    compared: int


def compare_partition(
    log: Log,
    partition: int,
    topic: TopicReader,
    *,
    random: Random,
    extent: Extent = ALL,
    progress: Callable[[int], None] = lambda _: None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Comparison:
    """Compare one partition. Returns differences as findings; raises errors of Kafka and of the store.

    `progress` receives the number of records compared since its last call.
    """
    manifest = log.manifest(partition)
    place = log.place(partition)
    stranger = _stranger(place, manifest, topic)
    if stranger is not None:
        return Comparison((stranger,), 0)
    start, end = topic.ends(partition)
    findings = list(_outside(place, manifest, start, end))
    begin = max(start, manifest.log_start_offset, extent.from_offset)
    stop = min(end, manifest.next_offset, manifest.next_offset if extent.to_offset is None else extent.to_offset)
    if begin >= stop:
        what = f"nothing to compare: Kafka has offsets [{start}, {end}), the log has {_range(manifest)}"
        return Comparison((*findings, Finding(FindingKind.NOT_COMPARED, place.manifest_key, what)), 0)
    with HashedRows(manifest.record_count * 2, rows_at_once) as rows:
        windows = _windows(begin, stop, extent.sample, random)
        is_whole = begin == max(start, manifest.log_start_offset) and windows == [(begin, stop)]
        judge = DifferenceRules(log, partition, topic, manifest, stop, is_whole=is_whole)
        walk = _Walk(log, manifest, topic, judge, rows, progress)
        try:
            for at, upto in windows:
                walk.run(at, upto, end if is_whole else upto)
            walk.finish(is_whole=is_whole)
        except (Corrupt, ObjectNotFound) as error:
            what = f"the comparison stopped at damage after {walk.compared} records: {error.message}"
            walk.findings.add(Finding(FindingKind.NOT_COMPARED, place.manifest_key, what))
        found = (*findings, *walk.findings)
    return Comparison(found, walk.compared)


def absent_partitions(log: Log, known: Collection[int], topic: TopicReader) -> Iterator[VerifyReport]:
    """Report partitions that have records in Kafka but no log, which a listing of the bucket cannot show."""
    for number in sorted(set(topic.partitions()) - set(known)):
        start, end = topic.ends(number)
        if start < end and next(topic.read(number, start, end), None) is not None:
            place = log.place(number)
            what = f"Kafka's topic has partition {number} with offsets [{start}, {end}), but it has no log"
            lost = "all records of the partition's log, unless the partition is new and no sink has read it yet"
            to_do = "let the sink write it while Kafka has the records; if it had a folder, find out who deleted it"
            finding = Finding(FindingKind.TOPIC_DIFFERS, place.manifest_key, what, lost, to_do)
            yield VerifyReport(place, -1, 0, 0, (finding,), compared=0)


def _range(manifest: Manifest) -> str:
    return f"[{manifest.log_start_offset}, {manifest.next_offset})"


_LOOK: Final = "find out what happened to the topic; a log cannot continue another topic"


def _stranger(place: Place, manifest: Manifest, topic: TopicReader) -> Finding | None:
    """Return a finding if this is not the topic of the log; None if it is, or if that is unknown."""
    known, theirs = manifest.topic_id, topic.topic_id()
    lost = "unknown: nothing can be compared"
    if known and theirs and known != theirs:
        what = f"the log belongs to topic id {known}, but Kafka's topic has id {theirs}: the topic was recreated"
        return Finding(FindingKind.TOPIC_DIFFERS, place.manifest_key, what, lost, _LOOK)
    if place.partition not in topic.partitions():
        what = f"Kafka's topic has {len(topic.partitions())} partitions and no partition {place.partition}"
        return Finding(FindingKind.TOPIC_DIFFERS, place.manifest_key, what, lost, _LOOK)
    return None


def _outside(place: Place, manifest: Manifest, start: int, end: int) -> Iterator[Finding]:
    """Yield findings about the part of the log that Kafka does not have."""
    if end < manifest.next_offset:
        what = f"Kafka ends at offset {end}, the log at {manifest.next_offset}: the topic was truncated or recreated"
        lost = f"in Kafka, the records from offset {end} on; the log has them"
        yield Finding(FindingKind.TOPIC_DIFFERS, place.manifest_key, what, lost, _LOOK)
    if start > manifest.log_start_offset:
        upto = min(start, manifest.next_offset)
        what = f"offsets [{manifest.log_start_offset}, {upto}) are no longer in Kafka"
        yield Finding(FindingKind.NOT_COMPARED, place.manifest_key, what)


def _windows(begin: int, stop: int, sample: float, random: Random) -> list[tuple[int, int]]:
    """Return a whole range, or windows of it: one at a random place in each stretch."""
    if sample >= 1 or stop - begin <= _WINDOW_OFFSETS:
        return [(begin, stop)]
    stretch = max(_WINDOW_OFFSETS, round(_WINDOW_OFFSETS / sample))
    found: list[tuple[int, int]] = []
    for first in range(begin, stop, stretch):
        size = min(_WINDOW_OFFSETS, stop - first)
        at = first + random.randrange(max(1, min(stretch, stop - first) - size + 1))
        found.append((at, min(at + size, stop)))
    return found


@dataclass
class _Walk:
    """The merge of both sides. Rows go to `rows`, immediate findings to `findings`."""

    log: Log
    manifest: Manifest
    topic: TopicReader
    judge: DifferenceRules
    rows: HashedRows
    progress: Callable[[int], None]
    findings: Findings = field(default_factory=Findings)
    compared: int = 0
    _keys: list[bytes | None] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)
    _flags: list[int] = field(default_factory=list)

    def run(self, begin: int, stop: int, kafka_end: int) -> None:
        """Compare one window. Records from `stop` to `kafka_end` only show which others they supersede."""
        partition = self.manifest.partition
        ours: Iterator[Record] = self._ours(begin, stop, to_the_end=kafka_end > stop)
        theirs = self.topic.read(partition, begin, kafka_end)
        a, b = next(ours, None), next(theirs, None)
        while a is not None or b is not None:
            if b is None or (a is not None and a.offset < b.offset):
                assert a is not None
                self._take(a, IN_LOG)
                a = next(ours, None)
            elif a is None or b.offset < a.offset:
                self._take_theirs(b)
                b = next(theirs, None)
            else:
                if b.offset < stop:
                    self._compare(a, b)
                self._take(a, IN_LOG | IN_TOPIC)
                a, b = next(ours, None), next(theirs, None)

    def _ours(self, begin: int, stop: int, *, to_the_end: bool) -> Iterator[Record]:
        # To the end of the log: a record that a pass removes meanwhile is superseded by a later one.
        return self.log.read(self.manifest.partition, from_offset=begin, to_offset=None if to_the_end else stop)

    def _take_theirs(self, record: Record) -> None:
        finding = self.judge.kafka_alone(record)
        if finding is not None:
            self.findings.add(finding)
        elif not self.judge.is_explained:
            self._take(record, IN_TOPIC)

    def _compare(self, a: Record, b: Record) -> None:
        names = ["key", "value", "headers", "timestamp", "timestamp_type"]
        if a.leader_epoch >= 0 and b.leader_epoch >= 0:
            names.append("leader_epoch")
        wrong = [f"{n} {_short(getattr(a, n))} (Kafka: {_short(getattr(b, n))})" for n in names
                 if getattr(a, n) != getattr(b, n)]  # fmt: skip
        if wrong:
            what = f"the log has {', '.join(wrong)}"
            lost = "the record as Kafka has it"
            to_do = "leave the topic and the bucket unchanged, and report this"
            key = segment_key(self.judge.place, self.manifest, a.offset)
            self.findings.add(Finding(FindingKind.RECORD_DIFFERS, key, what, lost, to_do, offset=a.offset))

    def _take(self, record: Record, flags: int) -> None:
        self._keys.append(record.key)
        self._offsets.append(record.offset)
        flags |= TOMBSTONE if record.is_tombstone else 0
        if record.offset >= self.judge.stop:
            self._flags.append(flags)
        else:
            self._flags.append(flags | COMPARED)
            self.compared += 1
            if record.key is None and flags == IN_LOG:
                finding = self.judge.log_alone_without_key(record)
                if finding is not None:
                    self.findings.add(finding)
        if len(self._keys) >= _ROWS_AT_A_TIME:
            self._flush()

    def _flush(self) -> None:
        keys = pa.array(self._keys, pa.binary())
        self.rows.add(keys, np.array(self._offsets, np.int64), np.array(self._flags, np.uint8))
        self.progress(len(self._keys))
        self._keys, self._offsets, self._flags = [], [], []

    def finish(self, *, is_whole: bool) -> None:
        """Judge the records of only one side by their keys."""
        self._flush()
        if not is_whole:
            self._add_index_rows()
        self.findings.extend(self.judge.by_key(self.rows))
        self.findings.extend(self.judge.notes())

    def _add_index_rows(self) -> None:
        """Add the log's records outside of the windows, because a newer record there supersedes others too."""
        for entry in self.manifest.segments:
            index = read_index(self.log.store, self.judge.place, entry)
            flags = row_flags(index, IN_LOG, with_marks=False)
            self.rows.add(index.rows.column("key"), index.ints("offset").astype(np.int64), flags)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}... ({len(text)} characters)"
