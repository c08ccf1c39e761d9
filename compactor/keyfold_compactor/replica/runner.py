"""All partitions of a replica: each in rounds of its own, once or for ever.

A partition that fails waits by its own backoff and holds up no other. Topics and partitions that appear are taken in.
What was asked (paused, which topics) is read again every few seconds; while that cannot be read, what is known holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Self

import structlog

from keyfold.clock import Clock
from keyfold.errors import KeyfoldError
from keyfold.log import catalog
from keyfold.log.commit import Patience
from keyfold.log.names import Place
from keyfold_compactor.replica.board import Board
from keyfold_compactor.replica.documents import Enablement
from keyfold_compactor.replica.link import Desk, Link, Orders, ReplicaSettings
from keyfold_compactor.replica.round import Rounds, Tools
from keyfold_compactor.replica.schemas import SchemaCourier
from keyfold_compactor.replica.states import PartitionState, State
from keyfold_compactor.replica.tally import Tally
from keyfold_compactor.replica.transfer import Transfer
from keyfold_compactor.replica.worker import Worker

Publish = Callable[[Sequence[PartitionState]], None]

LOOK_AT_ORDERS_S: Final = 2.0
PUBLISH_S: Final = 2.0
PUBLISH_ANYWAY_S: Final = 60.0
"""States are published so often although nothing has changed: whoever reads them sees that somebody is there."""
ENABLEMENT_KEPT_S: Final = 1.0
TICK_S: Final = 0.1

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How all partitions stand after a run. `error`: why the run as a whole could not be done, empty if it could."""

    states: tuple[PartitionState, ...] = ()
    error: str = ""
    is_paused: bool = False

    @property
    def is_in_sync(self) -> bool:
        """Whether nothing is left to send."""
        return not self.error and all(s.state is State.IN_SYNC for s in self.states)

    @property
    def failed(self) -> tuple[PartitionState, ...]:
        """Partitions whose last round ended with an error."""
        return tuple(s for s in self.states if s.has_failed)


