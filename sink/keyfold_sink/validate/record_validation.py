"""Record validation: pass a partition's valid records to its writer, and skip, reject or keep the others.

    records ─► columns ─► validate ───► the writer                              all records are valid
                            │──► skip:  dead letter, gap, then the others       errors.tolerance=all
                            │──► fail:  the records before, then the error      errors.tolerance=none
                            └──► wait:  keep, in order, until validation is possible

With bytes converters there is no validation, and a batch goes directly to the writer.

A batch waits while the task requests a schema of it, or while Kafka does not accept dead letters. Later batches of the
partition queue behind it. After a moment the client pauses this partition; the others continue. The writer's position
does not pass waiting records. So none of them is committed, and they may be dropped at any time and read again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from keyfold.errors import KeyfoldError
from keyfold.log.manifest import WHOLE_RANGE, Gap
from keyfold.log.record import RecordColumns
from keyfold.runtime.clock import Clock
from keyfold_sink.group.assignment import AssignedPartition, PauseReason
from keyfold_sink.kafka.source import SKIPPED
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.validate.convert.api import Checks, ConnectStage, Rejected, SchemasPending
from keyfold_sink.validate.dead_letter import (
    DeadLetter,
    DeadLetterOrigin,
    InvalidRecord,
    RejectedRecord,
    build_dead_letter,
)
from keyfold_sink.validate.error_counts import ErrorCounts
from keyfold_sink.write.batch import UNREADABLE_HEADERS, UnreadableHeaders, columns, cut, without
from keyfold_sink.write.skips import Delivery

# A registry usually answers within a moment, and a pause discards what the client has already fetched.
_PAUSE_AFTER_S: Final = 0.5
_PAUSE_ABOVE_BYTES: Final = 4 * 1024 * 1024
_AGAIN_S: Final = 1.0
_SAY_EVERY_S: Final = 10.0
_SAID_MAX: Final = 20
_RECORD_OVERHEAD_BYTES: Final = 200

WAITS: Final = (PauseReason.SCHEMAS, PauseReason.LETTERS)
HEADERS_CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
HEADERS_CAUSE: Final = "header name is not UTF-8"


class PartitionPause(Protocol):
    """See `keyfold_sink.group.fetching.PartitionFetching`."""

    def hold(self, owner: AssignedPartition, reason: PauseReason) -> None: ...  # noqa: D102 - the class is documented as a whole
    def release(self, owner: AssignedPartition, reason: PauseReason) -> None: ...  # noqa: D102 - the class is documented as a whole


class DeadLetterSender(Protocol):
    """See `keyfold_sink.validate.dead_letter_topic.DeadLetterTopic`."""

    def has_room(self, size_bytes: int) -> bool: ...  # noqa: D102 - the class is documented as a whole
    def send(self, key: TopicPartitionKey, dead_letters: Sequence[DeadLetter]) -> Delivery: ...  # noqa: D102 - the class is documented as a whole
    def serve(self) -> None: ...  # noqa: D102 - the class is documented as a whole


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """The settings `errors.*`. `dead_letters` is None without a dead letter topic."""

    tolerates: bool = False
    logs: bool = False
    logs_messages: bool = False
    origin: DeadLetterOrigin = field(default_factory=lambda: DeadLetterOrigin("", 0, context=False))
    dead_letters: DeadLetterSender | None = None


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of one partition, and those that the client could not return whole; `end` is the offset after them."""

    columns: RecordColumns
    unreadable: tuple[InvalidRecord, ...]
    end: int
    mean_record_bytes: float

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory."""
        return int(len(self.columns) * (self.mean_record_bytes + _RECORD_OVERHEAD_BYTES))


@dataclass(frozen=True, slots=True)
class _Wait:
    """Why a batch waits: for schemas, or for room to send this number of bytes of dead letters."""

    reason: PauseReason
    needed_bytes: int = 0


@dataclass(slots=True)
class _WaitingRecords:
    """The waiting pieces of a partition in order: batches, and the partition's ends after them."""

    wait: _Wait
    since_s: float
    tried_s: float
    pieces: deque[RecordBatch | int] = field(default_factory=deque)
    size_bytes: int = 0


