"""The partitions that the consumer group assigns to a task, and the client's callbacks.

The callbacks only record what happened. A partition is assigned to the client for fetching once it is claimed, while
the others continue (cooperative rebalancing). `advance_partitions` brings each partition to its next stage.

A group offset is committed for two reasons: to prove that this process is a member of the current generation
(`keyfold_sink.group.membership`), and after each manifest commit, so that Kafka's tools show the lag. It is never read.

An error of one partition ends the work on that partition only. The partition stays assigned and is not read, until the
task is restarted or the group assigns the partition to another task (`keyfold_sink.group.error_scope`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from queue import Empty, SimpleQueue
from random import Random
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from keyfold.errors import Fenced, KeyfoldError
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import Clock
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.group.assignment import (
    AssignedPartition,
    Claimed,
    Claims,
    Loaded,
    PartitionStage,
    PartitionStopped,
    reset_delay_s,
)
from keyfold_sink.group.client_errors import ClientErrors
from keyfold_sink.group.error_scope import ErrorScope, PositionLost, reset_cause, scope_of
from keyfold_sink.group.fetching import PartitionFetching
from keyfold_sink.group.membership import Membership
from keyfold_sink.kafka.client import GroupConsumer
from keyfold_sink.kafka.cluster import GONE
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.write.partition import Committed, PartitionWriter
from keyfold_sink.write.partition_health import PartitionHealth
from keyfold_sink.write.serial_queue import LOOK_AGAIN_S, QueueRetry, SerialQueue

Event = Loaded | Claimed | PartitionStopped | Committed

# A process that resumes after a suspension fences the owner once. A task that is fenced this often without a commit in
# between has a rival that is also a member of its group: another sink writes the same log.
_FENCES_MAX: Final = 10

# Commits without an answer must not take ever more memory.
_AWAITED_MAX: Final = 64
_Sent = tuple[str, int, int, str | None]


class ConsumerGroup:
    """The partitions of this task. Only the main thread uses it; serial queues report to it through `inbox`.

    `doubts_topics`: the client has reported that a topic or partition does not exist, which the cluster has not
    confirmed yet.
    """

    def __init__(
        self,
        *,
        claims: Claims,
        inbox: SimpleQueue[Event],
        executor: Executor,
        clock: Clock,
        random: Random,
        open_log: Callable[[TopicPartitionKey], PartitionLog],
        open_writer: Callable[[AssignedPartition, Claimed], PartitionWriter],
        before_revoke: Callable[[Sequence[AssignedPartition]], None],
        on_committed: Callable[[Committed], None],
        one_failed_ends_all: bool,
        meter: TaskMeter | None = None,
        look_again_s: float = LOOK_AGAIN_S,
    ) -> None:
        self.assigned: dict[TopicPartitionKey, AssignedPartition] = {}
        self.log_ends: dict[TopicPartitionKey, int] = {}
        self.fetching = PartitionFetching(self.assigned, clock)
        self.is_member = False
        self.client_errors = ClientErrors(clock)
        self.doubts_topics = False
        self._claims = claims
        self._inbox = inbox
        self._executor = executor
        self._clock = clock
        self._random = random
        self._open_log = open_log
        self._open_writer = open_writer
        self._before_revoke = before_revoke
        self._on_committed = on_committed
        self._one_failed_ends_all = one_failed_ends_all
        self._look_again_s = look_again_s
        self._meter = meter or TaskMeter(clock)
        self._offsets = GroupOffsets(self._meter)
        self._membership = Membership(
            self.assigned,
            claims,
            lambda offsets: self._offsets.commit(self.fetching.consumer, offsets),
            self._inbox.put,
            clock,
        )
        self._events = structlog.get_logger("keyfold.sink")

    def join(self, consumer: GroupConsumer, topics: Sequence[str]) -> None:
        """Subscribe, or change the subscription."""
        self.fetching.set_consumer(consumer)
        consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def running(self, key: TopicPartitionKey) -> AssignedPartition | None:
        """Return the partition if its records are to be written now."""
        owner = self.assigned.get(key)
        return owner if owner is not None and owner.is_fetched else None

    def advance_partitions(self) -> None:
        """Handle the reports of the serial queues, and bring partitions to their next stage. Raise fatal errors."""
        self.accept_reports()
        self._load()
        self._membership.confirm()

    def accept_reports(self) -> None:
        """Handle the reports of the serial queues. Raise errors that end the task."""
        while True:
            try:
                event = self._inbox.get_nowait()
            except Empty:
                return
            if isinstance(event, Committed):
                self._committed(event)
            elif self.assigned.get(event.owner.key) is event.owner and event.owner.failure is None:
                if isinstance(event, Loaded):
                    event.owner.pinned = event.pinned
                    event.owner.stage = PartitionStage.CONFIRMING
                elif isinstance(event, Claimed):
                    self._claimed(event)
                else:
                    self._stopped(event)

    def abandon(self) -> None:
        """Stop writing and fetching all partitions; the next owner reads again what is not committed."""
        self._drop(list(self.assigned.values()))

    def reset(self, owner: AssignedPartition, why: str, cause: str = "position") -> None:
        """Drop all that is not committed, and start again at the log's end. `cause` is the metric's label."""
        if self.assigned.get(owner.key) is not owner:
            return
        self._events.warning("partition reset", topic=owner.key[0], partition=owner.key[1], why=why)
        self._meter.count(names.SET_BACKS, cause)
        owner.health.failed(why)
        self._drop([owner])
        self._begin(owner.key, owner)

    def lose_position(self, owner: AssignedPartition, why: str) -> None:
        """Commit what was read, then start again at the log's end."""
        self.fetching.stop_fetching([owner])
        if owner.writer is not None:
            owner.writer.roll(RollReason.REQUEST)

        def give_up() -> None:
            raise PositionLost(why)

        owner.queue.submit(give_up)

    def fail(self, owner: AssignedPartition, error: KeyfoldError) -> None:
        """Stop a partition's work for good. Records before the error are still committed, if possible.

        Raise the error if it concerns the whole task, or if one failed partition ends the task.
        """
        if self._one_failed_ends_all or scope_of(error) is ErrorScope.TASK:
            raise error
        if self.assigned.get(owner.key) is not owner or owner.failure is not None:
            return
        self._events.error("partition failed", topic=owner.key[0], partition=owner.key[1], error=str(error))
        self.fetching.stop_fetching([owner])
        owner.health.failed(error)
        owner.failure, owner.failed_ms, owner.stage = error, self._clock.now_ms(), PartitionStage.FAILED
        if owner.writer is not None and owner.queue.closed:
            owner.writer.abandon()
        elif owner.writer is not None:
            owner.writer.roll(RollReason.REQUEST)

    def on_error(self, error: KafkaError) -> None:
        """Handle an error that the client reports about itself: unavailable brokers, a late poll."""
        self.client_errors.note(error)
        self.doubts_topics |= error.code() in GONE
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            self.is_member = False

    def commit_lag(self) -> None:
        """Commit the logs' ends as group offsets."""
        if self.fetching.has_joined:
            self._offsets.commit(self.fetching.consumer, self._offsets.take_pending(self.assigned))

    def leave(self, consumer: GroupConsumer, within_s: float) -> bool:
        """Release all partitions, commit the logs' ends and leave the group. Return False if that took too long.

        With a broker that hangs or is cut off, the client waits for minutes. So this runs in a thread that the process
        need not wait for. The group then notices the absence by `session.timeout.ms`.
        """
        offsets = self._offsets.take_pending(self.assigned)
        try:
            self.abandon()
        except KafkaException as error:  # the client has failed; its error must not hide the one that ended the task
            self._events.info("partitions not unassigned", error=error.args[0].str())
        leaving = threading.Thread(target=self._leave, args=(consumer, offsets), name="keyfold-leave", daemon=True)
        leaving.start()
        leaving.join(within_s)
        return not leaving.is_alive()

    def on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """Handle the client's answer to a commit of group offsets."""
        self._offsets.answered(error, offsets, self.assigned)
        for offset in offsets:
            key = (offset.topic, offset.partition)
            refused = error or offset.error
            if key in self.assigned and refused is not None and not offset.metadata:
                self._offsets.refused(key, offset.offset)
            if offset.metadata:
                self._membership.answered(offset, refused)

    def _leave(self, consumer: GroupConsumer, offsets: list[TopicPartition]) -> None:
        self._offsets.commit(consumer, offsets, wait=True)
        try:
            consumer.close()
        except KafkaException as error:
            self._events.info("consumer group not left", error=error.args[0].str())

    # Stages

    def _begin(self, key: TopicPartitionKey, before: AssignedPartition | None = None) -> None:
        health = PartitionHealth(self._clock) if before is None else before.health
        queue = SerialQueue(
            self._executor,
            lambda error: self._inbox.put(PartitionStopped(owner, error)),
            health,
            on_retry=lambda: self._meter.count(connect_names.RETRIES),
        )
        retry = QueueRetry(queue, self._random, look_again_s=self._look_again_s)
        owner = AssignedPartition(key, queue, retry, self._open_log(key), health)
        if before is not None:
            owner.resets, owner.fences = before.resets + 1, before.fences
            owner.committed_ms = before.committed_ms
        owner.load_at_s = self._clock.monotonic_s() + reset_delay_s(owner.resets, self._random)
        self.assigned[key] = owner

    def _load(self) -> None:
        now_s = self._clock.monotonic_s()
        for owner in self.assigned.values():
            if owner.stage is PartitionStage.LOADING and not owner.is_loading and owner.load_at_s <= now_s:
                owner.is_loading = True
                owner.queue.submit(lambda owner=owner: self._claims.load(owner))  # type: ignore[misc]  # mypy does not infer a lambda with a default

    def _claimed(self, event: Claimed) -> None:
        owner = event.owner
        owner.writer = self._open_writer(owner, event)
        owner.resumed, owner.end_offset = event.resumed, event.end_offset
        owner.stage = PartitionStage.RUNNING
        owner.health.went_on()
        self._meter.count(names.CLAIMS)
        manifest = event.session.manifest
        owner.log_end, owner.last_leader_epoch = manifest.next_offset, manifest.last_leader_epoch
        owner.last_offset = manifest.segments[-1].last_offset if manifest.segments else -1
        self.log_ends[owner.key] = manifest.next_offset
        self._events.info(
            "partition claimed",
            topic=owner.key[0],
            partition=owner.key[1],
            epoch=event.session.epoch,
            next_offset=manifest.next_offset,
        )
        start = TopicPartition(*owner.key, event.start_offset)
        if event.start_leader_epoch >= 0:
            start = TopicPartition(*owner.key, event.start_offset, leader_epoch=event.start_leader_epoch)
        self.fetching.start_fetching(owner, start)

    def _committed(self, event: Committed) -> None:
        self.log_ends[event.key] = event.next_offset
        self._offsets.note(event.key, event.next_offset)
        owner = self.assigned.get(event.key)
        if owner is not None:
            owner.resets = owner.fences = 0
            owner.committed_ms = self._clock.now_ms()
            owner.health.went_on()
            if owner.writer is not None:
                owner.writer.note_durable(event.next_offset)
        self._on_committed(event)
        self._events.info(
            "segment committed" if event.record_count else "log end moved",
            topic=event.key[0],
            partition=event.key[1],
            next_offset=event.next_offset,
            records=event.record_count,
            size_bytes=event.size_bytes,
            reason=event.reason.value,
        )

    def _stopped(self, event: PartitionStopped) -> None:
        owner, error = event.owner, event.error
        if isinstance(error, Fenced):
            owner.fences += 1
            self._meter.count(names.FENCES)
            if owner.fences >= _FENCES_MAX:
                error = _rivals(owner)
                return self.fail(owner, error)
        if scope_of(error) is ErrorScope.AGAIN:
            return self.reset(owner, str(error), reset_cause(error))
        if isinstance(error, KeyfoldError):
            return self.fail(owner, error)
        topic, partition = owner.key
        raise RuntimeError(f"unexpected error while writing {topic}-{partition}") from error

    def _drop(self, owners: Iterable[AssignedPartition]) -> None:
        """Stop writing and fetching; a commit in flight may take effect or be fenced."""
        owners = list(owners)
        for owner in owners:
            owner.queue.close()
            if self.assigned.get(owner.key) is owner:
                del self.assigned[owner.key]
        self.fetching.stop_fetching(owners)

    # The client's callbacks: called inside `consume` and `close`

    def _on_assign(self, consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        self.is_member = True
        self._meter.rebalance_began()
        self.client_errors.moves()
        consumer.incremental_assign([])  # without this call the client would fetch from the group's offsets
        for place in partitions:
            key = (place.topic, place.partition)
            self.client_errors.assigned(place.topic)
            if key in self.assigned:
                self._drop([self.assigned[key]])
            self._begin(key)

    def _on_revoke(self, consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        owners = self._owners(partitions)
        self._meter.rebalance_began()
        try:
            self._before_revoke(owners)
        finally:
            # Look up the owners again: the flush may have reset one, and its new attempt must not outlive the
            # assignment. The client waits for this call after any error.
            self._give_up(consumer, self._owners(partitions))

    def _on_lost(self, consumer: GroupConsumer, partitions: list[TopicPartition]) -> None:
        self.is_member = False
        self._meter.rebalance_began()
        self._give_up(consumer, self._owners(partitions))

    def _owners(self, partitions: list[TopicPartition]) -> list[AssignedPartition]:
        keys = ((place.topic, place.partition) for place in partitions)
        return [self.assigned[key] for key in keys if key in self.assigned]

    def _give_up(self, consumer: GroupConsumer, owners: list[AssignedPartition]) -> None:
        if not any(owner.is_fetched for owner in owners):
            consumer.incremental_unassign([])  # the client waits for the call
        self._drop(owners)


def _rivals(owner: AssignedPartition) -> Fenced:
    return Fenced(
        *owner.key,
        f"another sink has claimed the partition {owner.fences} times before this sink could commit a record",
        hint="two sinks write the same log; stop one of them, or set another `topics.dir` for it",
    )


class GroupOffsets:
    """Group offsets, which show the lag to Kafka's tools: pending ones, and commits in flight, for the meter.

    An offset is committed after the manifest, never before. A refused commit is repeated.
    """

    def __init__(self, meter: TaskMeter) -> None:
        self._meter = meter
        self._ends: dict[TopicPartitionKey, int] = {}
        self._awaited: dict[_Sent, float] = {}

    def note(self, key: TopicPartitionKey, next_offset: int) -> None:
        """Record the new end of a log."""
        self._ends[key] = next_offset

    def refused(self, key: TopicPartitionKey, next_offset: int) -> None:
        """Record a refused offset, unless a newer one is pending."""
        self._ends.setdefault(key, next_offset)

    def take_pending(self, mine: Collection[TopicPartitionKey]) -> list[TopicPartition]:
        """Return the pending offsets of these partitions. The others belong to another member now."""
        offsets = [TopicPartition(*key, offset) for key, offset in self._ends.items() if key in mine]
        self._ends.clear()
        return offsets

    def commit(self, consumer: GroupConsumer, offsets: list[TopicPartition], *, wait: bool = False) -> None:
        """Commit to the group. A failure is harmless, because the offsets are committed again."""
        if not offsets:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=not wait)
        except KafkaException as error:
            structlog.get_logger("keyfold.sink").info("group offsets not committed", error=error.args[0].str())
            return
        self._meter.offsets_sent()
        if not wait:
            self._awaited[_sent(offsets[0])] = self._meter.clock.monotonic_s()
            if len(self._awaited) > _AWAITED_MAX:
                del self._awaited[next(iter(self._awaited))]

    def answered(
        self, error: KafkaError | None, offsets: Sequence[TopicPartition], mine: Collection[TopicPartitionKey]
    ) -> None:
        """Count the group's answer."""
        if not offsets:
            return
        sent_s = self._awaited.pop(_sent(offsets[0]), None)
        late = not any((offset.topic, offset.partition) in mine for offset in offsets)
        good = error is None and all(offset.error is None for offset in offsets)
        self._meter.offsets_answered(sent_s, good=good, late=late)


def _sent(offset: TopicPartition) -> _Sent:
    return offset.topic, offset.partition, offset.offset, offset.metadata
