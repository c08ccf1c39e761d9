"""A sink's desired state: one small object in the bucket that all of its workers follow.

    <topics.dir>/_sinks/<name>/orders.json

    state        RUNNING, PAUSED or STOPPED: the desired state of all tasks
    flushes      the number of "flush now" requests; a worker carries out those made after it began
    restarts     the last requested restarts, numbered
    slots        the slot of each worker, for its tasks' ids

The object is changed by compare-and-swap (`keyfold.store.cas_document`): no change is lost, and none is made twice.

A worker never forgets the newest version that it has seen. While the store does not answer, the last known desired
state applies. If the object was deleted or replaced by an older version by hand, a worker that knows a newer version
restores it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Final
from urllib.parse import quote

import orjson

from keyfold.errors import StoreError, StoreUnavailable
from keyfold.runtime.clock import Clock
from keyfold.store.api import Blob, ObjectStore
from keyfold.store.cas_document import DOCUMENT_TIMEOUT_S, CasFormat, CasObject, document_retry
from keyfold_sink.status import RunState

_RESTARTS_KEPT: Final = 64
_CHANGES_KEPT: Final = 256

TARGETS: Final = frozenset({RunState.RUNNING, RunState.PAUSED, RunState.STOPPED})


class DesiredStateUnreadable(StoreError):
    """The object exists and does not contain a sink's desired state."""


class RestartScope(StrEnum):
    """The tasks to restart. CONNECTOR restarts none; they look up again what they have cached."""

    CONNECTOR = "connector"
    ALL = "all"
    FAILED = "failed"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Restart:
    """The `number`th requested restart.

    `worker_id` and `task` (its number in the worker) belong to `RestartScope.ONE`.
    """

    number: int
    scope: RestartScope
    worker_id: str = ""
    task: int = -1


@dataclass(frozen=True, slots=True)
class DesiredState:
    """One version of the desired state.

    `state_since` is the version that changed `state` last. `changes` are the ids of the last changes, the newest last.
    """

    version: int = 0
    state: RunState = RunState.RUNNING
    state_since: int = 0
    flushes: int = 0
    restarts: tuple[Restart, ...] = ()
    slots: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    unknown: Mapping[str, object] = field(default_factory=dict)

    @property
    def restart_number(self) -> int:
        """The number of the last restart; 0 if there was none."""
        return self.restarts[-1].number if self.restarts else 0


Change = Callable[[DesiredState], DesiredState]
"""Return the changed desired state, or the same object if there is nothing to change."""


def sink_folder(topics_dir: str, name: str) -> str:
    """Return the key prefix of the objects that a sink's workers share. No topic's folder begins with `_`."""
    head = f"{topics_dir}/" if topics_dir else ""
    return f"{head}_sinks/{safe_name(name)}/"


def safe_name(name: str) -> str:
    """Encode a name with any characters as one segment of a key."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


# Changes


def target(state: RunState) -> Change:
    """Change the state to RUNNING, PAUSED or STOPPED."""
    return lambda desired: desired if desired.state is state else replace(desired, state=state)


def flush(desired: DesiredState) -> DesiredState:
    """Request that every task commits what it has read."""
    return replace(desired, flushes=desired.flushes + 1)


def restart(scope: RestartScope, worker_id: str = "", task: int = -1) -> Change:
    """Request a restart."""

    def change(desired: DesiredState) -> DesiredState:
        asked = Restart(desired.restart_number + 1, scope, worker_id, task)
        return replace(desired, restarts=(*desired.restarts, asked)[-_RESTARTS_KEPT:])

    return change


def take_slot(worker_id: str) -> Change:
    """Give a worker the lowest free slot, if it has none."""

    def change(desired: DesiredState) -> DesiredState:
        if worker_id in desired.slots:
            return desired
        taken = set(desired.slots.values())
        slot = next(n for n in range(len(taken) + 1) if n not in taken)
        return replace(desired, slots={**desired.slots, worker_id: slot})

    return change


def free_slots(worker_ids: Iterable[str]) -> Change:
    """Free the slots of workers that are gone."""
    gone = frozenset(worker_ids)

    def change(desired: DesiredState) -> DesiredState:
        left = {worker_id: slot for worker_id, slot in desired.slots.items() if worker_id not in gone}
        return desired if len(left) == len(desired.slots) else replace(desired, slots=left)

    return change


# The work of a worker


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The work for a worker between two versions of the desired state."""

    state: RunState
    flush: bool
    restarts: tuple[Restart, ...]


def to_do(done: DesiredState, newest: DesiredState, worker_id: str) -> PendingWork:
    """Return the work between two versions, without restarts of other workers' tasks.

    If the list of restarts does not reach back to `done`, all tasks are restarted. That loses nothing and satisfies
    every request.
    """
    missed = [asked for asked in newest.restarts if asked.number > done.restart_number]
    if missed and missed[0].number > done.restart_number + 1:
        missed = [Restart(newest.restart_number, RestartScope.ALL)]
    mine = tuple(asked for asked in missed if asked.scope is not RestartScope.ONE or asked.worker_id == worker_id)
    return PendingWork(newest.state, newest.flushes > done.flushes, mine)


# The object