class RecordValidation:
    """The record validation of one task. Only the main thread uses it; no call blocks."""

    def __init__(
        self,
        policy: ErrorPolicy,
        checks: Checks | None,
        fetching: PartitionPause,
        counts: ErrorCounts,
        clock: Clock,
        is_read: Callable[[AssignedPartition], bool],
        fail: Callable[[AssignedPartition, KeyfoldError], None],
    ) -> None:
        self._policy = policy
        self._checks = checks
        self._fetching = fetching
        self._counts = counts
        self._clock = clock
        self._is_read = is_read
        self._fail = fail
        self._waiting: dict[AssignedPartition, _WaitingRecords] = {}
        self._unsaid: Counter[tuple[TopicPartitionKey, str]] = Counter()
        self._said_s = clock.monotonic_s()
        self._events = structlog.get_logger("keyfold.sink")

    @property
    def waiting_bytes(self) -> int:
        """The size in memory of waiting records."""
        return sum(waiting.size_bytes for waiting in self._waiting.values())

    def build_batch(self, records: Sequence[Message], mean_record_bytes: float) -> RecordBatch:
        """Return the batch of one partition from the client's messages."""
        unreadable: tuple[InvalidRecord, ...] = ()
        try:
            batch = columns(records)
        except UnreadableHeaders as error:
            unreadable = tuple(_unreadable(error.batch, place) for place in error.places)
            batch = without(error.batch, error.places)
        return RecordBatch(batch, unreadable, (records[-1].offset() or 0) + 1, mean_record_bytes)

    def accept_batch(self, owner: AssignedPartition, batch: RecordBatch) -> None:
        """Process a partition's next batch. Raise a `KeyfoldError` that fails the partition."""
        if owner in self._waiting:
            self._keep(owner, batch)
        elif self._checks is None and not batch.unreadable:
            assert owner.writer is not None
            owner.writer.append(batch.columns, batch.mean_record_bytes)
        elif (wait := self._judge(owner, batch)) is not None:
            now_s = self._clock.monotonic_s()
            self._waiting[owner] = _WaitingRecords(wait, now_s, now_s)
            self._keep(owner, batch)

    def read_to(self, owner: AssignedPartition, offset: int) -> None:
        """Process the partition's end, after its waiting records."""
        if owner in self._waiting:
            self._keep(owner, offset)
        elif owner.writer is not None:
            owner.writer.read_to(offset)

    def resume_waiting(self) -> None:
        """Continue with waiting records, as far as possible. Raise errors that end the task."""
        if self._policy.dead_letters is not None:
            self._policy.dead_letters.serve()
        for owner, waiting in list(self._waiting.items()):
            if not self._is_read(owner):
                del self._waiting[owner]  # reset, failed or revoked: the records are read again
                continue
            try:
                self._go_on(owner, waiting)
            except KeyfoldError as error:
                del self._waiting[owner]
                self._fail(owner, error)
        if self._unsaid and self._clock.monotonic_s() - self._said_s >= _SAY_EVERY_S:
            self.log_skipped()

    def log_skipped(self) -> None:
        """Log the records skipped since the last call."""
        largest = self._unsaid.most_common(_SAID_MAX)
        for ((topic, partition), cause), count in largest:
            self._events.warning("records skipped", topic=topic, partition=partition, cause=cause, records=count)
        rest = self._unsaid.total() - sum(count for _, count in largest)
        if rest:
            self._events.warning("more records skipped", records=rest)
        self._unsaid.clear()
        self._said_s = self._clock.monotonic_s()

    # Waiting records

    def _keep(self, owner: AssignedPartition, piece: RecordBatch | int) -> None:
        waiting = self._waiting[owner]
        waiting.pieces.append(piece)
        if isinstance(piece, RecordBatch):
            waiting.size_bytes += piece.size_bytes

    def _go_on(self, owner: AssignedPartition, waiting: _WaitingRecords) -> None:
        if not self._may_go_on(waiting):
            self._pause_if_long(owner, waiting)
            return
        waiting.tried_s = self._clock.monotonic_s()
        while waiting.pieces:
            piece = waiting.pieces[0]
            if isinstance(piece, int):
                assert owner.writer is not None
                owner.writer.read_to(piece)
            else:
                wait = self._judge(owner, piece)
                if wait is not None:
                    waiting.wait = wait
                    return
                waiting.size_bytes -= piece.size_bytes
            waiting.pieces.popleft()
        del self._waiting[owner]
        if not owner.holds.isdisjoint(WAITS):
            owner.health.went_on()
        for reason in WAITS:
            self._fetching.release(owner, reason)

    def _may_go_on(self, waiting: _WaitingRecords) -> bool:
        """Whether to validate again. Requests for other partitions' schemas must not delay this one without end."""
        if waiting.wait.reason is PauseReason.LETTERS:
            return self._policy.dead_letters is None or self._policy.dead_letters.has_room(waiting.wait.needed_bytes)
        is_pending = self._checks is not None and self._checks.pending()
        return not is_pending or self._clock.monotonic_s() - waiting.tried_s >= _AGAIN_S

    def _pause_if_long(self, owner: AssignedPartition, waiting: _WaitingRecords) -> None:
        is_long = (
            self._clock.monotonic_s() - waiting.since_s >= _PAUSE_AFTER_S or waiting.size_bytes > _PAUSE_ABOVE_BYTES
        )
        if is_long and owner.holds.isdisjoint(WAITS):
            topic, partition = owner.key
            why = waiting.wait.reason
            self._events.info("partition paused", topic=topic, partition=partition, why=why.value)
            self._fetching.hold(owner, why)
            owner.health.failed(f"records are waiting for validation: {why.value}")

    # Validation

    def _judge(self, owner: AssignedPartition, batch: RecordBatch) -> _Wait | None:
        """Append the valid records of a batch, and skip or reject the others; or return why the batch must wait."""
        writer = owner.writer
        assert writer is not None
        offsets = batch.columns.offsets
        fresh = cut(batch.columns, bisect_left(offsets, writer.position), len(offsets))
        try:
            failures = self._failures(owner.key, fresh, batch.unreadable, writer.position)
        except SchemasPending:
            return _Wait(PauseReason.SCHEMAS)
        if not failures:
            if len(fresh):
                writer.append(fresh, batch.mean_record_bytes)
            return None
        if not self._policy.tolerates:
            self._reject(owner, fresh, batch, failures[0])
        delivery = None
        if self._policy.dead_letters is not None:
            dead_letters = [build_dead_letter(owner.key, failure, self._policy.origin) for failure in failures]
            needed_bytes = sum(dead_letter.size_bytes for dead_letter in dead_letters)
            if not self._policy.dead_letters.has_room(needed_bytes):
                return _Wait(PauseReason.LETTERS, needed_bytes)
            delivery = self._policy.dead_letters.send(owner.key, dead_letters)
        self._skip(owner, fresh, batch, failures, delivery)
        return None

    def _failures(
        self, key: TopicPartitionKey, fresh: RecordColumns, unreadable: Sequence[InvalidRecord], position: int
    ) -> list[InvalidRecord]:
        """Return the failures in offset order. Raise `SchemasPending` if a schema must be requested first."""
        failures = [failure for failure in unreadable if failure.offset >= position]
        if self._checks is not None and len(fresh):
            failures += [_failure(fresh, rejected) for rejected in self._checks.judge(*key, fresh)]
            failures.sort(key=lambda failure: failure.offset)
        return failures

    def _reject(
        self, owner: AssignedPartition, fresh: RecordColumns, batch: RecordBatch, failure: InvalidRecord
    ) -> NoReturn:
        assert owner.writer is not None
        self._note(owner.key, [failure])
        before = cut(fresh, 0, bisect_left(fresh.offsets, failure.offset))
        if len(before):
            owner.writer.append(before, batch.mean_record_bytes)
        raise RejectedRecord(owner.key, failure)

    def _skip(
        self,
        owner: AssignedPartition,
        fresh: RecordColumns,
        batch: RecordBatch,
        failures: Sequence[InvalidRecord],
        delivery: Delivery | None,
    ) -> None:
        writer = owner.writer
        assert writer is not None
        self._note(owner.key, failures)
        bad = {failure.offset for failure in failures}
        good = without(fresh, [place for place, offset in enumerate(fresh.offsets) if offset in bad])
        writer.skip(gaps(failures, good.offsets), delivery)
        if len(good):
            writer.append(good, batch.mean_record_bytes)
        writer.read_to(batch.end)
        causes = Counter(failure.cause for failure in failures)
        self._counts.skipped(causes)
        for cause, count in causes.items():
            self._unsaid[owner.key, cause] += count

    def _note(self, key: TopicPartitionKey, failures: Sequence[InvalidRecord]) -> None:
        self._counts.rejected(len(failures))
        if not self._policy.logs:
            return
        for failure in failures:
            self._counts.logged()
            said = {"timestamp": failure.timestamp, "error": failure.message} if self._policy.logs_messages else {}
            self._events.error(
                "record failed its check",
                topic=key[0],
                partition=key[1],
                offset=failure.offset,
                stage=failure.stage.value,
                converter=failure.converter,
                cause=failure.cause,
                **said,
            )


