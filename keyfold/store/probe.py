"""A test whether a store honours conditional writes, which the log depends on.

Some gateways accept `If-None-Match` and `If-Match` and ignore them, some inverted them, some check the condition first
and write later. On such a store two writers silently lose each other's records. So both services test the store when
they start, with an object of a random name below `<topics.dir>/_probe/`:

    create a new object                 must succeed, and a read must return the ETag of the answer
    create the same object again        must be refused
    update with the right ETag          must succeed
    update with the previous ETag       must be refused
    update a missing object             must be refused
    several creates at once             at most one may succeed
    several updates of one version      at most one may succeed

The last two detect stores that check and write in two steps; like every race, they can only prove a failure. The probe
changes no object but its own, and deletes these if the credentials allow it (the sink needs no right to delete).

A request that is refused temporarily (503) or not answered proves nothing. The probe then repeats the whole sequence
with an object of a new name, so that a late effect of the request does not matter. So a probe only passes with answers
to every request of one sequence. A broken promise fails the probe immediately, even if another answer is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from threading import Barrier
from typing import Final, NoReturn

from keyfold.errors import (
    AlreadyExists,
    ConditionsIgnored,
    ConditionUndecided,
    KeyfoldError,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
)
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import Create, ObjectStore, PutMode, PutResult, Update

PROBE_FOLDER: Final = "_probe/"
RETRY_TIMEOUT_S: Final = 60.0
LOOP_RETRY_TIMEOUT_S: Final = 5.0
"""For a caller that probes again while the store is unavailable, and reports that it waits."""
_NAMES_TRIED: Final = 3
_UNDECIDED_TRIES: Final = 5
_DELAYS: Final = Backoff(first_ms=100, cap_ms=2_000)
_HINT: Final = "use a store with conditional writes (If-None-Match and If-Match on PUT)"
_Refusal = tuple[type[StoreError], ...]


def probe(
    store: ObjectStore,
    topics_dir: str,
    clock: Clock,
    random: Random,
    *,
    retry_timeout_s: float = RETRY_TIMEOUT_S,
    racers: int = 4,
    rounds: int = 2,
) -> None:
    """Test that `store` honours conditional writes; `rounds=0` omits the races.

    Raises `ConditionsIgnored`, `AccessDenied`, `BucketMissing` immediately, and `StoreUnavailable` if the store has not
    answered a sequence of requests within `retry_timeout_s` (probe again).
    """
    folder = f"{topics_dir}/{PROBE_FOLDER}" if topics_dir else PROBE_FOLDER
    retry = RetryPolicy(clock, random, _DELAYS, retry_timeout_s)
    retry.repeat(lambda: _judge_one_by_one(store, folder, random))
    for _ in range(rounds):
        retry.repeat(lambda: _judge_races(store, _name(folder, random), racers))


def _judge_one_by_one(store: ObjectStore, folder: str, random: Random) -> None:
    with _fresh_object(store, folder, random) as (key, created):
        _judge_create(store, key, created)
        _judge_update(store, key, created)


@contextlib.contextmanager
def _fresh_object(store: ObjectStore, folder: str, random: Random) -> Iterator[tuple[str, PutResult]]:
    """A new object, removed at the end."""
    for _ in range(_NAMES_TRIED):
        key = _name(folder, random)
        with _removed(store, key):
            try:
                created = _put(store, key, b"created", Create())
            except AlreadyExists:
                continue  # left over from a probe with the same seed, or a store that inverts the condition
            yield key, created
            return
    _ignored(
        folder, f"{_NAMES_TRIED} random names in a row already exist: the store seems to invert `If-None-Match: *`"
    )


def _judge_create(store: ObjectStore, key: str, created: PutResult) -> None:
    if _lands(store, key, b"created again", Create(), (AlreadyExists,)) is not None:
        _ignored(key, "the store overwrote an object on a create: it ignores `If-None-Match: *`")
    found = store.get(key)
    if found.data != b"created":
        _ignored(key, "the store answered 412 to a second create, but overwrote the object")
    if found.etag != created.etag:
        _ignored(key, f"the store answered a write with ETag {created.etag}, but a read with {found.etag}")


def _judge_update(store: ObjectStore, key: str, created: PutResult) -> None:
    try:
        updated = _put(store, key, b"updated", Update(created.etag))
    except (PreconditionFailed, ObjectNotFound) as error:
        _ignored(key, f"the store refused an update with the right ETag: {error.message}")
    if _lands(store, key, b"updated wrongly", Update(created.etag), (PreconditionFailed,)) is not None:
        _ignored(key, "the store overwrote an object whose ETag had changed: it ignores `If-Match`")
    found = store.get(key)
    if found.data != b"updated" or found.etag != updated.etag:
        _ignored(key, "the store refused an update, but changed the object")
    absent = f"{key}-absent"
    with _removed(store, absent):
        if _lands(store, absent, b"", Update(created.etag), (ObjectNotFound, PreconditionFailed)) is not None:
            _ignored(absent, "the store created an object on an update of a missing one: it ignores `If-Match`")


def _judge_races(store: ObjectStore, key: str, racers: int) -> None:
    with _removed(store, key):
        creates = _race(racers, lambda n: _lands(store, key, _racing_bytes(n), Create(), (AlreadyExists,)))
        won = len(creates.landed)
        if won > 1:
            _ignored(key, f"{won} of {racers} concurrent creates of one object succeeded: creates are not atomic")
        creates.require_answers()
        if not creates.landed:
            return
        etag = creates.landed[0].etag
        refusals = (PreconditionFailed,)
        updates = _race(racers, lambda n: _lands(store, key, _racing_bytes(racers + n), Update(etag), refusals))
        won = len(updates.landed)
        if won > 1:
            _ignored(key, f"{won} of {racers} concurrent updates of one version succeeded: updates are not atomic")
        updates.require_answers()


@dataclass(slots=True)
class _Race:
    """The result of a race: the writes that succeeded, and the requests without a definite answer."""

    landed: list[PutResult] = field(default_factory=list)
    failed: list[KeyfoldError] = field(default_factory=list)

    def require_answers(self) -> None:
        """Raise the first error of a request without a definite answer."""
        if self.failed:
            raise self.failed[0]


def _race(racers: int, run: Callable[[int], PutResult | None]) -> _Race:
    start = Barrier(racers)

    def racer(number: int) -> PutResult | None:
        start.wait()
        return run(number)

    race = _Race()
    with ThreadPoolExecutor(racers, thread_name_prefix="keyfold-probe") as pool:
        try:
            running = [pool.submit(racer, number) for number in range(racers)]
        except BaseException:  # a process that is ending cannot start threads
            start.abort()  # otherwise the started threads would wait for the others for ever, and the process for them
            raise
        for future in running:
            try:
                result = future.result()
            except KeyfoldError as error:
                race.failed.append(error)
            else:
                race.landed += [] if result is None else [result]
    return race


def _racing_bytes(number: int) -> bytes:
    # Large enough to detect a store that checks first and writes later.
    return bytes([number % 256]) * 65_536


def _lands(store: ObjectStore, key: str, data: bytes, mode: PutMode, refusals: _Refusal) -> PutResult | None:
    """Return the result of a put, or None if it was refused with one of `refusals`."""
    try:
        return _put(store, key, data, mode)
    except refusals:
        return None


def _put(store: ObjectStore, key: str, data: bytes, mode: PutMode) -> PutResult:
    for _ in range(_UNDECIDED_TRIES - 1):
        with contextlib.suppress(ConditionUndecided):
            return store.put(key, data, mode)
    return store.put(key, data, mode)


@contextlib.contextmanager
def _removed(store: ObjectStore, key: str) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(StoreError):
            store.delete(key)


def _name(folder: str, random: Random) -> str:
    return f"{folder}{random.getrandbits(128):032x}"


def _ignored(key: str, message: str) -> NoReturn:
    raise ConditionsIgnored(key, message, hint=_HINT)
