"""The worker registry: which workers a sink has, and the status of each worker and its tasks.

    <topics.dir>/_sinks/<name>/workers/<worker_id>.json      one object per worker, which only that worker writes

A worker writes its status after a change, at most every 5 s (every 1 s for changes that users wait for), and at least
every 30 s. A worker that has not written for 90 s is gone. The others forget it, delete its object and free its slot.
So objects do not accumulate where pods come and go under new names. A worker that was only suspended or cut off writes
again, takes a slot again, and is back.

When a worker first sees a status object, it computes the object's age from the store's times. From then on it uses its
own monotonic clock, and an object that has changed since the last listing is no older than that listing. So a jump of
the store's clock neither removes a worker that writes nor keeps one that does not.

A worker is identified by its id. If a second process starts with the same id, the *incarnation* in the object tells
them apart. The process that started last keeps the id, because it is usually a restarted pod. The other process
continues under another id.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import orjson
import structlog

from keyfold.errors import (
    AccessDenied,
    ConditionUndecided,
    KeyfoldError,
    ObjectNotFound,
    ObjectTooLarge,
)
from keyfold.runtime.clock import Clock
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, ObjectInfo, ObjectStore
from keyfold.store.cas_document import swap
from keyfold.store.documents import DOCUMENT_BYTES_MAX
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.status import UNKNOWN, WorkerStatus, dump, load_worker
from keyfold_sink.worker.desired_state import DesiredStateDocument, free_slots, safe_name, take_slot

GONE_AFTER_MS: Final = 90_000
_AT_MOST_EVERY_S: Final = 5.0
_URGENT_AFTER_S: Final = 1.0
_AT_LEAST_EVERY_S: Final = 30.0
_REMOVE_EVERY_S: Final = 30.0
_LOOK_AGAIN_S: Final = 1.0
_READERS: Final = 8
_TRIES: Final = 5


def worker_id(options: SinkOptions, port: int | None) -> str:
    """Return a worker's id: `worker.id`, else host:port of its REST API, else host:process."""
    if options.worker_id is not None:
        return options.worker_id
    host = options.rest_advertised_host_name or socket.gethostname()
    return f"{host}:{options.rest_advertised_port or port or os.getpid()}"


@dataclass(frozen=True, slots=True)
class _KnownWorker:
    etag: str
    status: WorkerStatus


@dataclass(frozen=True, slots=True)
class _Watched:
    """One version of another worker's object: its age when it was first seen, and when that was (monotonic)."""

    etag: str
    age_ms: int
    since_s: float

    def silent_ms(self, now_s: float) -> int:
        return self.age_ms + round((now_s - self.since_s) * 1000)


