"""What was asked of a sink: one small object in the bucket that all of its workers follow.

    <topics.dir>/_sinks/<name>/orders.json

    state        RUNNING, PAUSED or STOPPED: how it is to be from now on
    flushes      how often "flush now" was asked for; a worker carries out what came after it began
    restarts     the last restarts that were asked for, numbered
    slots        the place of each worker, for its tasks' ids

It is changed by compare-and-set: read, apply the change, write with `If-Match`; who loses reads again and applies the
same change again. A request without an answer is repeated as it is, until the store says yes or no. The object keeps
the ids of its last changes, so whoever is told no sees whether an earlier try of his has landed, also when others came
after it: no change is lost, none is made twice.

What is known is never forgotten: while the store is away the last known orders hold, and an object that was removed
or set back by somebody's hand is put back by whoever knows a newer version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any, Final
from urllib.parse import quote

import orjson

from keyfold.backoff import Backoff
from keyfold.clock import Clock
from keyfold.errors import (
    AlreadyExists,
    ConditionUndecided,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from keyfold.retry import Patience
from keyfold.store.api import Blob, Create, ObjectStore, Update
from keyfold.store.documents import DOCUMENT_BYTES_MAX
from keyfold_sink.status import State

_RESTARTS_KEPT: Final = 64
_CHANGES_KEPT: Final = 256
_PATIENCE_S: Final = 15.0
_DELAYS: Final = Backoff(first_ms=50, cap_ms=2000)

TARGETS: Final = frozenset({State.RUNNING, State.PAUSED, State.STOPPED})


class OrdersUnreadable(StoreError):
    """The object is there and is not what a sink writes."""


class Scope(StrEnum):
    """What is to be started anew: tasks; or (CONNECTOR) none, but all that they know is to be looked up anew."""

    CONNECTOR = "connector"
    ALL = "all"
    FAILED = "failed"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart that was asked for, the `number`th. `worker_id` and `task` (its place there) go with `Scope.ONE`."""

    number: int
    scope: Scope
    worker_id: str = ""
    task: int = -1


@dataclass(frozen=True, slots=True)
class Orders:
    """One version of the orders.

    `state_since` is the version that brought the state; `changes` are the ids of the changes that led here, the newest
    last.
    """

    version: int = 0
    state: State = State.RUNNING
    state_since: int = 0
    flushes: int = 0
    restarts: tuple[Restart, ...] = ()
    slots: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def restart_number(self) -> int:
        """The number of the last restart; 0 where there was none."""
        return self.restarts[-1].number if self.restarts else 0


Change = Callable[[Orders], Orders]
"""(newest orders) -> what they are to be; the same object where there is nothing to change."""


def sink_folder(topics_dir: str, name: str) -> str:
    """Key prefix of what the workers of a sink share. No topic's folder begins with `_`."""
    head = f"{topics_dir}/" if topics_dir else ""
    return f"{head}_sinks/{safe_name(name)}/"


