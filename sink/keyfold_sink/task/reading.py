"""From what the client hands over to the partitions' writers: records, ends of partitions, and errors.

    consume ─► slices by partition ─► columns ─► judge the source ─► judge the records (`intake`) ─► the writer

What is wrong with the records of one partition fails that partition; what the client says about itself ends the task.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import structlog
from confluent_kafka import KafkaError, Message

from keyfold.errors import KeyfoldError, SourceError
from keyfold.log.record import RecordColumns
from keyfold_sink.group.assignment import Assigned, require_same_branch
from keyfold_sink.group.group import Group
from keyfold_sink.kafka.cluster import FORBIDDEN, GONE
from keyfold_sink.kafka.source import GapPolicy, SourceForbidden, TopicForbidden, tombstone_gap, tombstones_at_risk
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.rejects.intake import Intake
from keyfold_sink.writing.batch import Slice, slices, value_bytes
from keyfold_sink.writing.partition import PartitionWriter

# What large records have made of the expectation fades slowly: a batch of small ones in between is no reason to ask for
# thousands, of which again some are large.
_FORGETS: Final = 0.95
_LARGE_BYTES: Final = 4 * 1024 * 1024


class Reading:
    """One task's reading. Used by the main thread alone, and must not wait.

    `mean_record_bytes` is that of the last batch, `expected_record_bytes` what the next one is to be sized by;
    `large_record_bytes` about the largest record of late, if that is of megabytes.
    """

    def __init__(self, group: Group, gap_policy: GapPolicy, intake: Intake, meter: TaskMeter) -> None:
        self.mean_record_bytes = 1000.0
        self.expected_record_bytes = self.mean_record_bytes
        self.large_record_bytes = 0.0
        self._group = group
        self._gap_policy = gap_policy
        self._intake = intake
        self._meter = meter
        self._events = structlog.get_logger("keyfold.sink")

    def take(self, messages: list[Message]) -> None:
        """Hand on one batch. Raises what ends the task."""
        began_s = self._meter.clock.monotonic_s()
        size_bytes = value_bytes(messages)
        records = 0
        self.mean_record_bytes = size_bytes / len(messages) + 64
        self.expected_record_bytes = max(self.mean_record_bytes, self.expected_record_bytes * _FORGETS)
        largest_bytes = max(map(len, messages)) if size_bytes >= _LARGE_BYTES else 0
        fading_bytes = self.large_record_bytes * _FORGETS
        self.large_record_bytes = max(largest_bytes, fading_bytes) if fading_bytes >= _LARGE_BYTES else largest_bytes
        self._group.troubles.moves()
        for piece in slices(messages):
            if not isinstance(piece, Slice):
                self._not_a_record(piece)
                continue
            records += len(piece.records)
            owner = self._group.running(piece.key)
            if owner is None or owner.writer is None:
                continue
            try:
                batch = self._intake.read(piece.records, self.mean_record_bytes)
                if not owner.has_read or owner.resumed is not None:
                    self._first_read(owner, owner.writer, batch.columns)
                self._intake.take(owner, batch)
            except KeyfoldError as error:
                self._group.fail(owner, error)
        if records:
            self._meter.batch(records, size_bytes, began_s)

    def _first_read(self, owner: Assigned, writer: PartitionWriter, batch: RecordColumns) -> None:
        """Judge the source by the records around the log's end, or behind a long pause."""
        first = bisect_left(batch.offsets, owner.log_end)
        proof = bisect_right(batch.offsets, owner.last_offset)  # what the log skipped after it may be of a later epoch
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
        is_fatal = error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - in a message it says so by its code
        of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and not is_fatal
        if of_topic and (partition or 0) >= 0:
            if owner is not None:  # else it is of a partition that is read no more
                self._group.fail(owner, TopicForbidden(f"{topic}: Kafka refuses to hand over records: {error.str()}"))
        elif is_fatal or error.code() in FORBIDDEN:
            raise _forbidden(error)
        elif owner is None or owner.writer is None:
            self._about_the_client(topic, error)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            owner.eof_offset = offset or 0
            self._intake.read_to(owner, offset or 0)
        else:
            self._position_refused(owner, owner.writer, error)

    def _about_the_client(self, topic: str | None, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return  # of a partition that is read no more
        # A topic that does not exist is waited for; whoever has misspelt it must be able to see that.
        say = self._events.warning if error.code() in GONE else self._events.info
        say("kafka reports", error=error.str(), topic=topic)
        if topic is None:
            self._group.on_error(error)
        else:
            self._group.troubles.note(error, topic)
            self._group.doubts_topics |= error.code() in GONE

    def _position_refused(self, owner: Assigned, writer: PartitionWriter, error: KafkaError) -> None:
        """Kafka does not serve the position. Begin again at the log's end; the source check says what it means."""
        if not _is_truncation(error):
            # What was read is committed first: it may be gone from Kafka (the topic was deleted, retention went on).
            self._group.lose_position(owner, error.str())
        # What was read and not committed may be of the lost branch. If nothing was, the log itself is.
        elif owner.has_read:
            self._group.set_back(owner, error.str())
        else:
            self._group.fail(owner, _truncated(owner, writer, error))


def _forbidden(error: KafkaError) -> SourceForbidden:
    fenced = "group.instance.id" in error.str()
    return SourceForbidden(
        f"the Kafka client cannot go on: {error.str()}",
        hint="each pod needs a group.instance.id of its own" if fenced else None,
    )


def _truncated(owner: Assigned, writer: PartitionWriter, error: KafkaError) -> SourceError:
    return SourceError(
        *owner.key,
        f"the topic was truncated below the log's end at {writer.manifest.next_offset}: {error.str()}",
        hint="nothing was written; keep the old log and give the topic another topics.dir",
    )


def _is_truncation(error: KafkaError) -> bool:
    """The client reports it as a refused position, and only the words tell (seen with librdkafka 2.16)."""
    return error.code() == KafkaError._LOG_TRUNCATION or (  # noqa: SLF001
        error.code() == KafkaError._AUTO_OFFSET_RESET and "truncation" in error.str()  # noqa: SLF001
    )
