"""A worker from its options: the store, the orders, the roll call, REST, and the supervisor in the middle.

    main thread          the supervisor's rounds
    keyfold-orders       looks at the orders every 2 s
    keyfold-roll-call    writes this worker's status, clears away workers that are gone
    REST's threads       ask the service

The threads that wait for the store hold nothing up but themselves. Tasks are started once the orders are known, so that
a worker that starts while the sink is paused or stopped starts so; a store that does not answer is waited for, and its
refusal ends a worker that has not begun. Later refusals end nothing: rights may come back, and credentials are looked
up anew (`keyfold_sink.writing.access`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from random import Random

import structlog

from keyfold.clock import Clock
from keyfold.errors import KeyfoldError
from keyfold.store.api import ObjectStore
from keyfold.store.location import open_store
from keyfold_sink.config.connect_definitions import CONNECTOR_CLASS, Definitions
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.kafka.consumer import admin_config
from keyfold_sink.kafka.source import SourceFacts
from keyfold_sink.metrics.registry import SinkMetrics, own_port
from keyfold_sink.progress import Progress
from keyfold_sink.rest.sockets import Sockets, listening, worker_id
from keyfold_sink.running.children import STOP_SLACK_S, Limits, Process
from keyfold_sink.running.ends import Ends
from keyfold_sink.running.orders import OrderBook, sink_folder
from keyfold_sink.running.roll_call import RollCall, leave_quietly
from keyfold_sink.running.sink_service import SinkService
from keyfold_sink.running.spawn import TaskProcess, first_line, task_command
from keyfold_sink.running.supervisor import Supervisor
from keyfold_sink.status import UNKNOWN, State, TaskStatus
from keyfold_sink.writing.access import RenewingStore, location_now
from keyfold_sink.writing.batch import TopicPartitionKey


@dataclass(frozen=True, slots=True)
class WorkerTimings:
    """The intervals and time-outs of a worker's own threads."""

    orders_every_s: float = 2.0
    """The sink's orders are read this often."""
    roll_call_every_s: float = 0.5
    """The worker looks this often whether its status is to be written."""
    after_error_s: float = 5.0
    """A roll call that failed is tried again after this time."""
    leave_s: float = 5.0
    """The store has this long to let the worker take itself off the roll."""


def run_worker(
    options: SinkOptions,
    values: Mapping[str, str],
    arguments: Sequence[str],
    *,
    stop: threading.Event,
    clock: Clock,
    random: Random,
    progress: Progress,
) -> None:
    """Run a worker until `stop` is set. `arguments` are those of `keyfold sink run`, `values` the configuration.

    Raises `TasksFailed`; `KeyfoldError` for what keeps a worker from beginning.
    """
    opened = open_store(options.location)
    store = RenewingStore(opened, lambda: location_now(options), clock, waits=False)
    proven = threading.Event()
    try:
        spawn = spawner(values, arguments, proven.is_set)
        Worker(options, store, spawn, clock, random, progress, proven=proven, renew=store.renew).run(stop)
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
    progress: Progress,
) -> None:
    """Run tasks that end by themselves; no orders, no REST. Raises `TasksFailed`."""
    Supervisor(
        options.tasks_max,
        spawner(values, arguments),
        limits(options),
        clock=clock,
        random=random,
        once=True,
        seen=lambda tasks, _replaced: progress.reported(tasks),
    ).run_once(stop)


def spawner(
    values: Mapping[str, str], arguments: Sequence[str], is_proven: Callable[[], bool] = lambda: False
) -> Callable[[int, bool], Process]:
    """How tasks are started. `is_proven`: whether one has worked already, so that the store's refusals may pass."""
    line = first_line(values)
    return lambda number, paused: TaskProcess(task_command(arguments, number, paused=paused, proven=is_proven()), line)


def limits(options: SinkOptions) -> Limits:
    """The patience with tasks."""
    return Limits(options.task_hang_timeout_ms / 1000, options.shutdown_timeout_ms / 1000 + STOP_SLACK_S)


