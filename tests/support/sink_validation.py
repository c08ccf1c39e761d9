"""Record validation of one partition over the in-memory store, with a fake converter and a fake dead letter topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from confluent_kafka import KafkaError, Message

from keyfold.errors import KeyfoldError
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import RecordColumns
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.rolling import RollPolicy, RollReason
from keyfold_sink.group.assignment import AssignedPartition, PauseReason
from keyfold_sink.kafka.source import SourceFacts
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.validate.convert.api import ConnectStage, Rejected, SchemasPending
from keyfold_sink.validate.dead_letter import DeadLetterOrigin
from keyfold_sink.validate.dead_letter_topic import DeadLetterTopic
from keyfold_sink.validate.error_counts import ErrorCounts
from keyfold_sink.validate.record_validation import ErrorPolicy, RecordValidation
from keyfold_sink.write.memory_budget import InFlight
from keyfold_sink.write.partition import Committed, PartitionWriter, WriterResources
from keyfold_sink.write.partition_health import PartitionHealth
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue

KEY = ("t", 0)
PLACE = Place("topics", *KEY)
CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
TOPIC = "letters"


def message(offset: int, value: bytes = b"v", **more: Any) -> Message:
    given: dict[str, Any] = {"key": b"k%d" % offset, "timestamp": (1, 1000 + offset), "leader_epoch": 3, **more}
    return Message(topic=KEY[0], partition=KEY[1], offset=offset, value=value, **given)


class FakeChecks:
    """Checks that reject values with `!`, for the cause that follows. Values with `?` need a schema first."""

    def __init__(self) -> None:
        self.asking = False
        self.known = False
        self.judged = 0
        self.error: KeyfoldError | None = None

    def judge(self, topic: str, partition: int, batch: RecordColumns) -> Sequence[Rejected]:
        assert (topic, partition) == KEY
        self.judged += 1
        if self.error is not None:
            raise self.error
        if not self.known and any(value is not None and value.startswith(b"?") for value in batch.values):
            self.asking = True
            raise SchemasPending
        return [
            Rejected(at, ConnectStage.VALUE_CONVERTER, CONVERTER, value[1:].decode(), f"{value!r} is poison")
            for at, value in enumerate(batch.values)
            if value is not None and value.startswith(b"!")
        ]

    def pending(self) -> bool:
        return self.asking

    def answer(self) -> None:
        self.asking, self.known = False, True

    def close(self) -> None:
        pass


@dataclass
class FakeProducer:
    """A producer that delivers its messages at `poll`, unless a test says otherwise."""

    topic: FakeTopic
    on_error: Callable[[KafkaError], None]
    queue: list[tuple[dict[str, Any], Callable[[KafkaError | None, object], None]]] = field(default_factory=list)

    def produce(self, topic: str, **letter: Any) -> None:
        assert topic == TOPIC
        if len(self.queue) >= self.topic.queue_max:
            raise BufferError
        self.queue.append((letter, letter.pop("on_delivery")))

    def poll(self, timeout: float) -> int:
        with self.topic.lock:
            if self.topic.is_away:
                return 0
            answers, self.queue = self.queue, []
        for letter, on_delivery in answers:
            error = self.topic.judge(letter)
            if error is None:
                self.topic.letters.append(letter)
            on_delivery(error, None)
        return len(answers)


class FakeTopic:
    """A dead letter topic in memory."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.letters: list[dict[str, Any]] = []
        self.is_away = False
        self.queue_max = 1 << 30
        self.judge: Callable[[dict[str, Any]], KafkaError | None] = lambda _letter: None
        self.producers: list[FakeProducer] = []

    def open(self, on_error: Callable[[KafkaError], None]) -> FakeProducer:
        self.producers.append(FakeProducer(self, on_error))
        return self.producers[-1]

    @property
    def offsets(self) -> list[int]:
        """Return the offsets of the records whose dead letters were delivered, from their headers."""
        return [int(dict(letter["headers"])["__connect.errors.offset"]) for letter in self.letters]