def encode(desired: DesiredState) -> bytes:
    """Encode as JSON; fields of a newer keyfold are kept."""
    known = {
        "version": desired.version,
        "state": desired.state,
        "state_since": desired.state_since,
        "flushes": desired.flushes,
        "restarts": desired.restarts,
        "slots": desired.slots,
        "changes": desired.changes,
    }
    return orjson.dumps({**desired.unknown, **known}, option=orjson.OPT_INDENT_2)


def decode(data: bytes, key: str) -> DesiredState:
    """Decode a desired state. Raise `DesiredStateUnreadable` for anything else."""
    try:
        found = dict(orjson.loads(data))
        state = RunState(found.pop("state"))
        if state not in TARGETS:
            raise ValueError(f"{state} is not a desired state")
        desired = DesiredState(
            version=int(found.pop("version")),
            state=state,
            state_since=int(found.pop("state_since")),
            flushes=int(found.pop("flushes")),
            restarts=tuple(
                Restart(int(r["number"]), RestartScope(r["scope"]), str(r["worker_id"]), int(r["task"]))
                for r in found.pop("restarts")
            ),
            slots={str(worker_id): int(slot) for worker_id, slot in found.pop("slots").items()},
            changes=tuple(map(str, found.pop("changes"))),
            unknown=found,
        )
        encode(desired)  # `TypeError` if a number is too large, or a field of a newer version nested too deeply
        return desired  # noqa: TRY300 - it is valid only if it can be encoded
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DesiredStateUnreadable(
            key,
            f"does not contain a sink's desired state: {error!r}",
            hint="the object contains no records; delete it, then repeat requests such as pause or stop",
        ) from error


def _next(current: DesiredState | None, changed: DesiredState, change_id: str) -> DesiredState:
    """Return the next version, with the change's id."""
    before = current or DesiredState()
    version = max(changed.version, before.version) + 1
    return replace(
        changed,
        version=version,
        state_since=changed.state_since if changed.state is before.state else version,
        changes=(*changed.changes, change_id)[-_CHANGES_KEPT:],
    )


class DesiredStateDocument:
    """The desired state of one sink in the bucket. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        clock: Clock,
        random: Random,
        *,
        retry_timeout_s: float = DOCUMENT_TIMEOUT_S,
    ) -> None:
        self._key = f"{folder}orders.json"
        self._clock = clock
        self._retry_timeout_s = retry_timeout_s
        self._object = CasObject(
            store,
            self._key,
            CasFormat(self._decode, encode, lambda desired: desired.changes, _next),
            document_retry(clock, random, retry_timeout_s),
            random,
            undecided=f"the store gave no definite answer for {retry_timeout_s:g} s",
            undecided_hint="the request may still take effect; check the sink's status before you retry",
        )
        self._lock = threading.Lock()
        self._known: DesiredState | None = None
        self._state_seen_s = clock.monotonic_s()
        self._answered: tuple[int, float] | None = None

    @property
    def known(self) -> DesiredState | None:
        """The newest desired state that was read; None before the store's first answer."""
        return self._known

    @property
    def store_now_ms(self) -> int | None:
        """The store's time, extrapolated from its last answer; None before the first."""
        if self._answered is None:
            return None
        date_ms, at_s = self._answered
        return date_ms + round((self._clock.monotonic_s() - at_s) * 1000)

    @property
    def state_age_s(self) -> float:
        """Time since this process learned of the current `state`."""
        return self._clock.monotonic_s() - self._state_seen_s

    def refresh(self) -> DesiredState:
        """Read the newest desired state. Raise `StoreUnavailable` (`known` still applies), `DesiredStateUnreadable`."""
        found = self._object.read() or DesiredState()
        known = self._known
        if known is not None and found.version < known.version:
            return self.change(lambda newest: known if newest.version < known.version else newest)
        return self._learn(found)

    def change(self, change: Change) -> DesiredState:
        """Make a change exactly once, and return the new desired state.

        Raise `StoreUnavailable` if the store gave no definite answer in time; the change may still take effect. Once
        that time is over nothing more is written: if this process was suspended in between, its client has timed out
        and may want something else by now.
        """
        began_s, began_ms = self._clock.monotonic_s(), self._clock.now_ms()

        def changed_in_time(current: DesiredState | None) -> DesiredState | None:
            before = current or DesiredState()
            changed = change(before)
            if changed is before:
                return None
            # The monotonic clock stops while the machine is suspended.
            took_s = max(self._clock.monotonic_s() - began_s, (self._clock.now_ms() - began_ms) / 1000)
            if took_s > 2 * self._retry_timeout_s:
                raise StoreUnavailable(
                    self._key,
                    f"the request took {took_s:.0f} s and was dropped; nothing was changed",
                    hint="retry the request",
                )
            return changed

        return self._learn(self._object.change(changed_in_time) or DesiredState())

    def _decode(self, blob: Blob) -> DesiredState:
        self._answered = (blob.date_ms, self._clock.monotonic_s())
        return decode(blob.data, self._key)

    def _learn(self, desired: DesiredState) -> DesiredState:
        with self._lock:
            if self._known is None or desired.version >= self._known.version:
                if self._known is None or desired.state_since != self._known.state_since:
                    self._state_seen_s = self._clock.monotonic_s()
                self._known = desired
        return desired