class Worker:
    """All parts of one worker."""

    def __init__(
        self,
        options: SinkOptions,
        store: ObjectStore,
        spawn: Callable[[int, bool], Process],
        clock: Clock,
        random: Random,
        progress: Progress,
        *,
        proven: threading.Event | None = None,
        renew: Callable[[], None] = lambda: None,
        timings: WorkerTimings | None = None,
    ) -> None:
        """`proven` is set when a task works for the first time; `renew` looks up credentials anew, and may wait."""
        self._options = options
        self._timings = timings or WorkerTimings()
        self._proven = proven or threading.Event()
        self._store = store
        self._clock = clock
        folder = sink_folder(options.topics_dir, options.name)
        self._book = OrderBook(store, folder, clock, random)
        self._roll_call = RollCall(store, folder, self._book, options.worker_id or "", clock=clock, random=random)
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
            heard=self._metrics.heard,
            seen=self._seen,
        )
        cluster = LazyCluster(lambda: AdminSource(admin_config(options), clock))
        self.service = SinkService(
            options,
            book=self._book,
            roll_call=self._roll_call,
            tasks=self._supervisor,
            ends=Ends(store, options.topics_dir, cluster, clock, random),
            ask_cluster_id=cluster.cluster_id,
            clock=clock,
            version=version("keyfold"),
        )
        self._refused: KeyfoldError | None = None
        self._events = structlog.get_logger("keyfold.sink")

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, or there is nothing left to do."""
        with listening(self._options) as sockets:
            self._roll_call.worker_id = worker_id(self._options, sockets)
            with (
                self._served(sockets) as addresses,
                own_port(self._metrics, self._options.metrics_host, self._options.metrics_port),
                self._background(stop),
            ):
                self._progress.say(*(f"REST: {address}" for address in addresses))
                self._supervisor.run(
                    lambda: self._book.known,
                    lambda: self._roll_call.worker_id,
                    stop,
                    ends_when_failed=not sockets.listening,
                )
        if self._refused is not None:
            raise self._refused

    @contextmanager
    def _served(self, sockets: Sockets) -> Iterator[Sequence[str]]:
        """REST, where there is something to listen on; its addresses."""
        if not sockets.listening:
            yield ()
            return
        from keyfold_sink.rest.server import serve  # a web server: only who listens has it loaded

        definitions = Definitions(self._options)
        with serve(
            self.service, sockets, metrics=self._metrics.text, definitions=definitions, clock=self._clock
        ) as server:
            yield server.addresses

    @contextmanager
    def _background(self, stop: threading.Event) -> Iterator[None]:
        """The threads that talk to the store; after the tasks have ended, this worker is taken off the roll."""
        ended = threading.Event()
        threads = [
            threading.Thread(target=self._follow_orders, args=(stop, ended), name="keyfold-orders", daemon=True),
            threading.Thread(target=self._answer_roll_call, args=(ended,), name="keyfold-roll-call", daemon=True),
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

    def _follow_orders(self, stop: threading.Event, ended: threading.Event) -> None:
        trouble = _Trouble("the sink's orders")
        while not ended.is_set():
            try:
                self._book.look()
                trouble.over()
            except Exception as error:  # noqa: BLE001 - a defect here must not leave the sink deaf
                trouble.met(error)
                if isinstance(error, KeyfoldError) and not error.retriable and self._book.known is None:
                    self._refused = error
                    stop.set()
                    return
            ended.wait(self._timings.orders_every_s)

    def _answer_roll_call(self, ended: threading.Event) -> None:
        trouble = _Trouble("the roll call of workers")
        while not ended.is_set():
            try:
                self._roll_call.turn(self.service.own_status)
                trouble.over()
                ended.wait(self._timings.roll_call_every_s)
            except Exception as error:  # noqa: BLE001 - as above
                trouble.met(error)
                ended.wait(self._timings.after_error_s)

    def _leave(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:  # what they write after this worker has left would stay
            thread.join()
        leave_quietly(self._roll_call)

    def _seen(self, tasks: tuple[TaskStatus, ...], replaced: Mapping[str, int]) -> None:
        if any(task.state is State.RUNNING for task in tasks):
            self._proven.set()
        self._metrics.observe(tasks, replaced)
        self._progress.reported(tasks)

    def _state(self) -> State:
        known = self._book.known
        return State.RUNNING if known is None else known.state

    def _place(self) -> tuple[int, int]:
        slot = self._roll_call.slot
        return (0 if slot == UNKNOWN else slot) * self._options.tasks_max, self._supervisor.orders_version


class LazyCluster:
    """Kafka, asked by a client that is made when somebody asks: it would try to connect for ever."""

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


class _Trouble:
    """Says when something does not work, when that becomes something else, and when it works again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said: type[Exception] | None = None
        self._events = structlog.get_logger("keyfold.sink")

    def met(self, error: Exception) -> None:
        if type(error) is not self._said:
            is_passing = isinstance(error, KeyfoldError) and error.retriable
            event = "waiting for an answer" if is_passing else "does not work now"
            defect = None if isinstance(error, KeyfoldError) else error
            self._events.warning(event, about=self._what, error=str(error), exc_info=defect)
        self._said = type(error)

    def over(self) -> None:
        if self._said:
            self._events.info("works again", about=self._what)
        self._said = None
