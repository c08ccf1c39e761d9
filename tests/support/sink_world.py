"""Workers of one sink with their services, over one bucket in memory, one Kafka and one clock, without tasks."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog, SinkSession
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import FaultyStore
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.source import SourceFacts, SourceUnavailable, TopicGone
from keyfold_sink.status import TaskStatus
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder
from keyfold_sink.worker.log_end_offsets import LogEndOffsets
from keyfold_sink.worker.sink_service import SinkService
from keyfold_sink.worker.worker_registry import WorkerRegistry

FOLDER = sink_folder("topics", "users")


VALUES = {"name": "users", "bootstrap.servers": "x", "topics": "users,orders", "s3.bucket.name": "b", "tasks.max": "2"}


class FakeCluster:
    """A fake Kafka: topics with an end of each partition."""

    def __init__(self) -> None:
        self.ends = {("users", 0): 100, ("users", 1): 50, ("orders", 0): 10}
        self.earliest = 0
        self.topic_id = "T"

    def partitions(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        wanted = list(topics)
        for topic in wanted:
            if all(key[0] != topic for key in self.ends):
                raise TopicGone(f"topic {topic} does not exist")
        return [key for key in self.ends if key[0] in wanted]

    def facts(self, topic: str, partition: int) -> SourceFacts:
        return SourceFacts(self.topic_id, "C", self.earliest, self.ends[topic, partition], {})


class FakeTasks:
    """A supervisor that follows the desired state immediately."""

    def __init__(self, document: DesiredStateDocument) -> None:
        self._document = document
        self.of: tuple[TaskStatus, ...] = ()
        self.version: int | None = None
        self.is_alive = True
        self.levels: list[tuple[str, str]] = []

    def set_log_level(self, logger: str, level: str) -> None:
        self.levels.append((logger, level))

    @property
    def tasks(self) -> tuple[TaskStatus, ...]:
        return self.of

    @property
    def orders_version(self) -> int:
        if self.version is not None:
            return self.version
        return 0 if self._document.known is None else self._document.known.version


class Worker:
    """A worker with its service."""

    def __init__(self, world: World, name: str) -> None:
        self.faulty = FaultyStore(world.store)
        random = Random(int.from_bytes(name.encode()))
        clock = world.clock
        self.document = DesiredStateDocument(self.faulty, FOLDER, clock, random)
        self.registry = WorkerRegistry(self.faulty, FOLDER, self.document, name, clock=clock, random=random)
        self.tasks = FakeTasks(self.document)
        self.service = SinkService(
            SinkOptions.parse({**VALUES, **world.values}),
            document=self.document,
            registry=self.registry,
            tasks=self.tasks,
            log_end_offsets=LogEndOffsets(self.faulty, "topics", world.cluster, clock, random),
            ask_cluster_id=world.ask_cluster_id,
            clock=clock,
            version="0.1",
        )

    def turn(self) -> None:
        self.document.refresh()
        self.registry.update(self.service.own_status)


class World:
    """A bucket, a Kafka, a clock, and workers."""

    def __init__(self, **values: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.cluster = FakeCluster()
        self.values = {key.replace("_", "."): value for key, value in values.items()}
        self.away = False

    def ask_cluster_id(self) -> str:
        if self.away:
            raise SourceUnavailable("no answer")
        return "C"

    def workers(self, *names: str) -> list[Worker]:
        made = [Worker(self, name) for name in names]
        for _ in range(2):
            for worker in made:
                worker.turn()
            self.clock.advance(6000)
        return made

    def log(self, topic: str = "users", partition: int = 0) -> PartitionLog:
        return PartitionLog(self.store, Place("topics", topic, partition), clock=self.clock, random=Random(3))

    def written_to(self, next_offset: int, topic: str = "users", partition: int = 0) -> SinkSession:
        log = self.log(topic, partition)
        log.create(topic_id="T", cluster_id="C")
        session = log.claim_sink()
        session.advance(next_offset)
        return session

    def manifest(self, topic: str = "users", partition: int = 0) -> Manifest:
        return self.log(topic, partition).load().manifest