class FakeFetching:
    def __init__(self) -> None:
        self.said: list[tuple[str, PauseReason]] = []

    def hold(self, owner: AssignedPartition, reason: PauseReason) -> None:
        owner.holds.add(reason)
        self.said.append(("hold", reason))

    def release(self, owner: AssignedPartition, reason: PauseReason) -> None:
        if reason in owner.holds:
            owner.holds.discard(reason)
            self.said.append(("release", reason))


class OneTopic:
    def facts(self, topic: str, partition: int) -> SourceFacts:
        return SourceFacts("T", "C", 0, 0, {})

    def topic_id(self, topic: str) -> str:
        return "T"

    def settings(self, topic: str) -> dict[str, str]:
        return {"cleanup.policy": "delete"}


class ValidationRig:
    """Record validation of one partition, and its log. `claim` restarts from the log, as a sink does after a crash."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        *,
        store: ObjectStore | None = None,
        topic: FakeTopic | None = None,
        checks: FakeChecks | None = None,
        tolerates: bool = True,
        flush_size: int = 0,
        limit_bytes: int = 1 << 30,
        logs: bool = False,
        **policy: Any,
    ) -> None:
        self.pool, self.store = pool, store or MemoryStore()
        self.clock = ManualClock()
        self.random = Random(1)
        self.in_flight = InFlight()
        self.checks = checks
        self.topic = topic
        self.meter = TaskMeter(self.clock)
        self.fetching = FakeFetching()
        self.failures: list[KeyfoldError] = []
        self.crashes: list[BaseException] = []
        self.reports: list[Committed] = []
        self.roll_policy = RollPolicy(10_000_000, 60_000, flush_size)
        counts = ErrorCounts(self.meter)
        self.letters: DeadLetterTopic | None = None
        if topic is not None:
            self.letters = DeadLetterTopic(
                TOPIC,
                topic.open,
                limit_bytes=limit_bytes,
                in_flight=self.in_flight,
                counts=counts,
                clock=self.clock,
            )
        origin = DeadLetterOrigin("sink", 3, context=True)
        self.validation = RecordValidation(
            ErrorPolicy(tolerates, logs, policy.get("logs_messages", False), origin, self.letters),
            checks,
            self.fetching,
            counts,
            self.clock,
            is_read=lambda owner: owner is self.owner and owner.is_fetched,
            fail=lambda _owner, error: self.failures.append(error),
        )
        log = self._log()
        log.create(topic_id="T", cluster_id="C")
        self.claim()

    def _log(self) -> PartitionLog:
        return PartitionLog(self.store, PLACE, clock=self.clock, random=self.random, backoff=Backoff(1, 2))

    def claim(self) -> None:
        log = self._log()
        self.session = log.claim_sink()
        queue = SerialQueue(self.pool, self.crashes.append)
        retry = QueueRetry(queue, self.random, Backoff(1, 2))
        self.owner = AssignedPartition(KEY, queue, retry, log, PartitionHealth(self.clock))
        resources = WriterResources(self.store, OneTopic(), self.clock, self.in_flight, self.reports.append)
        self.owner.writer = self.writer = PartitionWriter(self.session, queue, retry, self.roll_policy, resources)
        self.owner.is_fetched = True

    def take(self, *messages: Message) -> None:
        self.validation.accept_batch(self.owner, self.validation.build_batch(messages, 100.0))

    def values(self, begin: int, *values: bytes) -> None:
        """Accept records with these values, at consecutive offsets."""
        self.take(*(message(begin + n, value) for n, value in enumerate(values)))

    def commit(self) -> Manifest:
        self.commit_later()
        return self.settle()

    def commit_later(self) -> None:
        self.writer.roll(RollReason.REQUEST)

    def settle(self) -> Manifest:
        assert self.owner.queue.wait_idle(60)
        return self.session.refresh()

    def count(self, name: str) -> float:
        return self.meter.values({})[name]


MakeValidationRig = Callable[..., ValidationRig]


@contextmanager
def validation_rigs() -> Iterator[MakeValidationRig]:
    """Yield a function that makes rigs, and close them at the end."""
    with ThreadPoolExecutor(2) as pool:
        made: list[ValidationRig] = []

        def build(**options: Any) -> ValidationRig:
            made.append(ValidationRig(pool, **options))
            return made[-1]

        yield build
        for rig in made:
            rig.owner.queue.close()