def safe_name(name: str) -> str:
    """A name as one part of a key, whatever signs it has."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


# Changes


def target(state: State) -> Change:
    """Run, pause or stop."""
    return lambda orders: orders if orders.state is state else replace(orders, state=state)


def flush(orders: Orders) -> Orders:
    """Every task is to finish and commit what it has read."""
    return replace(orders, flushes=orders.flushes + 1)


def restart(scope: Scope, worker_id: str = "", task: int = -1) -> Change:
    """Tasks are to be started anew."""

    def change(orders: Orders) -> Orders:
        asked = Restart(orders.restart_number + 1, scope, worker_id, task)
        return replace(orders, restarts=(*orders.restarts, asked)[-_RESTARTS_KEPT:])

    return change


def take_slot(worker_id: str) -> Change:
    """Give a worker the lowest free place, if it has none."""

    def change(orders: Orders) -> Orders:
        if worker_id in orders.slots:
            return orders
        taken = set(orders.slots.values())
        slot = next(n for n in range(len(taken) + 1) if n not in taken)
        return replace(orders, slots={**orders.slots, worker_id: slot})

    return change


def free_slots(worker_ids: Iterable[str]) -> Change:
    """Take the places of workers that are gone."""
    gone = frozenset(worker_ids)

    def change(orders: Orders) -> Orders:
        left = {worker_id: slot for worker_id, slot in orders.slots.items() if worker_id not in gone}
        return orders if len(left) == len(orders.slots) else replace(orders, slots=left)

    return change


# What a worker has to do


@dataclass(frozen=True, slots=True)
class ToDo:
    """What the newest orders mean for a worker that has carried out older ones."""

    state: State
    flush: bool
    restarts: tuple[Restart, ...]


def to_do(done: Orders, newest: Orders, worker_id: str) -> ToDo:
    """What is left between two versions. Restarts of other workers' tasks are left out.

    Where so many restarts were asked for that their list does not reach back to `done`, all is started anew: that
    loses nothing, and does what any of them wanted.
    """
    missed = [asked for asked in newest.restarts if asked.number > done.restart_number]
    if missed and missed[0].number > done.restart_number + 1:
        missed = [Restart(newest.restart_number, Scope.ALL)]
    mine = tuple(asked for asked in missed if asked.scope is not Scope.ONE or asked.worker_id == worker_id)
    return ToDo(newest.state, newest.flushes > done.flushes, mine)


# The object


def encode(orders: Orders) -> bytes:
    """As JSON; fields of a newer version are kept."""
    known = {
        "version": orders.version,
        "state": orders.state,
        "state_since": orders.state_since,
        "flushes": orders.flushes,
        "restarts": orders.restarts,
        "slots": orders.slots,
        "changes": orders.changes,
    }
    return orjson.dumps({**orders.unknown, **known}, option=orjson.OPT_INDENT_2)


def decode(data: bytes, key: str) -> Orders:
    """Read orders. Raises `OrdersUnreadable`."""
    try:
        found = dict(orjson.loads(data))
        state = State(found.pop("state"))
        if state not in TARGETS:
            raise ValueError(f"{state} cannot be asked for")
        orders = Orders(
            version=int(found.pop("version")),
            state=state,
            state_since=int(found.pop("state_since")),
            flushes=int(found.pop("flushes")),
            restarts=tuple(
                Restart(int(r["number"]), Scope(r["scope"]), str(r["worker_id"]), int(r["task"]))
                for r in found.pop("restarts")
            ),
            slots={str(worker_id): int(slot) for worker_id, slot in found.pop("slots").items()},
            changes=tuple(map(str, found.pop("changes"))),
            unknown=found,
        )
        encode(orders)  # a number may be too large for it, or a newer version's field nested too deep: a `TypeError`
        return orders  # noqa: TRY300 - it is not certain before
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise OrdersUnreadable(
            key,
            f"does not hold a sink's orders: {error!r}",
            hint="it holds no data: delete it, and ask again for what was asked (pause, stop)",
        ) from error


def _next(before: Orders, changed: Orders, change_id: str) -> Orders:
    """The next version."""
    version = max(changed.version, before.version) + 1
    return replace(
        changed,
        version=version,
        state_since=changed.state_since if changed.state is before.state else version,
        changes=(*changed.changes, change_id)[-_CHANGES_KEPT:],
    )


@dataclass(frozen=True, slots=True)
class _Found:
    orders: Orders
    etag: str | None  # None: there is no object


class OrderBook:
    """The orders of one sink. Used by many threads."""

    def __init__(
        self, store: ObjectStore, folder: str, clock: Clock, random: Random, *, patience_s: float = _PATIENCE_S
    ) -> None:
        self._store = store
        self._key = f"{folder}orders.json"
        self._clock = clock
        self._random = random
        self._patience = Patience(clock, random, _DELAYS, patience_s)
        self._lock = threading.Lock()
        self._known: Orders | None = None
        self._state_seen_s = clock.monotonic_s()
        self._answered: tuple[int, float] | None = None

    @property
    def known(self) -> Orders | None:
        """The newest orders that were seen; None before the first answer."""
        return self._known

    @property
    def store_now_ms(self) -> int | None:
        """The store's time, carried on from its last answer; None before the first."""
        if self._answered is None:
            return None
        date_ms, at_s = self._answered
        return date_ms + round((self._clock.monotonic_s() - at_s) * 1000)

    @property
    def state_age_s(self) -> float:
        """For how long it has been known here that the state is what it is."""
        return self._clock.monotonic_s() - self._state_seen_s

    def look(self) -> Orders:
        """The newest orders. Raises `StoreUnavailable` (what is `known` then still holds), `OrdersUnreadable`."""
        found = self._read()
        known = self._known
        if known is not None and found.orders.version < known.version:
            return self.change(lambda newest: known if newest.version < known.version else newest)
        return self._learn(found.orders)

    def change(self, change: Change) -> Orders:
        """Make a change, once; what the orders are then.

        Raises `StoreUnavailable` when the store gave no certain answer for too long: it may still be made then. Nothing
        is written any more once that time is over: whoever asked has gone, and may want something else by now (a
        process that was frozen in the middle of this).
        """
        change_id = f"{self._random.getrandbits(64):016x}"
        began_s, began_ms = self._clock.monotonic_s(), self._clock.now_ms()
        while True:
            found = self._patience.repeat(self._read)
            if change_id in found.orders.changes:
                return self._learn(found.orders)
            changed = change(found.orders)
            if changed is found.orders:
                return self._learn(found.orders)
            # The monotonic clock stands still with a suspended machine.
            took_s = max(self._clock.monotonic_s() - began_s, (self._clock.now_ms() - began_ms) / 1000)
            if took_s > 2 * self._patience.patience_s:
                raise StoreUnavailable(
                    self._key, f"it took {took_s:.0f} s to come to this; nothing was noted down", hint="ask again"
                )
            newest = _next(found.orders, changed, change_id)
            if self._write(newest, found.etag):
                return self._learn(newest)

    def _read(self) -> _Found:
        try:
            blob = self._store.get(self._key, DOCUMENT_BYTES_MAX)
        except ObjectNotFound:
            return _Found(Orders(), None)
        self._note_time(blob)
        return _Found(decode(blob.data, self._key), blob.etag)

    def _write(self, orders: Orders, etag: str | None) -> bool:
        """PUT until the store says yes or no."""
        data = encode(orders)
        mode = Create() if etag is None else Update(etag)
        try:
            self._patience.repeat(lambda: self._store.put(self._key, data, mode))
        except (AlreadyExists, PreconditionFailed, ObjectNotFound):
            return False
        except (StoreUnavailable, ConditionUndecided) as error:
            raise StoreUnavailable(
                self._key,
                f"the store gave no certain answer for {self._patience.patience_s:g} s: {error.message}",
                hint="what was asked for may still be noted down; look at the sink's status, and ask again",
            ) from error
        return True

    def _learn(self, orders: Orders) -> Orders:
        with self._lock:
            if self._known is None or orders.version >= self._known.version:
                if self._known is None or orders.state_since != self._known.state_since:
                    self._state_seen_s = self._clock.monotonic_s()
                self._known = orders
        return orders

    def _note_time(self, blob: Blob) -> None:
        self._answered = (blob.date_ms, self._clock.monotonic_s())
