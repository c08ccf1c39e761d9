"""The writer of one claimed partition: records in, committed segments out.

    append ──► SegmentWriter ──(part full)──► serial queue: upload a part
                    │
                   roll ────────────────────► serial queue: upload the rest and the index, check the topic, commit

The main thread appends and rolls; every operation that waits runs on the serial queue. `position` is the offset up to
which the partition was read, gaps included. A segment's range ends at the position at which it was rolled. So ranges
are contiguous, whatever control records or compacted offsets lie between.

Commits are reported through `report`, as values in order (see `Committed`), and errors through the serial queue.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from keyfold.errors import CommitUnknown
from keyfold.log.manifest import Gap, Manifest
from keyfold.log.objects import PART_BYTES
from keyfold.log.partition_log import SinkSession
from keyfold.log.record import RecordColumns
from keyfold.log.segment import DEFAULT_BLOCK_BYTES, SegmentWriter
from keyfold.runtime.clock import Clock, SystemClock
from keyfold.store.api import ObjectStore
from keyfold_sink.config.rolling import RollPolicy, RollReason, SegmentFill
from keyfold_sink.kafka.source import SourceForbidden, TopicGone, TopicSource, check_identity
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.status import UNKNOWN
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.write.batch import cut
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.segment_upload import SegmentUpload
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue
from keyfold_sink.write.skips import Delivery, Skips

# The overhead of an open segment beside the bytes that its writer counts: objects, a name, an upload.
_OPEN_OVERHEAD_BYTES: Final = 4096
# Records are appended in pieces of about this size: their copies then stay in the processor's cache, and in memory that
# the process has already. A whole batch of 10 MB, copied at once, cost a third more CPU (measured at 1 KB a record).
_APPEND_BYTES: Final = 4 * 1024 * 1024
# How often a missing topic is looked up again, half a second apart: before a commit, and while idle.
_ATTEMPTS: Final = 3
_IDLE_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that succeeded: the log now ends at `next_offset`."""

    key: TopicPartitionKey
    next_offset: int
    record_count: int
    size_bytes: int
    reason: RollReason


@dataclass(slots=True)
class _Open:
    """The segment that is being filled."""

    writer: SegmentWriter
    upload: SegmentUpload
    opened_s: float
    base_offset: int
    first_timestamp_ms: int
    blocks: list[bytes] = field(default_factory=list)
    blocks_bytes: int = 0
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class WriterResources:
    """The objects that all partitions of a task share."""

    store: ObjectStore
    source: TopicSource
    clock: Clock
    in_flight: InFlight
    report: Callable[[Committed], None]
    codec: str = "zstandard"
    meter: TaskMeter = field(default_factory=lambda: TaskMeter(SystemClock()))
    block_bytes: Callable[[], int] = lambda: DEFAULT_BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class _Undurable:
    """A segment in flight: its first record's timestamp, and the monotonic second at which that record was read."""

    next_offset: int
    first_timestamp_ms: int
    opened_s: float
    record_count: int


