"""A stream over a topic, without Spark: where it begins, how far its next batch goes, and which tasks read a batch.

    initial()            where a new stream begins
    latest(start, limit) the end of the next batch; `start` itself where there is nothing new
    plan(start, end)     the tasks of a batch, of the newest version, for exactly these offsets

Each call that looks at a newer version than the one before asks the rules of `keyfold.read.position` first, with the
anchor from the offset document: a stream that was overtaken, or whose tombstones were purged ahead of it, or whose log
was created again, fails and says so. A batch that is planned again after a restart has the same offsets; records of
it that were compacted away since have given way to newer ones, which come in a later batch.

The manifests are read at most once in `poll_interval_ms`; between, the versions that are known serve.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

import structlog

from keyfold.errors import LogNotFound, ObjectNotFound, OffsetOutOfRange
from keyfold.log.manifest import Manifest
from keyfold.read.position import anchor_of
from keyfold.spark.source.admission import Amount, backlog, reach, shares
from keyfold.spark.source.batch import check_named, first_offset
from keyfold.spark.source.offsets import UNKNOWN, PartitionPosition, StreamOffset
from keyfold.spark.source.options import LATEST, SourceOptions
from keyfold.spark.source.plan import Span, SpanSlice, span_of, tasks_of
from keyfold.spark.source.resume import resume
from keyfold.spark.source.topic import SourceTopic

log = structlog.get_logger(__name__)

UNLIMITED: Final = Amount()


class SourceStream:
    """One stream. Used by one thread, in the driver."""

    def __init__(self, topic: SourceTopic, options: SourceOptions) -> None:
        self._topic = topic
        self._options = options
        self._known: dict[int, Manifest] = {}
        self._looked_s: float | None = None
        self._targets: Mapping[int, int] | None = None
        self._missed: set[int] = set()

    @property
    def limit(self) -> Amount:
        """What the options allow a batch to have."""
        return Amount(self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger)

    def initial(self) -> StreamOffset:
        """Where a new stream begins. Raises `ConfigError`, `TopicNotFound`, `OffsetOutOfRange`, `StoreError`."""
        manifests = self._look(fresh=True)
        check_named(self._options, list(manifests))
        found: dict[int, PartitionPosition] = {}
        for partition, manifest in manifests.items():
            if self._options.starting_timestamp is not None:
                pinned, offset = self._topic.at_time(manifest, self._options.starting_timestamp)
            else:
                pinned, fail = manifest, self._options.fail_on_data_loss
                offset = first_offset(manifest, self._options.starting_offsets, LATEST, fail=fail)
            found[partition] = PartitionPosition(offset, offset, anchor_of(pinned))
        return StreamOffset(self._topic.topic, found)

    def prepare_available_now(self) -> None:
        """Fix the current end: this run reads nothing beyond it."""
        self._targets = {partition: manifest.next_offset for partition, manifest in self._look(fresh=True).items()}

    def latest(self, start: StreamOffset, limit: Amount = UNLIMITED) -> StreamOffset:
        """The end of the batch that begins at `start`. Raises what `initial` raises."""
        positions = dict(start.positions)
        ends: dict[int, int] = {}
        for partition, manifest in self._look(start.positions).items():
            target = manifest.next_offset if self._targets is None else self._targets.get(partition)
            if target is None:
                continue  # younger than this run of what is available now
            positions[partition] = here = self._resumed(positions.get(partition), manifest)
            if here.offset < target:
                ends[partition] = target
        self._check_missing(start)
        if not limit.is_unlimited:
            ends = self._admitted(positions, ends, limit)
        found = {
            p: position.at(ends[p], self._known[p].next_offset) if p in ends else position
            for p, position in positions.items()
        }
        return StreamOffset(start.topic, found)

    def newest(self) -> StreamOffset:
        """Return the current end offset of every partition, for readers without a position.

        Its anchors are new ones. That is safe at a log's end, and nowhere else: what was marked is all behind it.
        """
        manifests = self._look()
        found = {p: PartitionPosition(m.next_offset, UNKNOWN, anchor_of(m)) for p, m in manifests.items()}
        return StreamOffset(self._topic.topic, found)

    def report(self, start: StreamOffset | None) -> StreamOffset | None:
        """The end of the logs as last seen, for Spark's progress reports; None before the first look."""
        if not self._known:
            return None
        positions = {} if start is None else start.positions
        found = {p: _end(positions.get(p), m) for p, m in self._known.items()}
        return StreamOffset(self._topic.topic, found)

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[tuple[SpanSlice, ...]]:
        """The tasks of the batch from `start` to `end`. Raises `OffsetOutOfRange`, and what a manifest raises."""
        begins = {p: start.true_start(p, position) for p, position in end.positions.items()}
        moved = [p for p, begin in begins.items() if _moves(start, p, begin, end.positions[p])]
        while True:
            manifests = self._covering(moved, end)
            spans = [self._span(p, start, begins[p], end.positions[p], m) for p, m in manifests.items()]
            spans = [span for span in spans if span.entries]
            try:
                return tasks_of(
                    spans, self._options.max_partition_bytes, self._options.min_partitions, self._topic.table
                )
            except ObjectNotFound as error:  # compacted and collected since its manifest was read
                self._topic.prove_gone(error, moved)
                self._known, self._looked_s = {}, None

    def _span(
        self, partition: int, start: StreamOffset, begin: PartitionPosition, end: PartitionPosition, manifest: Manifest
    ) -> Span:
        known = start.positions.get(partition)
        fail = self._options.fail_on_data_loss
        if known is not None and known.anchor.log_id != end.anchor.log_id and fail:
            resume(known.anchor, known.offset, manifest, fail=True)
        first = manifest.log_start_offset if begin.offset == UNKNOWN else begin.offset
        offset, anchor = resume(begin.anchor, first, manifest, fail=fail)
        if end.offset > manifest.next_offset:
            lost = OffsetOutOfRange(
                manifest.topic,
                partition,
                f"the log ends at offset {manifest.next_offset}, but the stream has a batch up to offset {end.offset}",
                hint="an older manifest was put back; start the stream again with a new checkpoint",
            )
            if fail:
                raise lost
            log.warning("data loss ignored because failOnDataLoss is false", lost=lost.message)
        return span_of(manifest, offset, min(end.offset, manifest.next_offset), anchor)

    def _resumed(self, known: PartitionPosition | None, manifest: Manifest) -> PartitionPosition:
        if known is None:  # a partition that is new since the stream began: all of it
            return PartitionPosition(manifest.log_start_offset, manifest.log_start_offset, anchor_of(manifest))
        offset, anchor = resume(known.anchor, known.offset, manifest, fail=self._options.fail_on_data_loss)
        if anchor == known.anchor:
            return known
        return PartitionPosition(offset, offset, anchor)

    def _admitted(
        self, positions: Mapping[int, PartitionPosition], ends: Mapping[int, int], limit: Amount
    ) -> dict[int, int]:
        known = self._known
        backlogs = {p: backlog(known[p], positions[p].offset, end) for p, end in ends.items()}
        found: dict[int, int] = {}
        for partition, share in shares(limit, backlogs).items():
            begin, end = positions[partition].offset, ends[partition]
            try:
                found[partition] = reach(known[partition], begin, end, share, self._topic.table)
            except ObjectNotFound as error:  # compacted and collected: the next look finds the newer version
                self._topic.prove_gone(error, [partition])
                self._looked_s = None
                found[partition] = begin
        return found

    def _check_missing(self, start: StreamOffset) -> None:
        """A partition that the stream has read and that is not listed any more is a loss like any other."""
        for partition in sorted(set(start.positions) - set(self._known)):
            lost = LogNotFound(
                self._topic.topic, partition, "the log that this stream reads is no longer in the bucket"
            )
            if self._options.fail_on_data_loss:
                raise lost
            if partition not in self._missed:
                log.warning("data loss ignored because failOnDataLoss is false", lost=lost.message)
            self._missed.add(partition)

    def _look(self, known: Container[int] | None = None, *, fresh: bool = False) -> Mapping[int, Manifest]:
        """Return the manifests, not older than the poll interval.

        With `known`, the partitions of a stream that runs, folders that have no log yet are left out.
        """
        now_s = self._topic.clock.monotonic_s()
        old = self._looked_s is None or now_s - self._looked_s >= self._options.poll_interval_ms / 1000
        if fresh or old or not self._known:
            self._known = self._topic.manifests(self._topic.partitions(), known=known)
            self._looked_s = now_s
        return self._known

    def _covering(self, partitions: list[int], end: StreamOffset) -> dict[int, Manifest]:
        """Manifests that reach a batch's end: the known ones, read again where they do not."""
        reach = {p: manifest.next_offset for p, manifest in self._known.items()}
        missing = [p for p in partitions if p not in reach or reach[p] < end.positions[p].offset]
        self._known.update(self._topic.manifests(missing))
        return {p: self._known[p] for p in partitions}


def _moves(start: StreamOffset, partition: int, begin: PartitionPosition, end: PartitionPosition) -> bool:
    """Whether a batch has a partition's offsets, or must at least say that they are lost."""
    known = start.positions.get(partition)
    return begin.offset < end.offset or (known is not None and known.anchor.log_id != end.anchor.log_id)


def _end(known: PartitionPosition | None, manifest: Manifest) -> PartitionPosition:
    if known is None:
        return PartitionPosition(manifest.next_offset, manifest.log_start_offset, anchor_of(manifest))
    return known.at(manifest.next_offset)
