"""Pass records, partition ends and errors from the Kafka client to the partitions' writers.

    consume ─► slices by partition ─► columns ─► check the source ─► validate the records (`validation`) ─► the writer

An error in the records of one partition fails that partition. A fatal error of the client ends the task.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import structlog
from confluent_kafka import KafkaError, Message

from keyfold.errors import KeyfoldError, SourceError
from keyfold.log.record import RecordColumns
from keyfold_sink.config.options import GapPolicy
from keyfold_sink.group.assignment import AssignedPartition, require_same_branch
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.kafka.cluster import FORBIDDEN, GONE
from keyfold_sink.kafka.source import SourceForbidden, TopicForbidden, tombstone_gap, tombstones_at_risk
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.validate.record_validation import RecordValidation
from keyfold_sink.write.batch import MessageSlice, slices, value_bytes
from keyfold_sink.write.partition import PartitionWriter

# The expected record size decreases slowly: after one batch of small records, the next may contain large ones again.
_FORGETS: Final = 0.95
_LARGE_BYTES: Final = 4 * 1024 * 1024


class BatchReader:
    """The reading of one task. Only the main thread uses it; no call blocks.

    `mean_record_bytes` is the mean of the last batch, and `expected_record_bytes` determines the size of the next one.
    `large_record_bytes` is about the size of the largest recent record, if that is megabytes.
    """

    def __init__(
        self, group: ConsumerGroup, gap_policy: GapPolicy, validation: RecordValidation, meter: TaskMeter
    ) -> None:
        self.mean_record_bytes = 1000.0
        self.expected_record_bytes = self.mean_record_bytes
        self.large_record_bytes = 0.0
        self._group = group
        self._gap_policy = gap_policy
        self._validation = validation
        self._meter = meter
        self._events = structlog.get_logger("keyfold.sink")

    def accept_messages(self, messages: list[Message]) -> None:
        """Pass on one batch. Raise errors that end the task."""
        began_s = self._meter.clock.monotonic_s()
        size_bytes = value_bytes(messages)
        records = 0
        self.mean_record_bytes = size_bytes / len(messages) + 64
        self.expected_record_bytes = max(self.mean_record_bytes, self.expected_record_bytes * _FORGETS)
        largest_bytes = max(map(len, messages)) if size_bytes >= _LARGE_BYTES else 0
        fading_bytes = self.large_record_bytes * _FORGETS
        self.large_record_bytes = max(largest_bytes, fading_bytes) if fading_bytes >= _LARGE_BYTES else largest_bytes
        self._group.client_errors.moves()
        for piece in slices(messages):
            if not isinstance(piece, MessageSlice):
                self._not_a_record(piece)
                continue
            records += len(piece.records)
            owner = self._group.running(piece.key)
            if owner is None or owner.writer is None:
                continue
            try:
                batch = self._validation.build_batch(piece.records, self.mean_record_bytes)
                if not owner.has_read or owner.resumed is not None:
                    self._first_read(owner, owner.writer, batch.columns)
                self._validation.accept_batch(owner, batch)
            except KeyfoldError as error:
                self._group.fail(owner, error)
        if records:
            self._meter.batch(records, size_bytes, began_s)

    def _first_read(self, owner: AssignedPartition, writer: PartitionWriter, batch: RecordColumns) -> None:
        """Check the source by the records around the log's end, or after a long pause."""
        first = bisect_left(batch.offsets, owner.log_end)
        # Offsets that the log skipped after the proof may belong to a later epoch.
        proof = bisect_right(batch.offsets, owner.last_offset)
        if proof > 0:
            require_same_branch(owner, batch.offsets[proof - 1], batch.leader_epochs[proof - 1])
        if first == len(batch):
            return
        owner.has_read = True
        at, owner.resumed = owner.resumed, None
        if at is not None and tombstones_at_risk(at, batch.offsets[first], batch.timestamps[first]):
            end_offset = max(owner.end_offset, self._group.fetching.end_offset(owner))
            gap = tombstone_gap(at, batch.offsets[first], end_offset, self._gap_policy)
            self._events.warning("gap recorded", topic=at.topic, partition=at.partition, gap=gap.reason)
            self._meter.count(names.SOURCE_GAPS, "tombstones")
            writer.record_gap(gap)

    def _not_a_record(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        owner = self._group.running((topic, partition)) if topic is not None and partition is not None else None
        is_fatal = error.fatal() or error.code() == KafkaError._FATAL  # in messages only the code shows it
        of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and not is_fatal
        if of_topic and (partition or 0) >= 0:
            if owner is not None:  # None: the partition is no longer read
                self._group.fail(owner, TopicForbidden(f"{topic}: Kafka refuses to return records: {error.str()}"))
        elif is_fatal or error.code() in FORBIDDEN:
            raise _forbidden(error)
        elif owner is None or owner.writer is None:
            self._about_the_client(topic, error)
        elif error.code() == KafkaError._PARTITION_EOF:
            owner.eof_offset = offset or 0
            self._validation.read_to(owner, offset or 0)
        else:
            self._position_refused(owner, owner.writer, error)

    def _about_the_client(self, topic: str | None, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            return  # the partition is no longer read
        # The task waits for a topic that does not exist; the warning shows a misspelt name.
        say = self._events.warning if error.code() in GONE else self._events.info
        say("kafka client error", error=error.str(), topic=topic)
        if topic is None:
            self._group.on_error(error)
        else:
            self._group.client_errors.note(error, topic)
            self._group.doubts_topics |= error.code() in GONE

    def _position_refused(self, owner: AssignedPartition, writer: PartitionWriter, error: KafkaError) -> None:
        """Handle a refused position: start again at the log's end, where the source check finds the cause."""
        if not _is_truncation(error):
            # Records that were read are committed first, as Kafka may have deleted them (topic deletion, retention).
            self._group.lose_position(owner, error.str())
        # Uncommitted records may belong to the lost branch of the topic. If there are none, the log's end does.
        elif owner.has_read:
            self._group.reset(owner, error.str())
        else:
            self._group.fail(owner, _truncated(owner, writer, error))


def _forbidden(error: KafkaError) -> SourceForbidden:
    fenced = "group.instance.id" in error.str()
    return SourceForbidden(
        f"the Kafka client cannot go on: {error.str()}",
        hint="give each pod a group.instance.id of its own" if fenced else None,
    )


def _truncated(owner: AssignedPartition, writer: PartitionWriter, error: KafkaError) -> SourceError:
    return SourceError(
        *owner.key,
        f"the topic was truncated below the log's end at {writer.manifest.next_offset}: {error.str()}",
        hint="no record was written; keep the old log, and set another `topics.dir` for the topic",
    )


def _is_truncation(error: KafkaError) -> bool:
    """Whether the error is a truncation, which the client reports as a refused position (seen with librdkafka 2.16)."""
    return error.code() == KafkaError._LOG_TRUNCATION or (
        error.code() == KafkaError._AUTO_OFFSET_RESET and "truncation" in error.str()
    )
