"""Which workers a sink has, and what each says of its tasks.

    <topics.dir>/_sinks/<name>/workers/<worker_id>.json      one object a worker, written by it alone

A worker writes its status when something has changed, at most every 5 s (what people wait for: after 1 s), at least
every 30 s. One that has not for 90 s is gone: the others forget it, delete its object and free its slot, so that
nothing piles up where pods come and go under new names. Who was gone by mistake (its process was stopped, its network
cut) writes again, takes a slot again, and is back.

How old a status is when a worker first sees it, the store's times tell. From then on the worker counts by its own
monotonic clock, and what has changed since it looked last is no older than that look. So a store whose clock jumps
makes nobody gone who writes, and hides nobody who does not.

A worker is known by its id. Should a second process come with the same one, the object tells by the *incarnation* in
it: the process that came last keeps the id (it is a pod that was started again), the other one goes on under another.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import orjson
import structlog

from keyfold.clock import Clock
from keyfold.errors import (
    AccessDenied,
    AlreadyExists,
    ConditionUndecided,
    KeyfoldError,
    ObjectNotFound,
    ObjectTooLarge,
    PreconditionFailed,
)
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, Create, ObjectInfo, ObjectStore, Update
from keyfold.store.documents import DOCUMENT_BYTES_MAX
from keyfold_sink.running.orders import OrderBook, free_slots, safe_name, take_slot
from keyfold_sink.status import UNKNOWN, WorkerStatus, dump, load_worker

GONE_AFTER_MS: Final = 90_000
_AT_MOST_EVERY_S: Final = 5.0
_URGENT_AFTER_S: Final = 1.0
_AT_LEAST_EVERY_S: Final = 30.0
_SWEEP_EVERY_S: Final = 30.0
_LOOK_AGAIN_S: Final = 1.0
_READERS: Final = 8
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class _Seen:
    etag: str
    status: WorkerStatus


@dataclass(frozen=True, slots=True)
class _Watched:
    """One version of another worker's object: how old it was when it was first seen, and when that was (monotonic)."""

    etag: str
    age_ms: int
    since_s: float

    def silent_ms(self, now_s: float) -> int:
        return self.age_ms + round((now_s - self.since_s) * 1000)


