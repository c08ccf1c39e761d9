"""A store that fails on purpose, repeatably.

Every call gets a number, and a plan says which call fails and how. A test runs an operation once on a clean
`FaultyStore`, takes its list of calls, and then runs the operation again for each fault of `every_fault(calls)`: every
call with every way in which it can fail.

    crash before / after     the process dies before the request is sent, or after it landed
    crash, landing late      the process dies while its request is in flight
    unavailable              503: the request never lands
    lost answer              the request lands, but the caller gets a timeout
    late                     the caller gets a timeout, and the request lands later: at a later call, or at `land()`
    conflict                 409: the store decided nothing (for an upload: its parts must be sent again)

A spurious 412 is not in the list: no store sends one, and the commit protocol relies on that. A crash is a
`BaseException`, so no `except Exception` catches it. Afterwards every call of this store crashes too, because a dead
process cannot clean up. Give each process of a test its own `FaultyStore` over one common store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, TypeVar

from keyfold.errors import ConditionUndecided, StoreError, StoreUnavailable, UploadLost
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import ObjectStore, PutMode, PutResult, ResumedUpload, Upload
from keyfold.store.wrappers.base import FullStoreWrapper, UploadWrapper

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process died here. This is not an `Exception`, because nothing may handle it."""


class FaultKind(Enum):
    """How a call fails; see the module's list."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CRASH_LATE = "crash, landing late"
    UNAVAILABLE = "unavailable"
    LOST_ANSWER = "lost answer"
    LATE = "late"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Call:
    """One call in the list: `number` counts from 1, `mode` is a put's condition."""

    number: int
    operation: str
    key: str
    mode: PutMode | None = None

    def __str__(self) -> str:
        return f"call {self.number}: {self.operation} {self.key}"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at the call with this number, or at the first `times` calls that match a predicate.

    A late request lands `lands_after` calls later, or at `land()` if that is None.
    """

    at: int | Callable[[Call], bool]
    kind: FaultKind
    lands_after: int | None = None
    times: int = 1

    def hits(self, call: Call) -> bool:
        """Return whether this fault applies to `call`."""
        return call.number == self.at if isinstance(self.at, int) else self.at(call)


@dataclass(frozen=True, slots=True)
class Chaos:
    """Random faults: each call fails with probability `rate`, in one of the `kinds` that apply to it."""

    random: Random
    rate: float
    kinds: tuple[FaultKind, ...] = (FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.CONFLICT)
    lands_after_max: int = 20

    def fault(self, call: Call) -> Fault | None:
        """Draw the fault for one call."""
        kinds = [kind for kind in kinds_of(call.operation) if kind in self.kinds]
        if not kinds or self.random.random() >= self.rate:
            return None
        return Fault(call.number, self.random.choice(kinds), self.random.randint(1, self.lands_after_max))


@dataclass(frozen=True, slots=True)
class Landed:
    """A held request that landed: its error, which no caller received, or None if it succeeded."""

    call: Call
    error: StoreError | None


_READ: Final = (FaultKind.CRASH_BEFORE, FaultKind.UNAVAILABLE)
_WRITE: Final = (
    FaultKind.CRASH_BEFORE,
    FaultKind.CRASH_AFTER,
    FaultKind.CRASH_LATE,
    FaultKind.UNAVAILABLE,
    FaultKind.LOST_ANSWER,
    FaultKind.LATE,
)
# A part has a number and is invisible until the upload is complete: landing late makes no difference.
_PART: Final = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER)
_KINDS: Final = {
    "get": _READ,
    "get_range": _READ,
    "head": _READ,
    "list": _READ,
    "list_folders": _READ,
    "list_uploads": _READ,
    "put": (*_WRITE, FaultKind.CONFLICT),
    "start_upload": _WRITE,
    "resume_upload": _READ,
    "start_copy": _WRITE,
    "upload.write": _PART,
    "upload.complete": (*_WRITE, FaultKind.CONFLICT),
    "upload.abort": _WRITE,
    "delete": _WRITE,
    "abort_upload": _WRITE,
}


def kinds_of(operation: str) -> tuple[FaultKind, ...]:
    """Return the ways in which a call of this operation can fail."""
    return _KINDS[operation]


def every_fault(calls: Iterable[Call]) -> Iterator[Fault]:
    """Yield every fault of every call. Late requests wait for `land()`."""
    for call in calls:
        for kind in kinds_of(call.operation):
            yield Fault(call.number, kind)


@dataclass(slots=True, eq=False)
class _Held:
    call: Call
    send: Callable[[], object]
    lands_at: int | None


@dataclass(slots=True)
class _Plan:
    fault: Fault
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.fault.times


class FaultyStore(FullStoreWrapper):
    """An `ObjectStore` that delegates calls to `inner`, except for those that fail according to the plan.

    `on_call`, if given, runs before each call: a test can let another process act in between.
    """

    def __init__(
        self,
        inner: ObjectStore,
        faults: Iterable[Fault] = (),
        *,
        chaos: Chaos | None = None,
        on_call: Callable[[Call], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []
        self.landed: list[Landed] = []
        self.crashed = False
        self._died_of = ""
        self.on_call = on_call
        self._plans = [_Plan(fault) for fault in faults]
        self._chaos = chaos
        self._held: list[_Held] = []
        self._lock = threading.Lock()

    @property
    def held(self) -> Sequence[Call]:
        """Requests that are still in flight."""
        with self._lock:
            return [held.call for held in self._held]

    def add(self, *faults: Fault) -> None:
        """Plan more faults."""
        with self._lock:
            self._plans.extend(_Plan(fault) for fault in faults)

    def land(self) -> Sequence[Landed]:
        """Let all held requests land now, in the order of sending."""
        return self._land(lambda _held: True)

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`. A request in flight keeps its bytes."""
        return super().put(key, bytes(data), mode)

    def wrapped_upload(self, key: str, upload: Upload) -> FaultyUpload:
        """See `StoreWrapper.wrapped_upload`."""
        return FaultyUpload(self, key, upload)

    def wrapped_resumed_upload(self, key: str, upload: ResumedUpload) -> FaultyResumedUpload:
        """See `FullStoreWrapper.wrapped_resumed_upload`."""
        return FaultyResumedUpload(self, key, upload)

    def listing(self, operation: str, prefix: str, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """See `StoreWrapper.listing`. A listing is one call, made immediately."""
        return iter(self.perform(operation, prefix, lambda: tuple(rows())))

    def perform(self, operation: str, key: str, send: Callable[[], T], mode: PutMode | None = None) -> T:
        """Number and list one call, and let it succeed or fail as planned."""
        with self._lock:
            if self.crashed:
                raise SimulatedCrash(f"{self._died_of}; dead since then, so no {operation} {key}")
            call = Call(len(self.calls) + 1, operation, key, mode)
            self.calls.append(call)
            fault = self._fault(call)
        self._land(lambda held: held.lands_at is not None and held.lands_at <= call.number)
        if self.on_call is not None:
            self.on_call(call)
        return send() if fault is None else self._fail(call, fault, send)

    def _fault(self, call: Call) -> Fault | None:
        for plan in self._plans:
            if plan.left and plan.fault.hits(call):
                plan.left -= 1
                if plan.fault.kind not in kinds_of(call.operation):
                    raise ValueError(f"fault `{plan.fault.kind.value}` does not apply to {call}")
                return plan.fault
        return None if self._chaos is None else self._chaos.fault(call)

    def _fail(self, call: Call, fault: Fault, send: Callable[[], T]) -> T:
        kind = fault.kind
        if kind in {FaultKind.CRASH_AFTER, FaultKind.LOST_ANSWER}:
            # The answer is lost, even if it was an error.
            self._land_one(_Held(call, send, None))
        if kind in {FaultKind.LATE, FaultKind.CRASH_LATE}:
            lands_at = None if fault.lands_after is None else call.number + fault.lands_after
            with self._lock:
                self._held.append(_Held(call, send, lands_at))
        if kind in {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.CRASH_LATE}:
            self._died_of, self.crashed = f"{kind.value}: {call}", True
            raise SimulatedCrash(self._died_of)
        if kind is FaultKind.CONFLICT:
            if call.operation == "upload.complete":
                raise UploadLost(call.key, f"{kind.value}: {call}")
            raise ConditionUndecided(call.key, f"{kind.value}: {call}")
        raise StoreUnavailable(call.key, f"{kind.value}: {call}")

    def _land(self, due: Callable[[_Held], bool]) -> Sequence[Landed]:
        with self._lock:
            landing = [held for held in self._held if due(held)]
            self._held = [held for held in self._held if held not in landing]
        return [self._land_one(held) for held in landing]

    def _land_one(self, held: _Held) -> Landed:
        try:
            held.send()
        except StoreError as error:
            landed = Landed(held.call, error)
        else:
            landed = Landed(held.call, None)
        with self._lock:
            self.landed.append(landed)
        return landed


class FaultyUpload(UploadWrapper):
    """An upload of a `FaultyStore`; its calls are numbered and fail like the store's own."""

    def __init__(self, store: FaultyStore, key: str, inner: Upload) -> None:
        super().__init__(store, key, inner)
        self._landed: bytes | None = None

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        copy = bytes(part)
        if self._landed not in {None, copy}:
            raise ValueError(f"{self._key}: after an unknown result the same part has to be sent again")

        def send() -> None:
            # A part that landed with a lost answer is replaced by its retry: same number, same bytes.
            if self._landed is None:
                self._inner.write(copy)
                self._landed = copy

        self._store.perform("upload.write", self._key, send)
        self._landed = None


class FaultyResumedUpload(FaultyUpload):
    """A resumed upload. Kept parts were sent earlier and cannot fail."""

    def __init__(self, store: FaultyStore, key: str, inner: ResumedUpload) -> None:
        super().__init__(store, key, inner)
        self._resumed = inner

    def keep(self, part: Bytes) -> bool:
        """See `ResumedUpload.keep`."""
        return self._landed is None and self._resumed.keep(part)