def gaps(failures: Sequence[InvalidRecord], kept: Sequence[int]) -> list[Gap]:
    """Return the gaps of skipped records. Those of one cause without a stored record between them are one gap."""
    found: list[Gap] = []
    count = between = -1
    for failure in failures:
        reason = SKIPPED + failure.cause
        at = bisect_left(kept, failure.offset)
        if found and found[-1].reason == reason and at == between:
            count += 1
            begin = found.pop().from_offset
        else:
            count, begin = 1, failure.offset
        between = at
        end = failure.offset + 1
        found.append(Gap(begin, end, reason, WHOLE_RANGE if count == end - begin else count))
    return found


def _failure(batch: RecordColumns, rejected: Rejected) -> InvalidRecord:
    at = rejected.index
    return InvalidRecord(
        batch.offsets[at],
        None if batch.timestamp_types[at] == TIMESTAMP_NOT_AVAILABLE else batch.timestamps[at],
        batch.keys[at],
        batch.values[at],
        batch.headers[at] or (),
        rejected.stage,
        rejected.converter,
        rejected.cause,
        rejected.message,
    )


def _unreadable(batch: RecordColumns, place: int) -> InvalidRecord:
    message = f"the record has {UNREADABLE_HEADERS}"
    return _failure(batch, Rejected(place, ConnectStage.HEADER_CONVERTER, HEADERS_CONVERTER, HEADERS_CAUSE, message))