class WorkerRegistry:
    """The worker registry, for one worker. Only one thread may call `update`; the rest is thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        document: DesiredStateDocument,
        worker_id: str,
        *,
        clock: Clock,
        random: Random,
    ) -> None:
        self.worker_id = worker_id
        self._store = store
        self._prefix = f"{folder}workers/"
        self._document = document
        self._clock = clock
        self._incarnation = f"{random.getrandbits(64):016x}"
        self._etag: str | None = None
        self._written: WorkerStatus | None = None
        self._written_s = 0.0
        self._removed_s: float | None = None
        self._lock = threading.Lock()
        self._others: dict[str, _KnownWorker] = {}
        self._watched: dict[str, _Watched] = {}
        self._listed_s: float | None = None
        self._looked_s: float | None = None
        self._events = structlog.get_logger("keyfold.sink")

    @property
    def slot(self) -> int:
        """The worker's slot; `UNKNOWN` before it has one."""
        desired = self._document.known
        return UNKNOWN if desired is None else desired.slots.get(self.worker_id, UNKNOWN)

    def update(self, status: Callable[[], WorkerStatus]) -> None:
        """Write the status if it is due, take a slot, and remove workers that are gone. Raise the store's errors."""
        self._write_if_due(status())
        if self.slot == UNKNOWN:
            # After the status is written, or another worker would free the slot again.
            self._document.change(take_slot(self.worker_id))
            self._write_now(status())
        now_s = self._clock.monotonic_s()
        if self._removed_s is None or now_s - self._removed_s >= _REMOVE_EVERY_S:
            self._remove_gone()
            self._removed_s = now_s

    def others(self, *, fresh: bool = False) -> Sequence[WorkerStatus]:
        """Return the other live workers, by id. The list is at most a second old, or read now if `fresh`.

        Raise `StoreUnavailable` if the store does not answer; `known_others` then has the last known workers.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            if fresh or self._looked_s is None or now_s - self._looked_s >= _LOOK_AGAIN_S:
                self._look()
                self._looked_s = self._clock.monotonic_s()
            return self.known_others()

    def known_others(self) -> Sequence[WorkerStatus]:
        """Return the other workers as last seen, without a request to the store."""
        return [seen.status for _, seen in sorted(self._others.items())]

    def silent_ms(self, worker_id: str) -> int:
        """Return the time since another worker's last write; 0 for an unknown worker."""
        watched = self._watched.get(self._key(worker_id))
        return 0 if watched is None else watched.silent_ms(self._clock.monotonic_s())

    def leave(self) -> None:
        """Remove this worker, whose tasks have ended. Raise the store's errors; other workers then remove it later."""
        self._document.change(free_slots([self.worker_id]))
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
        """Write the status over the current object, and return the status that was written."""
        key = self._key(status.worker_id)
        for _ in range(_TRIES):
            data = orjson.dumps({"incarnation": self._incarnation, "status": orjson.Fragment(dump(status))})
            etag = swap(self._store, self._key(status.worker_id), data, self._etag or "")
            if etag is not None:
                self._etag = etag
                return status
            status = self._meet(status)
        raise ConditionUndecided(key, f"was changed by other processes {_TRIES} times in a row")

    def _meet(self, status: WorkerStatus) -> WorkerStatus:
        """Handle a change of this worker's object.

        Either a request of this process took effect and its answer was lost, or others removed the object while this
        process was suspended or cut off, or another process uses the same id.
        """
        try:
            blob = self._store.get(self._key(self.worker_id), DOCUMENT_BYTES_MAX)
        except ObjectNotFound:
            self._etag = None
            return status
        took_over = (
            self._etag is not None
        )  # this process has written the object before, so the other process started later
        if took_over and _incarnation(blob.data) != self._incarnation:
            return self._rename(status)
        self._etag = blob.etag
        return status

    def _rename(self, status: WorkerStatus) -> WorkerStatus:
        taken, self.worker_id = self.worker_id, f"{self.worker_id}~{self._incarnation[:6]}"
        self._etag = None
        self._events.warning("worker id in use by another process", worker_id=taken, now=self.worker_id)
        return replace(status, worker_id=self.worker_id, slot=UNKNOWN)

    # Looking

    def _look(self) -> None:
        """Find the live workers. Objects that have not changed are not read again."""
        self._document.refresh()  # for the store's time
        alive, _ = self._listed()
        known = {key: seen for key, seen in self._others.items() if key in alive and alive[key].etag == seen.etag}
        wanted = [key for key in alive if key not in known]
        if wanted:
            with ThreadPoolExecutor(min(_READERS, len(wanted)), thread_name_prefix="keyfold-worker-registry") as pool:
                found = zip(wanted, pool.map(self._read, wanted), strict=True)
                known |= {key: seen for key, seen in found if seen is not None}
        self._others = known

    def _listed(self) -> tuple[dict[str, ObjectInfo], list[ObjectInfo]]:
        """Return the objects of the other live workers by key, and the objects of workers that are gone."""
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
        """Return an object with its age. The store's times count only when it is first seen, as they may jump later."""
        before, now_ms = self._watched.get(info.key), self._document.store_now_ms
        if before is not None and before.etag == info.etag:
            return before
        age_ms = 0 if now_ms is None else max(0, now_ms - info.last_modified_ms)
        if self._listed_s is not None:  # this version was not in the last listing
            age_ms = min(age_ms, round((now_s - self._listed_s) * 1000))
        return _Watched(info.etag, age_ms, now_s)

    def _read(self, key: str) -> _KnownWorker | None:
        try:
            blob = self._store.get(key, DOCUMENT_BYTES_MAX)
            return _KnownWorker(blob.etag, load_worker(orjson.dumps(orjson.loads(blob.data)["status"])))
        except ObjectNotFound:
            return None
        # Written by a newer version during an upgrade, or not by a worker.
        except (ObjectTooLarge, ValueError, KeyError, TypeError) as error:
            self._events.warning("worker status unreadable", key=key, error=repr(error))
            return None

    def _remove_gone(self) -> None:
        """Remove workers that are gone: first their objects, then their slots.

        The desired state is read before the listing, and a worker writes its status before it takes a slot. So a worker
        with a slot that is not in the listing is gone. If it comes back at this moment, it takes a slot again.
        """
        desired = self._document.refresh()
        alive, gone = self._listed()
        for info in gone:
            self._events.info("removed a worker that is gone", key=info.key)
            self._clear(info.key)
        left = [worker_id for worker_id in desired.slots if self._key(worker_id) not in alive]
        left = [worker_id for worker_id in left if worker_id != self.worker_id]
        if left:
            self._document.change(free_slots(left))

    def _clear(self, key: str) -> None:
        """Delete the object of a worker that is gone. Without the right to delete it stays, and is ignored."""
        try:
            self._store.delete(key)
        except AccessDenied as error:
            self._events.warning("no right to delete a worker's status", key=key, error=str(error))

    def _key(self, worker_id: str) -> str:
        return f"{self._prefix}{safe_name(worker_id)}.json"


def leave_quietly(registry: WorkerRegistry) -> None:
    """Remove a worker from the registry. If that fails, the others remove it after a while."""
    with contextlib.suppress(KeyfoldError):
        registry.leave()


def _wait_s(before: WorkerStatus, now: WorkerStatus) -> float:
    """Return the time after the last write at which the status may or must be written."""
    if _states(before) != _states(now):
        return _URGENT_AFTER_S
    return _AT_MOST_EVERY_S if _without_times(before) != _without_times(now) else _AT_LEAST_EVERY_S


def _states(status: WorkerStatus) -> object:
    """Return the part of a status whose changes users wait for."""
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
