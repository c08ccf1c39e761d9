"""One task: a member of the group that reads its partitions and writes their logs.

    consume ─► pass to writers ─► follow commands ─► handle events of the serial queues ─► roll segments ─► backpressure
            ─► report

One thread runs this loop and never waits for the store; serial queues do (`keyfold_sink.write.serial_queue`). The task
ends when it is stopped, when it has caught up, or on an error of the whole task that is not retriable. In each case it
first commits what was read, as far as possible. An error of one partition fails only that partition.

No step of the loop may take longer than seconds, except a flush, which has a time-out and sends reports while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from random import Random

import structlog
from confluent_kafka import KafkaError, KafkaException

from keyfold.errors import KeyfoldError
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import Clock
from keyfold.runtime.process_memory import free_cycles, return_memory
from keyfold.store.api import ObjectStore
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.group.assignment import AssignedPartition, Claimed, Claims, PauseReason
from keyfold_sink.group.catchup import CatchUp
from keyfold_sink.group.group import ConsumerGroup, Event
from keyfold_sink.kafka.client import GroupConsumer, OnCommit
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.status import RunState
from keyfold_sink.task.background import Background, Timers
from keyfold_sink.task.backpressure import Backpressure
from keyfold_sink.task.catching_up import CatchingUp
from keyfold_sink.task.commands import TaskCommands
from keyfold_sink.task.flushing import Unflushed, flush
from keyfold_sink.task.reading import BatchReader
from keyfold_sink.task.report import StatusReporter, TaskGauges, TaskReport
from keyfold_sink.task.time_limits import TaskTimings
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.validate.convert.api import Checks
from keyfold_sink.validate.dead_letter_topic import OpenProducer
from keyfold_sink.validate.rejection import open_validation
from keyfold_sink.write import memory_budget
from keyfold_sink.write.io_pool import IoPool
from keyfold_sink.write.partition import Committed, PartitionWriter, WriterResources

OpenConsumer = Callable[[OnCommit, Callable[[KafkaError], None]], GroupConsumer]
"""Open a consumer, given the callbacks for answers to commits and for the client's errors."""


class ClientFailed(KeyfoldError):
    """The Kafka client failed for good; a new client would fail in the same way."""


class ClientBroke(Exception):
    """The Kafka client refused a call that it should have accepted; a new client may work."""


class PartitionsFailed(KeyfoldError):
    """The task was stopped, and some of its partitions had failed."""


class NotFlushed(KeyfoldError):
    """The task was stopped, and could not commit everything that it had read."""


class ShutdownTimeout(NotFlushed):
    """The store or Kafka did not answer within the time limit of a shutdown."""