class PartitionWriter:
    """The writer of one partition under one claimed epoch."""

    def __init__(
        self,
        session: SinkSession,
        queue: SerialQueue,
        retry: QueueRetry,
        policy: RollPolicy,
        resources: WriterResources,
    ) -> None:
        self.key: TopicPartitionKey = (session.place.topic, session.place.partition)
        self.position = session.manifest.next_offset
        self._session = session
        self._queue = queue
        self._retry = retry
        self._policy = policy
        self._resources = resources
        self._open: _Open | None = None
        self._base_offset = self.position
        self._skips = Skips()
        self._held_bytes = 0
        self._in_flight = InFlight(resources.in_flight)
        self._hole_since_s: float | None = None
        self._undurable: deque[_Undurable] = deque()

    @property
    def held_bytes(self) -> int:
        """Memory of the open segment."""
        return self._held_bytes

    @property
    def sent_bytes(self) -> int:
        """Memory of this partition's segments in flight to the store."""
        return self._in_flight.size_bytes

    @property
    def manifest(self) -> Manifest:
        """The newest manifest that this writer's session has read."""
        return self._session.manifest

    @property
    def unsent_records(self) -> int:
        """Number of records in the open segment."""
        return self._open.writer.record_count if self._open else 0

    @property
    def oldest_record_ms(self) -> int:
        """Timestamp of the first record that was read and is not durable yet; `UNKNOWN` if there is none."""
        if self._undurable:
            return self._undurable[0].first_timestamp_ms
        return self._open.first_timestamp_ms if self._open else UNKNOWN

    @property
    def unsent_since_s(self) -> float | None:
        """Monotonic second at which that first record was read."""
        if self._undurable:
            return self._undurable[0].opened_s
        return self._open.opened_s if self._open else None

    @property
    def buffered_records(self) -> int:
        """Number of records that were read and are not durable yet."""
        return self.unsent_records + sum(flight.record_count for flight in self._undurable)

    @property
    def roll_due_s(self) -> float | None:
        """Monotonic second at which the open segment has its `segment.ms`; None without an open segment."""
        return self._open.opened_s + self._policy.segment_ms / 1000 if self._open else None

    @property
    def is_rolled(self) -> bool:
        """Whether all records before `position` are in flight or committed."""
        return self._base_offset == self.position

    def append(self, batch: RecordColumns, mean_record_bytes: float) -> None:
        """Append records, without those below `position`. Roll whenever a limit is reached."""
        begin = 0 if batch.offsets[0] >= self.position else bisect_left(batch.offsets, self.position)
        if begin < len(batch):
            self._resources.meter.sent(len(batch) - begin)
        while begin < len(batch):
            opened = self._open or self._begin(batch.timestamps[begin])
            until_check = self._policy.records_until_check(opened.writer.record_count, mean_record_bytes)
            piece = 1 + int(_APPEND_BYTES / max(mean_record_bytes, 1.0))
            end = begin + min(until_check, piece)
            part = cut(batch, begin, end)
            opened.writer.append(part)
            opened.leader_epoch = part.leader_epochs[-1]
            self.position = part.offsets[-1] + 1
            self._skips.pass_to(self.position)
            begin += len(part)
            self._drain(opened)
            self.roll_if_due()

    def read_to(self, offset: int) -> None:
        """Move the position to `offset`, before which Kafka has no more records."""
        if offset > self.position:
            self.position = offset
            self._skips.pass_to(offset)
            self._await_commit()

    def record_gap(self, gap: Gap) -> None:
        """Record a gap in the commit that passes it."""
        self._skips.add((gap,))
        self._await_commit()

    def skip(self, gaps: Sequence[Gap], delivery: Delivery | None) -> None:
        """Record skipped offsets ahead of the position, and their dead letters, which the commit waits for."""
        self._skips.add(gaps, delivery)

    def _await_commit(self) -> None:
        if self._hole_since_s is None:
            self._hole_since_s = self._resources.clock.monotonic_s()

    def roll_if_due(self) -> None:
        """Finish the segment if one of its limits is reached; `segment.ms` also applies to a gap without records."""
        opened = self._open
        if opened is None:
            since_s = self._hole_since_s
            if since_s is not None and self._policy.is_late(since_s, self._resources.clock.monotonic_s()):
                self.roll(RollReason.TIME)
            return
        fill = SegmentFill(opened.writer.record_count, opened.writer.size_bytes, opened.opened_s)
        reason = self._policy.due(fill, self._resources.clock.monotonic_s())
        if reason is not None:
            self.roll(reason)

    def roll(self, reason: RollReason) -> None:
        """Finish the open segment and upload it. Without one, move the log's end over a gap."""
        opened, self._open = self._open, None
        base_offset, self._base_offset = self._base_offset, self.position
        gaps, deliveries = self._skips.take_until(self.position)
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._hole_since_s = None
        if opened is None and base_offset == self.position and not gaps:
            return
        position = self.position
        if opened is not None:
            flight = _Undurable(position, opened.first_timestamp_ms, opened.opened_s, opened.writer.record_count)
            self._undurable.append(flight)
        records = 0 if opened is None else opened.writer.record_count
        rolled_s = self._resources.meter.rolled(reason, records)
        self._in_flight.add(held_bytes)

        def at_end() -> None:
            self._in_flight.add(-held_bytes)
            self._resources.meter.in_flight(-records)

        self._queue.submit(
            lambda: self._commit(opened, base_offset, position, gaps, deliveries, reason, rolled_s), at_end
        )

    def note_durable(self, next_offset: int) -> None:
        """Record a commit that succeeded."""
        while self._undurable and self._undurable[0].next_offset <= next_offset:
            self._undurable.popleft()

    def abandon(self) -> None:
        """Drop the records that were read and are not in flight."""
        self._open, self._held_bytes, self._skips, self._hole_since_s = None, 0, Skips(), None
        self._undurable.clear()

    def follow(self) -> None:
        """Check that the topic exists, and write its settings into the manifest if they have changed."""
        self._queue.submit(lambda: self._retry.repeat(self._follow))

    def _begin(self, first_timestamp_ms: int) -> _Open:
        session = self._session
        name = session.new_name(self._base_offset)
        self._open = _Open(
            SegmentWriter(
                sync_marker=session.manifest.sync_marker,
                codec=self._resources.codec,
                block_bytes=self._resources.block_bytes(),
            ),
            SegmentUpload(self._resources.store, session.place, name, self._retry),
            self._resources.clock.monotonic_s(),
            self._base_offset,
            first_timestamp_ms,
        )
        return self._open

    def _drain(self, opened: _Open) -> None:
        """Upload finished blocks once they make a part."""
        if opened.writer.memory_bytes + opened.blocks_bytes > PART_BYTES:
            fresh = opened.writer.drain()
            opened.blocks += fresh
            opened.blocks_bytes += sum(map(len, fresh))
        if opened.blocks_bytes >= PART_BYTES:
            blocks, size_bytes = opened.blocks, opened.blocks_bytes
            opened.blocks, opened.blocks_bytes = [], 0
            self._in_flight.add(size_bytes)
            upload = opened.upload
            self._queue.submit(lambda: upload.send_part(blocks), at_end=lambda: self._in_flight.add(-size_bytes))
        self._held_bytes = opened.writer.memory_bytes + opened.blocks_bytes + _OPEN_OVERHEAD_BYTES

    # On the serial queue

    def _commit(
        self,
        opened: _Open | None,
        base_offset: int,
        next_offset: int,
        gaps: tuple[Gap, ...],
        deliveries: tuple[Delivery, ...],
        reason: RollReason,
        rolled_s: float,
    ) -> None:
        record_count = size_bytes = 0
        entry = None
        if opened is None:
            self._await(deliveries)
            gone = self._check_topic()
            self._retry.repeat(lambda: self._advance(base_offset, next_offset, gaps))
        else:
            entry = opened.upload.finish(opened.writer, opened.blocks, base_offset=base_offset, next_offset=next_offset)
            record_count, size_bytes = entry.record_count, entry.size_bytes
            self._await(deliveries)
            gone = self._check_topic()
            settings = self._settings()
            self._retry.repeat(
                lambda: self._session.append(entry, leader_epoch=opened.leader_epoch, gaps=gaps, settings=settings)
            )
        self._resources.meter.committed(entry, rolled_s)
        self._resources.report(Committed(self.key, next_offset, record_count, size_bytes, reason))
        if gone is not None:
            # Not raised: the jobs behind this one, and the open segment, have records of the same topic.
            self._queue.report_error(gone)

    def _await(self, deliveries: Sequence[Delivery]) -> None:
        """Wait for dead letters: no commit passes a skipped record's offset before its dead letter has arrived."""
        for delivery in deliveries:
            self._retry.repeat(delivery.wait)

    def _advance(self, base_offset: int, next_offset: int, gaps: tuple[Gap, ...]) -> None:
        try:
            self._session.advance(next_offset, gaps=gaps)
        except CommitUnknown:
            # The commit may have taken effect, and the same call would then begin at the wrong offset.
            if self._retry.repeat(self._session.refresh).next_offset == base_offset:
                raise

    def _check_topic(self, attempts: int = _ATTEMPTS) -> TopicGone | None:
        """Raise if the topic was replaced. If it is gone, return the error: records read from it may be committed."""
        topic = self.key[0]
        try:
            topic_id = self._retry.repeat_after(TopicGone, lambda: self._resources.source.topic_id(topic), attempts)
        except TopicGone as error:
            return error
        check_identity(self._session.manifest, topic_id=topic_id, cluster_id="")
        return None

    def _settings(self) -> Mapping[str, str] | None:
        """Return the topic's settings, or those in the manifest if Kafka does not return them."""
        try:
            return self._retry.repeat(lambda: self._resources.source.settings(self.key[0])) or None
        except TopicGone:
            return None

    def _follow(self) -> None:
        with contextlib.suppress(SourceForbidden):  # a later commit reports it too, if it lasts
            gone = self._check_topic(_IDLE_ATTEMPTS)
            if gone is not None:
                self._queue.report_error(gone)
                return
        settings = self._settings()
        if settings is not None:
            self._session.follow(settings)
