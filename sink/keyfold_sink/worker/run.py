"""Build and run a worker: store, desired state, worker registry, REST API and supervisor.

    main thread              the supervisor's loop
    keyfold-desired-state    reads the desired state every 2 s
    keyfold-worker-registry  writes this worker's status, removes workers that are gone
    REST's threads           call the service

A thread that waits for the store blocks no other thread. Tasks are started once the desired state is known, so that a
worker that starts while the sink is paused or stopped does not read. A worker that starts waits for a store that does
not answer, and ends if the store refuses its requests. Later refusals end nothing: rights may be restored, and
credentials are looked up again (`keyfold_sink.write.credential_renewal`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from random import Random

import structlog

from keyfold.errors import KeyfoldError
from keyfold.runtime.clock import Clock
from keyfold.runtime.sockets import Sockets, listening
from keyfold.store.api import ObjectStore
from keyfold.store.location import open_store
from keyfold_sink.config.connect_definitions import CONNECTOR_CLASS, ConnectDefinitions
from keyfold_sink.config.option_groups import REST
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.consumer import admin_config
from keyfold_sink.kafka.source import SourceFacts
from keyfold_sink.metrics.collector import SinkMetrics, own_port
from keyfold_sink.progress import SinkProgress
from keyfold_sink.status import UNKNOWN, RunState, TaskStatus
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder
from keyfold_sink.worker.log_end_offsets import LogEndOffsets
from keyfold_sink.worker.sink_service import SinkService
from keyfold_sink.worker.spawn import TaskProcess, first_line, task_command
from keyfold_sink.worker.supervisor import Supervisor
from keyfold_sink.worker.task_process import STOP_SLACK_S, ProcessHandle, TaskLimits
from keyfold_sink.worker.worker_registry import WorkerRegistry, leave_quietly, worker_id
from keyfold_sink.write.credential_renewal import RenewingStore, location_now


@dataclass(frozen=True, slots=True)
class WorkerTimings:
    """Intervals and time-outs of a worker's own threads."""

    desired_state_every_s: float = 2.0
    """Interval at which the desired state is read."""
    registry_every_s: float = 0.5
    """Interval at which the worker checks whether to write its status."""
    after_error_s: float = 5.0
    """Delay after a failed update of the worker registry."""
    leave_s: float = 5.0
    """Time limit for a worker that ends to remove itself from the registry."""


def run_worker(
    options: SinkOptions,
    values: Mapping[str, str],
    arguments: Sequence[str],
    *,
    stop: threading.Event,
    clock: Clock,
    random: Random,
    progress: SinkProgress,
) -> None:
    """Run a worker until `stop` is set. `arguments` are those of `keyfold sink run`, `values` the configuration.

    Raise `TasksFailed` if tasks failed, another `KeyfoldError` if the worker could not start.
    """
    opened = open_store(options.location)
    store = RenewingStore(opened, lambda: location_now(options), clock, waits=False)
    proven = threading.Event()
    try:
        spawn = spawner(values, arguments, proven.is_set, progress)
        SinkWorker(options, store, spawn, clock, random, progress, proven=proven, renew=store.renew).run(stop)
    finally:
        opened.close()


def run_until_caught_up(
    options: SinkOptions,
    values: Mapping[str, str],
    arguments: Sequence[str],
    *,
    stop: threading.Event,
    clock: Clock,
    random: Random,
    progress: SinkProgress,
) -> None:
    """Run tasks until they end by themselves, without desired state and REST API. Raise `TasksFailed`."""
    Supervisor(
        options.tasks_max,
        spawner(values, arguments, progress=progress),
        limits(options),
        clock=clock,
        random=random,
        once=True,
        on_status=progress.reported,
        on_round=lambda tasks, _replaced: progress.show(tasks),
    ).run_once(stop)


def spawner(
    values: Mapping[str, str],
    arguments: Sequence[str],
    is_proven: Callable[[], bool] = lambda: False,
    progress: SinkProgress | None = None,
) -> Callable[[int, bool], ProcessHandle]:
    """Return the function that starts tasks.

    `is_proven` says whether a task has worked before, so that refusals by the store are retried. If `progress` is
    shown, it prints what tasks print.
    """
    line = first_line(values)
    say = progress.say if progress is not None and progress.is_shown else None
    return lambda number, paused: TaskProcess(
        task_command(arguments, number, paused=paused, proven=is_proven()), line, say
    )


def limits(options: SinkOptions) -> TaskLimits:
    """Return the time limits for tasks."""
    return TaskLimits(options.task_hang_timeout_ms / 1000, options.shutdown_timeout_ms / 1000 + STOP_SLACK_S)