class SinkTask:
    """A task. It ends soon after any thread has ordered it to stop."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        store: ObjectStore,
        source: AdminSource,
        open_consumer: OpenConsumer,
        clock: Clock,
        random: Random,
        commands: TaskCommands,
        reporter: StatusReporter,
        meter: TaskMeter | None = None,
        checks: Checks | None = None,
        open_producer: OpenProducer | None = None,
        catch_up: CatchUp | None = None,
        transaction_timeout_s: float = 0.0,
        on_committed: Callable[[Committed], None] = lambda _event: None,
        renew: Callable[[], None] = lambda: None,
        timings: TaskTimings | None = None,
    ) -> None:
        """Prepare the task. `renew` looks up credentials again, and may block; only `catch_up` needs the time-out."""
        self._options = options
        self._timings = timings or TaskTimings()
        self._renew = renew
        self._store = store
        self._source = source
        self._open_consumer = open_consumer
        self._clock = clock
        self._random = random
        self._commands = commands
        self._plan = plan_memory(options.buffer_memory)
        self._in_flight = memory_budget.InFlight()
        meter = meter or TaskMeter(clock)
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._pool = IoPool()
        self._timers = Timers(clock)
        self._background = Background(self._pool)
        self._topics: list[str] = []
        self._events = structlog.get_logger("keyfold.sink")
        on_event, codec, block_bytes = self._inbox.put, options.avro_codec, self._block_bytes
        self._resources = WriterResources(store, source, clock, self._in_flight, on_event, codec, meter, block_bytes)
        self._group = self._open_group(meter, on_committed, one_failed_ends_all=catch_up is not None)
        self._catching_up: CatchingUp | None = None
        if catch_up is not None:
            self._catching_up = CatchingUp(
                catch_up, self._group, source, self._open_log, self._background, clock, transaction_timeout_s
            )
        self._validation = open_validation(
            options,
            self._group,
            clock=clock,
            meter=meter,
            in_flight=self._in_flight,
            checks=checks,
            open_producer=open_producer,
            task_id=reporter.number,
        )
        self._reading = BatchReader(self._group, options.source_gap_policy, self._validation, meter)
        self._backpressure = Backpressure(
            self._group,
            self._in_flight,
            self._plan.segments_bytes,
            meter,
            lambda: self._validation.waiting_bytes,
            lambda: self._reading.large_record_bytes,
        )
        self._report = TaskReport(self._group, reporter, self._timings.transaction_ms)
        reporter.values = TaskGauges(
            meter, self._group, self._in_flight, self._plan.segments_bytes, lambda: self._validation.waiting_bytes
        ).values

    def run(self) -> None:
        """Run until the task is stopped or has caught up. Raise the error that ended it otherwise."""
        consumer = self._open_consumer(self._group.on_commit, self._group.on_error)
        try:
            try:
                self.join_group(consumer)
                while not self._commands.stop.is_set() and not self._has_caught_up():
                    self.run_round(consumer)
            except KeyfoldError as error:
                self._end_because_of(error)
                raise
            except KafkaException as error:
                kind = ClientFailed if error.args[0].fatal() else ClientBroke
                why = kind(f"the Kafka client cannot go on: {error.args[0].str()}")
                self._end_because_of(why)
                raise why from error
            self._end()
            self._report.send_now()  # the last metrics, so that the work of the flush is counted
            if self._report.state() is RunState.FAILED:
                raise PartitionsFailed(self._report.trace())
        finally:
            try:
                if not self._group.leave(consumer, self._timings.leave_wait_s):
                    self._events.warning("leaving the consumer group timed out; ending without it")
            finally:
                if not self._pool.end(self._clock.monotonic_s() + self._timings.last_calls_s, self._clock.monotonic_s):
                    self._events.warning("request still in flight; ending without its answer")

    # The loop

    def join_group(self, consumer: GroupConsumer) -> None:
        """Join the group, paused if that was ordered."""
        self._follow_commands()
        self._topics = list(self._options.topics)
        if self._topics:
            self._group.join(consumer, self._topics)

    def run_round(self, consumer: GroupConsumer) -> None:
        """Run one round of the loop."""
        messages = consumer.consume(self._plan.batch_records(self._reading.expected_record_bytes), self._timings.poll_s)
        if messages:
            self._reading.accept_messages(messages)
        self._follow_commands()
        self._group.advance_partitions()
        self._validation.resume_waiting()
        self._roll()
        self._backpressure.limit_memory(self._commands.stop)
        self._follow(consumer)
        self._report.send_if_due()
        if self._timers.due("free cycles", self._timings.free_cycles_interval_s):
            free_cycles()
        if self._timers.due("return memory", self._timings.return_memory_interval_s):
            return_memory()

    def _follow_commands(self) -> None:
        wanted = self._commands.take_pending()
        is_paused = PauseReason.REQUEST in self._group.fetching.reasons
        if wanted.pause and not is_paused:
            self._events.info("paused")
            self._group.fetching.pause(PauseReason.REQUEST)
        elif is_paused and not wanted.pause:
            self._events.info("resumed")
            self._group.fetching.resume(PauseReason.REQUEST)
        self._background.take_result("renew")
        if wanted.renew:
            self._background.start_call("renew", self._renew)
            self._timers.make_due("topics", "follow", "ends")
        if wanted.flush or (wanted.pause and not is_paused):
            for writer in self._writers():
                writer.roll(RollReason.REQUEST)

    def _roll(self) -> None:
        if self._timers.due("roll", self._timings.roll_interval_s):
            for writer in self._writers():
                writer.roll_if_due()
        if self._timers.due("lag", self._options.offset_flush_interval_ms / 1000):
            self._group.commit_lag()

    def _writers(self) -> Iterable[PartitionWriter]:
        return [owner.writer for owner in self._group.assigned.values() if owner.writer is not None]

    # Periodic work

    def _follow(self, consumer: GroupConsumer) -> None:
        if self._group.doubts_topics:  # a report of the client alone ends nothing
            self._group.doubts_topics = False
            self._timers.make_due("follow")
        if self._timers.due("follow", self._timings.follow_interval_s):
            for writer in self._writers():
                writer.follow()
        if self._options.topics_regex is not None:
            if self._timers.due("topics", self._timings.topics_interval_s):
                self._background.start_call("topics", lambda: self._options.choose_topics(self._source.topics()))
            topics = self._background.take_result("topics")
            if topics and topics != self._topics:
                self._topics = topics
                self._group.join(consumer, topics)
        if self._timers.due("ends", self._timings.ends_interval_s) and (unread := self._report.unread()):
            self._background.start_call("ends", lambda: self._source.end_offsets(unread))
        self._report.ends = self._background.take_result("ends") or self._report.ends

    def _has_caught_up(self) -> bool:
        return self._catching_up is not None and self._catching_up.is_done()

    # The end

    def _before_revoke(self, owners: Sequence[AssignedPartition]) -> None:
        self._flush(owners, RollReason.REVOKE, self._options.offset_flush_timeout_ms)
        self._group.commit_lag()

    def _end(self) -> None:
        self._validation.log_skipped()
        limit_ms = self._options.shutdown_timeout_ms
        left = self._flush(self._assigned(), RollReason.SHUTDOWN, limit_ms)
        words = left.words(f"did not commit within {limit_ms} ms of the stop order")
        if words:
            kind = ShutdownTimeout if left.late else NotFlushed
            raise kind(
                f"not everything was committed: {words}",
                hint="nothing is lost; the next run reads the rest again from Kafka",
            )

    def _end_because_of(self, cause: Exception) -> None:
        """Log why the task ends, then flush as far as the error allows."""
        self._events.error("task failed; committing what was read", error=str(cause))
        limit_ms = self._options.shutdown_timeout_ms
        try:
            self._validation.log_skipped()
            words = self._flush(self._assigned(), RollReason.SHUTDOWN, limit_ms).words(
                f"did not commit within {limit_ms} ms"
            )
        except KeyfoldError as error:
            words = str(error)
        if words:
            self._events.warning("not everything was committed; the next task reads the rest again", left=words)

    def _flush(self, owners: Sequence[AssignedPartition], reason: RollReason, timeout_ms: int) -> Unflushed:
        """Commit what was read of these partitions, and return those that could not commit everything."""
        left = flush(
            owners, reason, timeout_ms / 1000, self._clock, self._report.send_if_due, self._timings.report_interval_s
        )
        self._group.accept_reports()
        return left

    def _assigned(self) -> list[AssignedPartition]:
        return list(self._group.assigned.values())

    def _open_group(
        self, meter: TaskMeter, on_committed: Callable[[Committed], None], *, one_failed_ends_all: bool
    ) -> ConsumerGroup:
        return ConsumerGroup(
            claims=Claims(
                self._source,
                self._options.source_gap_policy,
                self._random,
                self._inbox.put,
                gap_recorded=lambda: meter.count(names.SOURCE_GAPS, "lost"),
            ),
            inbox=self._inbox,
            executor=self._pool,
            clock=self._clock,
            random=self._random,
            open_log=self._open_log,
            open_writer=self._open_writer,
            before_revoke=self._before_revoke,
            on_committed=on_committed,
            one_failed_ends_all=one_failed_ends_all,
            meter=meter,
            look_again_s=self._timings.look_again_s,
        )

    def _open_log(self, key: TopicPartitionKey) -> PartitionLog:
        place = Place(self._options.topics_dir, *key)
        retry_timeout_s = self._timings.commit_timeout_s
        return PartitionLog(self._store, place, clock=self._clock, random=self._random, retry_timeout_s=retry_timeout_s)

    def _block_bytes(self) -> int:
        return memory_budget.block_bytes(len(self._group.assigned), self._plan.segments_bytes)

    def _open_writer(self, owner: AssignedPartition, event: Claimed) -> PartitionWriter:
        policy = self._options.roll_policy(owner.key[0])
        return PartitionWriter(event.session, owner.queue, owner.retry, policy, self._resources)