class RollCall:
    """One worker's part in the roll call. `turn` belongs to one thread; everything else to any."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        book: OrderBook,
        worker_id: str,
        *,
        clock: Clock,
        random: Random,
    ) -> None:
        self.worker_id = worker_id
        self._store = store
        self._prefix = f"{folder}workers/"
        self._book = book
        self._clock = clock
        self._incarnation = f"{random.getrandbits(64):016x}"
        self._etag: str | None = None
        self._written: WorkerStatus | None = None
        self._written_s = 0.0
        self._swept_s: float | None = None
        self._lock = threading.Lock()
        self._others: dict[str, _Seen] = {}
        self._watched: dict[str, _Watched] = {}
        self._listed_s: float | None = None
        self._looked_s: float | None = None
        self._events = structlog.get_logger("keyfold.sink")

    @property
    def slot(self) -> int:
        """The worker's place; `UNKNOWN` before the store has given it one."""
        orders = self._book.known
        return UNKNOWN if orders is None else orders.slots.get(self.worker_id, UNKNOWN)

    def turn(self, status: Callable[[], WorkerStatus]) -> None:
        """Write what is due, see to the slot, and clear away who is gone. Raises what the store raises."""
        self._write_if_due(status())
        if self.slot == UNKNOWN:
            # After the status, or somebody would free it again.
            self._book.change(take_slot(self.worker_id))
            self._write_now(status())
        now_s = self._clock.monotonic_s()
        if self._swept_s is None or now_s - self._swept_s >= _SWEEP_EVERY_S:
            self._sweep()
            self._swept_s = now_s

    def others(self, *, fresh: bool = False) -> Sequence[WorkerStatus]:
        """The other workers that are alive, by id. At most a second old, or fresh where that is asked for.

        Raises `StoreUnavailable` when the store does not answer; `known_others` then has those that were seen last.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            if fresh or self._looked_s is None or now_s - self._looked_s >= _LOOK_AGAIN_S:
                self._look()
                self._looked_s = self._clock.monotonic_s()
            return self.known_others()

    def known_others(self) -> Sequence[WorkerStatus]:
        """The other workers as they were seen last, without a question to the store."""
        return [seen.status for _, seen in sorted(self._others.items())]

    def silent_ms(self, worker_id: str) -> int:
        """For how long another worker has written nothing; 0 for one that was not seen."""
        watched = self._watched.get(self._key(worker_id))
        return 0 if watched is None else watched.silent_ms(self._clock.monotonic_s())

    def leave(self) -> None:
        """Take this worker off: its tasks have ended. Raises what the store raises; the others then notice in time."""
        self._book.change(free_slots([self.worker_id]))
        self._store.delete(self._key(self.worker_id))

    # Writing

    def _write_if_due(self, status: WorkerStatus) -> None:
        waited_s = self._clock.monotonic_s() - self._written_s
        if self._written is None or waited_s >= _wait_s(self._written, status):
            self._write_now(status)

    def _write_now(self, status: WorkerStatus) -> None:
        self._written = self._write(status)
        self._written_s = self._clock.monotonic_s()

    def _write(self, status: WorkerStatus) -> WorkerStatus:
        """Write over whatever is there; what was written."""
        key = self._key(status.worker_id)
        for _ in range(_TRIES):
            data = orjson.dumps({"incarnation": self._incarnation, "status": orjson.Fragment(dump(status))})
            mode = Create() if self._etag is None else Update(self._etag)
            try:
                self._etag = self._store.put(self._key(status.worker_id), data, mode).etag
            except (AlreadyExists, PreconditionFailed):
                status = self._meet(status)
            except ObjectNotFound:  # it was cleared away: this process slept, or the network did
                self._etag = None
            else:
                return status
        raise ConditionUndecided(key, f"was changed by others {_TRIES} times in a row")

    def _meet(self, status: WorkerStatus) -> WorkerStatus:
        """My object has changed: by a request of mine whose answer was lost, or by another process with my id."""
        try:
            blob = self._store.get(self._key(self.worker_id), DOCUMENT_BYTES_MAX)
        except ObjectNotFound:
            self._etag = None
            return status
        took_over = self._etag is not None  # I have written it before, so whoever has since came after me
        if took_over and _incarnation(blob.data) != self._incarnation:
            return self._rename(status)
        self._etag = blob.etag
        return status

    def _rename(self, status: WorkerStatus) -> WorkerStatus:
        taken, self.worker_id = self.worker_id, f"{self.worker_id}~{self._incarnation[:6]}"
        self._etag = None
        self._events.warning("another process uses this worker's id", worker_id=taken, now=self.worker_id)
        return replace(status, worker_id=self.worker_id, slot=UNKNOWN)

    # Looking

    def _look(self) -> None:
        """Find who is alive. Statuses that have not changed are not fetched again."""
        self._book.look()  # for the store's time
        alive, _ = self._listed()
        known = {key: seen for key, seen in self._others.items() if key in alive and alive[key].etag == seen.etag}
        wanted = [key for key in alive if key not in known]
        if wanted:
            with ThreadPoolExecutor(min(_READERS, len(wanted)), thread_name_prefix="keyfold-roll-call") as pool:
                found = zip(wanted, pool.map(self._read, wanted), strict=True)
                known |= {key: seen for key, seen in found if seen is not None}
        self._others = known

    def _listed(self) -> tuple[dict[str, ObjectInfo], list[ObjectInfo]]:
        """The objects of the other workers that are alive by key, and what is left of those that are gone."""
        found = [info for info in self._store.list(self._prefix) if info.key != self._key(self.worker_id)]
        now_s = self._clock.monotonic_s()
        self._watched = watched = {info.key: self._watch(info, now_s) for info in found}
        self._listed_s = now_s
        alive: dict[str, ObjectInfo] = {}
        gone: list[ObjectInfo] = []
        for info in found:
            if watched[info.key].silent_ms(now_s) <= GONE_AFTER_MS + STORE_TIME_RESOLUTION_MS:
                alive[info.key] = info
            else:
                gone.append(info)
        return alive, gone

    def _watch(self, info: ObjectInfo, now_s: float) -> _Watched:
        """How old a status is. The store's times are asked at its first sight only: they may jump later."""
        before, now_ms = self._watched.get(info.key), self._book.store_now_ms
        if before is not None and before.etag == info.etag:
            return before
        age_ms = 0 if now_ms is None else max(0, now_ms - info.last_modified_ms)
        if self._listed_s is not None:  # it was not there at the last look
            age_ms = min(age_ms, round((now_s - self._listed_s) * 1000))
        return _Watched(info.etag, age_ms, now_s)

    def _read(self, key: str) -> _Seen | None:
        try:
            blob = self._store.get(key, DOCUMENT_BYTES_MAX)
            return _Seen(blob.etag, load_worker(orjson.dumps(orjson.loads(blob.data)["status"])))
        except ObjectNotFound:
            return None
        # A newer version's, in the middle of an upgrade, or no worker's.
        except (ObjectTooLarge, ValueError, KeyError, TypeError) as error:
            self._events.warning("a worker's status cannot be read", key=key, error=repr(error))
            return None

    def _sweep(self) -> None:
        """Forget who is gone: objects first, slots after.

        The orders are read before the list, and a worker writes its status before it takes a slot: so whoever has a
        slot in these orders and is not in the list is gone. One that comes back in this moment takes a slot anew.
        """
        orders = self._book.look()
        alive, gone = self._listed()
        for info in gone:
            self._events.info("worker is gone", key=info.key)
            self._clear(info.key)
        left = [worker_id for worker_id in orders.slots if self._key(worker_id) not in alive]
        left = [worker_id for worker_id in left if worker_id != self.worker_id]
        if left:
            self._book.change(free_slots(left))

    def _clear(self, key: str) -> None:
        """Delete what a worker left. Where that is not allowed it stays, and nobody takes it for a worker."""
        try:
            self._store.delete(key)
        except AccessDenied as error:
            self._events.warning("no right to clear away", key=key, error=str(error))

    def _key(self, worker_id: str) -> str:
        return f"{self._prefix}{safe_name(worker_id)}.json"


def leave_quietly(roll_call: RollCall) -> None:
    """Take a worker off the roll; whoever cannot is noticed by the others after a while."""
    with contextlib.suppress(KeyfoldError):
        roll_call.leave()


def _wait_s(before: WorkerStatus, now: WorkerStatus) -> float:
    """How long after the last status this one may, or must, be written."""
    if _states(before) != _states(now):
        return _URGENT_AFTER_S
    return _AT_MOST_EVERY_S if _without_times(before) != _without_times(now) else _AT_LEAST_EVERY_S


def _states(status: WorkerStatus) -> object:
    """What people wait for."""
    tasks = [
        (t.number, t.state, t.trace, [(p.topic, p.partition, p.state) for p in t.partitions]) for t in status.tasks
    ]
    return status.worker_id, status.slot, status.orders_version, tasks


def _without_times(status: WorkerStatus) -> WorkerStatus:
    tasks = tuple(replace(task, reported_ms=UNKNOWN) for task in status.tasks)
    return replace(status, reported_ms=UNKNOWN, tasks=tasks)


def _incarnation(data: bytes) -> str:
    try:
        return str(orjson.loads(data)["incarnation"])
    except (ValueError, KeyError, TypeError):
        return ""
