"""One task: a member of the group that reads its partitions and writes their logs.

    consume ─► group by partition ─► append ─► roll what is due ─► relieve memory ─► handle what the lanes report

One thread does all of this and never waits for the store; lanes do (`keyfold_sink.lane`). It ends when it is told to
stop, when it has caught up, or when something is wrong that no repetition cures: in each case what was read is flushed
and committed first, as far as that still goes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from random import Random
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message

from keyfold.clock import Clock
from keyfold.errors import Fenced, KeyfoldError, LogNotFound, OffsetMoved, SourceError
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import RecordColumns
from keyfold.store.api import ObjectStore
from keyfold_sink import budget
from keyfold_sink.assignment import Assigned, Claimed, Claims, require_same_branch
from keyfold_sink.batch import Slice, TopicPartitionKey, columns, slices, value_bytes
from keyfold_sink.catchup import CatchUp
from keyfold_sink.group import Event, Group, GroupConsumer
from keyfold_sink.kafka import FORBIDDEN, GONE, AdminSource
from keyfold_sink.lane import Lane
from keyfold_sink.options import SinkOptions
from keyfold_sink.partition import Committed, PartitionWriter, Tools
from keyfold_sink.rolling import RollReason
from keyfold_sink.source import SourceForbidden, SourceUnavailable, tombstone_gap, tombstones_at_risk

SENDERS: Final = 8
_POLL_S: Final = 0.1
_BRAKE_WAIT_S: Final = 1.0
_FOLLOW_INTERVAL_S: Final = 60.0
_TOPICS_INTERVAL_S: Final = 15.0
_ELSEWHERE_INTERVAL_S: Final = 1.0
# A commit that stays unknown for this long is asked for again; shutdown looks in between.
_COMMIT_PATIENCE_S: Final = 10.0
_LEAVE_WAIT_S: Final = 5.0

OpenConsumer = Callable[[Callable[[Any, Any], None]], GroupConsumer]


class ClientFailed(KeyfoldError):
    """The Kafka client has ended for good."""


class ShutdownTimeout(KeyfoldError):
    """The store or Kafka did not answer in the time that a shutdown has."""


class SinkTask:
    """A task. It ends soon after `stop` is set, from wherever."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        store: ObjectStore,
        source: AdminSource,
        open_consumer: OpenConsumer,
        clock: Clock,
        random: Random,
        stop: threading.Event,
        catch_up: CatchUp | None = None,
        on_committed: Callable[[Committed], None] = lambda _event: None,
    ) -> None:
        self._options = options
        self._store = store
        self._source = source
        self._open_consumer = open_consumer
        self._clock = clock
        self._random = random
        self._catch_up = catch_up
        self._plan = budget.plan(options.buffer_memory)
        self._in_flight = budget.InFlight()
        self._brake = budget.Brake(self._plan.segments_bytes)
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._pool = ThreadPoolExecutor(SENDERS, thread_name_prefix="keyfold-sink")
        self._stop = stop
        self._timers = Timers(clock)
        self._mean_record_bytes = 1000.0
        self._topics: list[str] = []
        self._background: dict[str, Future[Any]] = {}
        self._events = structlog.get_logger("keyfold.sink")
        claims = Claims(source, options.source_gap_policy, random, self._inbox.put)
        self._tools = Tools(store, source, clock, self._in_flight, self._inbox.put, options.avro_codec)
        self._group = Group(
            claims=claims,
            inbox=self._inbox,
            executor=self._pool,
            clock=clock,
            random=random,
            open_log=self._open_log,
            open_writer=self._open_writer,
            before_revoke=self._before_revoke,
            on_committed=on_committed,
        )

    def run(self) -> None:
        """Work until stopped or caught up. Raises what ended the task otherwise."""
        consumer = self._open_consumer(self._group.on_commit)
        try:
            try:
                self._topics = list(self._options.topics)
                if self._topics:
                    self._group.join(consumer, self._topics)
                self._loop(consumer)
            except KeyfoldError:
                self._end_quietly()
                raise
            except KafkaException as error:
                self._end_quietly()
                raise ClientFailed(f"the Kafka client cannot go on: {error.args[0].str()}") from error
            self._end()
        finally:
            try:
                if not self._group.leave(consumer, _LEAVE_WAIT_S):
                    self._events.warning("Kafka did not let the task leave its group in time; it goes all the same")
            finally:
                self._pool.shutdown(wait=True, cancel_futures=True)

    # The loop

    def _loop(self, consumer: GroupConsumer) -> None:
        while not self._stop.is_set():
            messages = consumer.consume(self._plan.batch_records(self._mean_record_bytes), _POLL_S)
            if messages:
                self._take(messages)
            self._group.step()
            self._roll()
            self._relieve()
            self._follow(consumer)
            if self._has_caught_up():
                return

    def _take(self, messages: list[Message]) -> None:
        self._mean_record_bytes = value_bytes(messages) / len(messages) + 64
        for piece in slices(messages):
            if isinstance(piece, Slice):
                owner = self._group.running(piece.key)
                if owner is not None and owner.writer is not None:
                    batch = columns(piece.records)
                    if not owner.has_read:
                        self._first_read(owner, batch)
                    owner.writer.append(batch, self._mean_record_bytes)
            else:
                self._not_a_record(piece)

    def _first_read(self, owner: Assigned, batch: RecordColumns) -> None:
        """Judge the source by the records around the log's end."""
        first = bisect_left(batch.offsets, owner.log_end)
        if first > 0:
            require_same_branch(owner, batch.offsets[first - 1], batch.leader_epochs[first - 1])
        if first == len(batch):
            return
        owner.has_read = True
        at = owner.resumed
        if at is not None and tombstones_at_risk(at, batch.offsets[first], batch.timestamps[first]):
            gap = tombstone_gap(at, batch.offsets[first], owner.end_offset, self._options.source_gap_policy)
            self._events.warning("gap recorded", topic=at.topic, partition=at.partition, gap=gap.reason)
            assert owner.writer is not None
            owner.writer.record_gap(gap)

    def _not_a_record(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error.fatal() or error.code() in FORBIDDEN:
            raise SourceForbidden(f"the Kafka client cannot go on: {error.str()}")
        owner = self._group.running((topic, partition)) if topic is not None and partition is not None else None
        if owner is None or owner.writer is None:
            # A topic that does not exist is waited for; whoever has misspelt it must be able to see that.
            say = self._events.warning if error.code() in GONE else self._events.info
            say("kafka reports", error=error.str(), topic=topic)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            owner.writer.read_to(offset or 0)
        else:
            self._position_refused(owner, owner.writer, error)

    def _position_refused(self, owner: Assigned, writer: PartitionWriter, error: KafkaError) -> None:
        """Kafka does not serve the position. Begin again at the log's end; the source check says what it means."""
        if _is_truncation(error):
            # What was read and not committed may be of the lost branch. If nothing was, the log itself is.
            if not owner.has_read:
                raise SourceError(
                    *owner.key,
                    f"the topic was truncated below the log's end at {writer.manifest.next_offset}: {error.str()}",
                    hint="nothing was written; keep the old log and give the topic another topics.dir",
                )
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self._flush([owner], RollReason.REQUEST, self._options.offset_flush_timeout_ms)
        self._group.set_back(owner, error.str())

    def _roll(self) -> None:
        for owner in self._group.assigned.values():
            if owner.writer is not None:
                owner.writer.roll_if_due()
        if self._timers.due("lag", self._options.offset_flush_interval_ms / 1000):
            self._group.commit_lag()

    def _relieve(self) -> None:
        """Keep within the budget: finish the largest segments, then stop reading for a while."""
        held = {key: o.writer.held_bytes for key, o in self._group.assigned.items() if o.writer is not None}
        for key in budget.to_roll(held, self._in_flight.size_bytes, self._plan.segments_bytes):
            writer = self._group.assigned[key].writer
            assert writer is not None
            held[key] = 0
            writer.roll(RollReason.MEMORY)
        held_bytes = sum(held.values())
        must_pause = self._brake.update(held_bytes + self._in_flight.size_bytes)
        if must_pause and not self._group.is_paused:
            # Pausing throws away what the client has fetched already; the store often needs only a moment.
            deadline_s = self._clock.monotonic_s() + _BRAKE_WAIT_S
            while must_pause and self._clock.monotonic_s() < deadline_s and not self._stop.is_set():
                self._clock.sleep(0.005)
                must_pause = self._brake.update(held_bytes + self._in_flight.size_bytes)
        if must_pause and not self._group.is_paused:
            self._events.warning("reading paused until the store has caught up", buffer_memory=True)
            self._group.pause()
        elif self._group.is_paused and not must_pause:
            self._group.resume()

    # What happens now and then

    def _follow(self, consumer: GroupConsumer) -> None:
        if self._timers.due("follow", _FOLLOW_INTERVAL_S):
            for owner in self._group.assigned.values():
                if owner.writer is not None:
                    owner.writer.follow()
        if self._options.topics_regex is not None:
            if self._timers.due("topics", _TOPICS_INTERVAL_S):
                self._in_background("topics", lambda: self._options.choose_topics(self._source.topics()))
            topics = self._finished("topics")
            if topics and topics != self._topics:
                self._topics = topics
                self._group.join(consumer, topics)

    def _has_caught_up(self) -> bool:
        catch_up = self._catch_up
        if catch_up is None:
            return False
        catch_up.saw(self._group.log_ends)
        running = {k: o.writer for k, o in self._group.assigned.items() if o.is_fetched and o.writer is not None}
        for key in catch_up.to_flush({key: writer.position for key, writer in running.items()}):
            if not running[key].is_rolled:
                running[key].roll(RollReason.CAUGHT_UP)
        elsewhere = catch_up.elsewhere(running)
        if elsewhere and self._timers.due("elsewhere", _ELSEWHERE_INTERVAL_S):
            self._in_background("elsewhere", lambda: self._look_at(elsewhere))
        catch_up.saw(self._finished("elsewhere") or {})
        return catch_up.is_done

    def _look_at(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        found: dict[TopicPartitionKey, int] = {}
        for key in keys:
            try:
                found[key] = self._open_log(key).load().manifest.next_offset
            except LogNotFound:
                continue
        return found

    def _in_background(self, what: str, call: Callable[[], Any]) -> None:
        if what not in self._background:
            self._background[what] = self._pool.submit(call)

    def _finished(self, what: str) -> Any:
        """The result of a background call that has ended; None while it runs and where its error is passing."""
        future = self._background.get(what)
        if future is None or not future.done():
            return None
        del self._background[what]
        try:
            return future.result()
        except KeyfoldError as error:
            if not error.retriable and not isinstance(error, SourceUnavailable):
                raise
            return None

    # The end

    def _before_revoke(self, owners: Sequence[Assigned]) -> None:
        self._flush(owners, RollReason.REVOKE, self._options.offset_flush_timeout_ms)
        self._group.commit_lag()

    def _end(self) -> None:
        owners = list(self._group.assigned.values())
        done = self._flush(owners, RollReason.SHUTDOWN, self._options.shutdown_timeout_ms)
        if not done:
            raise ShutdownTimeout(
                f"not everything was committed within {self._options.shutdown_timeout_ms} ms of being told to stop",
                hint="nothing is lost: the next run reads it again from Kafka",
            )

    def _end_quietly(self) -> None:
        """Flush what can be flushed beside an error that is already on its way."""
        try:
            self._end()
        except KeyfoldError as error:
            self._events.warning("not everything was flushed", error=str(error))

    def _flush(self, owners: Sequence[Assigned], reason: RollReason, timeout_ms: int) -> bool:
        """Finish and commit what was read of these partitions; False when some of it could not be."""
        deadline_s = self._clock.monotonic_s() + timeout_ms / 1000
        for owner in owners:
            if owner.writer is not None:
                owner.writer.roll(reason)
        done = True
        for owner in owners:
            if owner.writer is not None:
                left_s = max(0.0, deadline_s - self._clock.monotonic_s())
                done = owner.lane.wait_idle(left_s) and _is_settled(owner.lane) and done
        self._group.take_reports()
        return done

    def _open_log(self, key: TopicPartitionKey) -> PartitionLog:
        place = Place(self._options.topics_dir, *key)
        return PartitionLog(self._store, place, clock=self._clock, random=self._random, patience_s=_COMMIT_PATIENCE_S)

    def _open_writer(self, owner: Assigned, event: Claimed) -> PartitionWriter:
        policy = self._options.roll_policy(owner.key[0])
        return PartitionWriter(event.session, owner.lane, owner.retry, policy, self._tools)


def _is_truncation(error: KafkaError) -> bool:
    """The client reports it as a refused position, and only the words tell (seen with librdkafka 2.16)."""
    return error.code() == KafkaError._LOG_TRUNCATION or (  # noqa: SLF001
        error.code() == KafkaError._AUTO_OFFSET_RESET and "truncation" in error.str()  # noqa: SLF001
    )


def _is_settled(lane: Lane) -> bool:
    """Whether nothing is left to be committed by this task: it is done, or another sink has taken the partition."""
    return lane.crash is None or isinstance(lane.crash, Fenced | OffsetMoved)


class Timers:
    """Things that are done now and then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s: dict[str, float] = {}

    def due(self, what: str, interval_s: float) -> bool:
        """Whether it is time; counts from the last time that this said yes. True the first time."""
        now_s = self._clock.monotonic_s()
        if what in self._last_s and now_s - self._last_s[what] < interval_s:
            return False
        self._last_s[what] = now_s
        return True