class Runner:
    """Replicates what a registration covers; close it. After it was told to stop it is of no more use.

    `publish` is given all states: at most every 2 s while some change, and every minute anyway. `transfer` copies;
    without one the runner makes its own, with `settings.threads` threads.
    """

    def __init__(
        self,
        link: Link,
        desk: Desk,
        settings: ReplicaSettings,
        *,
        clock: Clock,
        random: Random,
        transfer: Transfer | None = None,
        tally: Tally | None = None,
        publish: Publish = lambda _states: None,
    ) -> None:
        self._link = link
        self._desk = desk
        self._settings = settings
        self._transfer = transfer or _transfer(link, settings, clock, random)
        self._clock = clock
        self._random = random
        self._publish_states = publish
        self.tally = Tally() if tally is None else tally
        self._patience = Patience(clock, Random(random.getrandbits(64)), patience_s=settings.patience_s)
        self._board = Board()
        self._enablement = _Kept(desk.enablement, clock)
        courier = SchemaCourier(link, self._transfer, self.tally)
        self._tools = Tools(self._transfer, courier, self.tally, self._enablement.read, clock)
        self._workers: dict[Place, Worker] = {}
        self._orders: Orders | None = None
        self._orders_at_s = self._places_at_s = self._published_at_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is under way, soon."""
        self._transfer.close()

    def states(self) -> tuple[PartitionState, ...]:
        """How each partition stands now, by topic and partition. Any thread may ask."""
        return self._board.states()

    # Once

    def once(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        topic: str | None = None,
        partition: int | None = None,
        resync: bool = False,
    ) -> RunSummary:
        """One round of each partition, and of those where the source goes on meanwhile a few more.

        `resync` accepts that the source has purged tombstones which the replica never had, or is another log than the
        replica follows. A paused replica is left alone. Raises nothing of the stores: see `RunSummary`.
        """
        try:
            orders = self._desk.orders()
            if orders is None:
                return RunSummary(error=f"replica {self._link.name} is not registered as it was any more")
            if orders.paused:
                self._pause()
                return RunSummary(self.states(), is_paused=True)
            self._patience.repeat(lambda: self._discover(orders))
        except KeyfoldError as error:
            return RunSummary(self.states(), str(error))
        chosen = {
            place: worker
            for place, worker in self._workers.items()
            if topic in {None, place.topic} and partition in {None, place.partition}
        }
        self._run_all(list(chosen.values()), should_stop, resync=resync)
        self._publish()
        return RunSummary(tuple(s for s in self.states() if s.place in chosen))

    def _run_all(self, workers: Sequence[Worker], should_stop: Callable[[], bool], *, resync: bool) -> None:
        if not workers:
            return
        with ThreadPoolExecutor(min(self._settings.threads, len(workers)), "keyfold-replica") as pool:
            left: set[Future[None]] = {pool.submit(w.run, resync=resync) for w in workers}
            while left:
                done, left = wait(left, timeout=TICK_S)
                for future in done:
                    future.result()  # no error gets out of a worker; what does ends the process
                self._publish_if_changed()
                if left and should_stop():
                    pool.shutdown(wait=False, cancel_futures=True)
                    self.close()
                    return

    # For ever

    def loop(self, stop: threading.Event) -> None:
        """Rounds until `stop`, or until the registration is removed or stands for something else."""
        under_way: dict[Place, Future[None]] = {}
        pool = ThreadPoolExecutor(self._settings.threads, "keyfold-replica")
        try:
            while not stop.is_set():
                if not self._look_at_orders():
                    return
                for place in [p for p, future in under_way.items() if future.done()]:
                    under_way.pop(place).result()  # no error gets out of a worker; what does ends the process
                self._drop_uncovered(under_way)
                for place, worker in self._due(under_way):
                    under_way[place] = pool.submit(worker.run)
                self._publish_if_changed()
                stop.wait(TICK_S)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if stop.is_set():
                self.close()
            pool.shutdown(wait=True)
            self._publish()

    def _look_at_orders(self) -> bool:
        """Read what was asked, if it is time, and follow it. False: there is nothing to do here any more."""
        now_s = self._clock.monotonic_s()
        if now_s < self._orders_at_s + LOOK_AT_ORDERS_S:
            return True
        self._orders_at_s = now_s
        try:
            orders = self._desk.orders()
        except KeyfoldError as error:
            log.warning("orders were not read", replica=self._link.name, error=str(error))
            return True
        if orders is None:
            return False
        was_paused = self._orders is not None and self._orders.paused
        self._orders = orders
        if orders.paused:
            self._pause()
        else:
            self._keep_discovering(orders, at_once=was_paused)
        return True

    def _keep_discovering(self, orders: Orders, *, at_once: bool) -> None:
        now_s = self._clock.monotonic_s()
        if at_once:
            for worker in self._workers.values():
                worker.due_at_s = now_s
        if not at_once and now_s < self._places_at_s + self._settings.discover_ms / 1000:
            return
        try:
            self._discover(orders)
            self._places_at_s = now_s
        except KeyfoldError as error:
            log.warning("topics were not listed", replica=self._link.name, error=str(error))

    def _due(self, under_way: dict[Place, Future[None]]) -> list[tuple[Place, Worker]]:
        if self._orders is None or self._orders.paused:
            return []
        now_s = self._clock.monotonic_s()
        found = [(p, w) for p, w in self._workers.items() if p not in under_way and w.due_at_s <= now_s]
        return sorted(found, key=lambda pair: pair[1].due_at_s)

    def _drop_uncovered(self, under_way: dict[Place, Future[None]]) -> None:
        if self._orders is None:
            return
        for place in [p for p in self._workers if p not in under_way and not self._orders.covers(p.topic)]:
            del self._workers[place]
            self._board.drop(place)

    # Both

    def _discover(self, orders: Orders) -> None:
        """Take in the partitions that there are; one that has gone stays, and its round says what is wrong."""
        source = self._link.source
        for topic in catalog.topics(source.store, source.topics_dir):
            if not orders.covers(topic):
                continue
            for partition in catalog.partitions(source.store, source.topics_dir, topic):
                place = source.place(topic, partition)
                if place not in self._workers:
                    self._workers[place] = self._worker(topic, partition)
                    self._board.change(place, lambda state: state)

    def _worker(self, topic: str, partition: int) -> Worker:
        def dice() -> Random:
            return Random(self._random.getrandbits(64))

        rounds = Rounds(self._link, topic, partition, self._settings, self._tools, dice())
        return Worker(
            rounds,
            self._board,
            self._settings,
            hold_name=self._link.hold_name,
            tally=self.tally,
            clock=self._clock,
            random=dice(),
        )

    def _pause(self) -> None:
        for state in self.states():
            self._board.change(state.place, lambda s: replace(s, state=State.PAUSED))

    def _publish_if_changed(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._published_at_s + PUBLISH_S:
            return
        if self._board.take_changes() or now_s >= self._published_at_s + PUBLISH_ANYWAY_S:
            self._publish()

    def _publish(self) -> None:
        self._published_at_s = self._clock.monotonic_s()
        self._publish_states(self.states())


def _transfer(link: Link, settings: ReplicaSettings, clock: Clock, random: Random) -> Transfer:
    return Transfer(
        link.source.store,
        link.replica.store,
        topics_dir=link.replica.topics_dir,
        patience=Patience(clock, Random(random.getrandbits(64)), patience_s=settings.patience_s),
        threads=settings.threads,
    )


class _Kept:
    """The replica's enablement, read once for all partitions that ask in the same second."""

    def __init__(self, read: Callable[[], Enablement], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Enablement | None = None
        self._read_at_s = float("-inf")

    def read(self) -> Enablement:
        """Raises what reading it raises; then the next one asks again."""
        with self._lock:
            if self._found is None or self._clock.monotonic_s() >= self._read_at_s + ENABLEMENT_KEPT_S:
                self._found = None
                self._found = self._read()
                self._read_at_s = self._clock.monotonic_s()
            return self._found