class SinkWorker:
    """One worker with all of its parts."""

    def __init__(
        self,
        options: SinkOptions,
        store: ObjectStore,
        spawn: Callable[[int, bool], ProcessHandle],
        clock: Clock,
        random: Random,
        progress: SinkProgress,
        *,
        proven: threading.Event | None = None,
        renew: Callable[[], None] = lambda: None,
        timings: WorkerTimings | None = None,
    ) -> None:
        """Build the parts.

        `proven` is set when a task works for the first time. `renew` looks up credentials again, and may block.
        """
        self._options = options
        self._timings = timings or WorkerTimings()
        self._proven = proven or threading.Event()
        self._store = store
        self._clock = clock
        folder = sink_folder(options.topics_dir, options.name)
        self._document = DesiredStateDocument(store, folder, clock, random)
        self._registry = WorkerRegistry(
            store, folder, self._document, options.worker_id or "", clock=clock, random=random
        )
        self._metrics = SinkMetrics(
            connector=options.name,
            connector_class=options.connector_class or CONNECTOR_CLASS,
            version=version("keyfold"),
            clock=clock,
            state=self._state,
            place=self._place,
            all_partitions=options.metrics_all_partitions,
        )
        self._progress = progress
        self._supervisor = Supervisor(
            options.tasks_max,
            spawn,
            limits(options),
            clock=clock,
            random=random,
            renew=lambda: threading.Thread(target=renew, name="keyfold-renew", daemon=True).start(),
            on_status=self._on_status,
            on_round=self._on_round,
        )
        cluster = LazyCluster(lambda: AdminSource(admin_config(options), clock))
        self.service = SinkService(
            options,
            document=self._document,
            registry=self._registry,
            tasks=self._supervisor,
            log_end_offsets=LogEndOffsets(store, options.topics_dir, cluster, clock, random),
            ask_cluster_id=cluster.cluster_id,
            clock=clock,
            version=version("keyfold"),
        )
        self._refused: KeyfoldError | None = None
        self._events = structlog.get_logger("keyfold.sink")

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set, or until every task has failed and there is no REST API to restart one."""
        with listening(self._options.listeners, REST) as sockets:
            self._registry.worker_id = worker_id(self._options, sockets.port)
            with (
                self._served(sockets) as addresses,
                own_port(self._metrics, self._options.metrics_host, self._options.metrics_port),
                self._background(stop),
            ):
                self._progress.say(*(f"REST: {address}" for address in addresses))
                self._supervisor.run(
                    lambda: self._document.known,
                    lambda: self._registry.worker_id,
                    stop,
                    ends_when_failed=not sockets.listening,
                )
        if self._refused is not None:
            raise self._refused

    @contextmanager
    def _served(self, sockets: Sockets) -> Iterator[Sequence[str]]:
        """Serve the REST API if there are listeners, and yield its addresses."""
        if not sockets.listening:
            yield ()
            return
        from keyfold_sink.rest.server import serve  # loads a web server, so only if it is needed

        definitions = ConnectDefinitions(self._options)
        with serve(
            self.service, sockets, metrics=self._metrics.text, definitions=definitions, clock=self._clock
        ) as server:
            yield server.addresses

    @contextmanager
    def _background(self, stop: threading.Event) -> Iterator[None]:
        """Run the threads that talk to the store. After the tasks have ended, remove this worker from the registry."""
        ended = threading.Event()
        threads = [
            threading.Thread(
                target=self._follow_desired_state, args=(stop, ended), name="keyfold-desired-state", daemon=True
            ),
            threading.Thread(target=self._update_registry, args=(ended,), name="keyfold-worker-registry", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            leaving = threading.Thread(target=self._leave, args=(threads,), name="keyfold-leave", daemon=True)
            leaving.start()
            leaving.join(self._timings.leave_s)

    def _follow_desired_state(self, stop: threading.Event, ended: threading.Event) -> None:
        outage = _Outage("the sink's desired state")
        while not ended.is_set():
            try:
                self._document.refresh()
                outage.over()
            except Exception as error:  # noqa: BLE001 - after a defect here the worker would follow no requests
                outage.met(error)
                if isinstance(error, KeyfoldError) and not error.retriable and self._document.known is None:
                    self._refused = error
                    stop.set()
                    return
            ended.wait(self._timings.desired_state_every_s)

    def _update_registry(self, ended: threading.Event) -> None:
        outage = _Outage("the worker registry")
        while not ended.is_set():
            try:
                self._registry.update(self.service.own_status)
                outage.over()
                ended.wait(self._timings.registry_every_s)
            except Exception as error:  # noqa: BLE001 - as above
                outage.met(error)
                ended.wait(self._timings.after_error_s)

    def _leave(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:  # an object that they write after this worker has left would stay
            thread.join()
        leave_quietly(self._registry)

    def _on_status(self, task: TaskStatus) -> None:
        self._metrics.on_status(task)
        self._progress.reported(task)

    def _on_round(self, tasks: tuple[TaskStatus, ...], replaced: Mapping[str, int]) -> None:
        if any(task.state is RunState.RUNNING for task in tasks):
            self._proven.set()
        self._metrics.observe(tasks, replaced)
        self._progress.show(tasks)

    def _state(self) -> RunState:
        known = self._document.known
        return RunState.RUNNING if known is None else known.state

    def _place(self) -> tuple[int, int]:
        slot = self._registry.slot
        return (0 if slot == UNKNOWN else slot) * self._options.tasks_max, self._supervisor.orders_version


class LazyCluster:
    """Kafka's admin client, made at the first request: an idle client would keep trying to connect."""

    def __init__(self, make: Callable[[], AdminSource]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: AdminSource | None = None

    def cluster_id(self) -> str:
        """See `AdminSource.cluster_id`."""
        return self._source().cluster_id()

    def partitions(self, topics: Iterable[str]) -> list[TopicPartitionKey]:
        """See `AdminSource.partitions`."""
        return self._source().partitions(topics)

    def facts(self, topic: str, partition: int) -> SourceFacts:
        """See `AdminSource.facts`."""
        return self._source().facts(topic, partition)

    def _source(self) -> AdminSource:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


class _Outage:
    """Log when an operation begins to fail, when its error changes, and when it succeeds again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said: type[Exception] | None = None
        self._events = structlog.get_logger("keyfold.sink")

    def met(self, error: Exception) -> None:
        if type(error) is not self._said:
            is_passing = isinstance(error, KeyfoldError) and error.retriable
            event = "waiting for an answer" if is_passing else "request failed; retrying"
            defect = None if isinstance(error, KeyfoldError) else error
            self._events.warning(event, about=self._what, error=str(error), exc_info=defect)
        self._said = type(error)

    def over(self) -> None:
        if self._said:
            self._events.info("works again", about=self._what)
        self._said = None
