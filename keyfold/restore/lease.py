"""One run at a time: a lease in the bucket that is renewed while a run is at work.

    acquire     the lease is free, or was let go: taken at once. Else it is watched: renewed meanwhile, another run is
                at work; not renewed for its whole length, its holder is dead, and it is taken over
    renew       by a thread, every sixth of its length, by compare-and-set: lost means fenced
    hold        asked before records are handed to the producer: returns while the lease is fresh, waits while the store
                does not answer, raises when it is lost

No two machines' clocks are compared. A holder counts from before its last renewal was sent, the next one from when it
saw it. What the producer has been given lands, or is given up, within `SEND_SHARE` of the length
(`message.timeout.ms`), and nothing is given to it later than `FRESH_SHARE` after a renewal; both together are shorter
than the lease. So what a paused or dead run had under way has landed, or never will, when the next one looks at the
target's end.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Self

from keyfold.errors import KeyfoldError, ObjectNotFound
from keyfold.restore.errors import RestoreBusy, RestoreFenced, RestoreRefused
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, Blob, ObjectStore
from keyfold.store.cas_document import swap
from keyfold.store.documents import DOCUMENT_BYTES_MAX, decode_document

LEASE_S: Final = 30.0
RENEW_SHARE: Final = 1 / 6
FRESH_SHARE: Final = 1 / 3
SEND_SHARE: Final = 1 / 2
_LOOK_S: Final = 0.5
_LEASE_S_MAX: Final = 86_400.0
_HOLD_STEP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class _StoredLease:
    """What others need of the object."""

    epoch: int
    holder: str
    lease_s: float
    free: bool
    nonce: str = ""


class Lease:
    """The right to produce. A context manager that renews in the background and lets go at the end.

    `was_clean`: the run before has let go of it, so nothing of it is under way.
    """

    def __init__(self, store: ObjectStore, key: str, *, holder: str, clock: Clock, random: Random,
                 lease_s: float = LEASE_S, retry_timeout_s: float = 600.0) -> None:  # fmt: skip
        self._store = store
        self._key = key
        self._holder = holder
        self._clock = clock
        self._retry = RetryPolicy(clock, random, timeout_s=lease_s)
        self._retry_timeout_s = retry_timeout_s
        self.lease_s = lease_s
        self.epoch = 0
        self.was_clean = True
        self._etag = ""
        self._nonce = f"{random.getrandbits(64):016x}"
        self._renewals = 0
        self._renewed_s = 0.0
        self._lost: KeyfoldError | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lease, waiting for a dead holder's to run out. Raises `RestoreBusy`."""
        try:
            found = self._store.get(self._key, DOCUMENT_BYTES_MAX)
        except ObjectNotFound:
            return self._swap(1, "")
        data = self._parsed(found.data)
        self.was_clean = data.free
        if not data.free and not self._ran_out(found, data):
            self._watch(found, data)
        return self._swap(data.epoch + 1, found.etag)

    def _ran_out(self, found: Blob, data: _StoredLease) -> bool:
        quiet_ms = found.date_ms - found.last_modified_ms - STORE_TIME_RESOLUTION_MS
        return bool(quiet_ms >= 1000 * max(data.lease_s, self.lease_s))

    def _watch(self, found: Blob, data: _StoredLease) -> None:
        """Return once nobody has renewed the lease for its whole length."""
        until_s = self._clock.monotonic_s() + data.lease_s
        while self._clock.monotonic_s() < until_s:
            self._clock.sleep(min(_LOOK_S, data.lease_s / 10))
            try:
                now = self._store.get(self._key, DOCUMENT_BYTES_MAX)
            except ObjectNotFound:
                raise self._busy(data) from None
            if now.etag != found.etag:
                raise self._busy(self._parsed(now.data))

    def _parsed(self, data: bytes) -> _StoredLease:
        """What a lease says. Raises `RestoreRefused` where the object does not hold one."""
        try:
            found = decode_document(_StoredLease, data)
            if not 0 <= found.lease_s <= _LEASE_S_MAX:
                raise ValueError(f"`lease_s`: {found.lease_s} s is not a valid lease")
        except ValueError as error:
            raise RestoreRefused(
                f"`{self._key}` does not contain the lease of a restore: {error}",
                hint="make sure that this restore is not running anywhere, and delete the object",
            ) from error
        return found

    def _busy(self, data: _StoredLease) -> RestoreBusy:
        return RestoreBusy(
            f"this restore is already running: {data.holder} renewed `{self._key}` a moment ago",
            hint="let it finish, or stop it and run the command again",
        )

    def _swap(self, epoch: int, over: str) -> None:
        """Write this run's lease over the version with that ETag. Raise `RestoreBusy` if another run was faster."""
        asked_s = self._clock.monotonic_s()
        data = self._data(epoch, free=False)
        etag = swap(self._store, self._key, data, over, self._retry)
        if etag is None:
            found = self._store.get(self._key, DOCUMENT_BYTES_MAX)
            if found.data != data:
                raise self._busy(self._parsed(found.data))
            etag = found.etag
        self._etag, self.epoch, self._renewed_s = etag, epoch, asked_s

    def _data(self, epoch: int, *, free: bool) -> bytes:
        self._renewals += 1
        return json.dumps(
            {
                "epoch": epoch,
                "holder": self._holder,
                "nonce": f"{self._nonce}-{self._renewals}",
                "lease_s": self.lease_s,
                "free": free,
            }
        ).encode()

    def __enter__(self) -> Self:
        self.acquire()
        self._thread = threading.Thread(target=self._renew_on, name="keyfold-restore-lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def release(self) -> None:
        """Say that nothing is under way any more: the next run need not wait. Only after all channels are closed."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._lost is None:
            try:
                swap(self._store, self._key, self._data(self.epoch, free=True), self._etag)
            except KeyfoldError:
                return  # the next run waits a little longer

    def _renew_on(self) -> None:
        while self._lost is None and not self._done.wait(self.lease_s * RENEW_SHARE):
            self._renew()

    def _renew(self) -> None:
        with self._lock:
            asked_s = self._clock.monotonic_s()
            data = self._data(self.epoch, free=False)
            try:
                etag = swap(self._store, self._key, data, self._etag)
            except KeyfoldError:
                return  # unknown, or not now: the next renewal tells
            if etag is not None:
                self._etag = etag
            elif not self._has_landed(data):
                return
            self._renewed_s = asked_s

    def _has_landed(self, data: bytes) -> bool:
        """After a 412: whether this very renewal is there. An earlier one of mine is gone on from; others fence me."""
        holder = "another run"
        try:
            found = self._store.get(self._key, DOCUMENT_BYTES_MAX)
            known = self._parsed(found.data)
            if known.nonce.startswith(self._nonce):
                self._etag = found.etag
                return bool(found.data == data)
            holder = known.holder
        except ObjectNotFound:
            pass
        except KeyfoldError:
            return False  # the next renewal tells
        self._lost = RestoreFenced(
            f"{holder} has taken over this restore (`{self._key}`)",
            hint="this run produces no more records; let the other run finish",
        )
        return False

    def hold(self) -> float:
        """Return when producing is allowed, and until when (monotonic seconds) without asking again.

        Renews by itself where that is due. Raises `RestoreFenced`.
        """
        until_s = self._clock.monotonic_s() + self._retry_timeout_s
        while self._lost is None:
            fresh_until_s = self._renewed_s + self.lease_s * FRESH_SHARE
            if self._clock.monotonic_s() <= fresh_until_s:
                return fresh_until_s
            self._renew()
            if self._clock.monotonic_s() > until_s:
                raise RestoreFenced(
                    f"the lease of this restore (`{self._key}`) could not be renewed for {self._retry_timeout_s:.0f} s",
                    hint="check that the store answers, and run the command again",
                )
            self._clock.sleep(_HOLD_STEP_S)
        raise self._lost
