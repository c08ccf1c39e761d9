"""One object into the replica. It becomes visible, create-only, when all its bytes have been summed up and agree.

    small             one GET, one PUT
    large             fetched in ranges that are the parts of an upload, the next one while one is sent; the upload is
                      completed after the sum. What another process has sent of it is not sent again
                      (`keyfold.store.api.ResumingStore`)
    inside a store    copied by the store itself where both ends are its own and it says the SHA-256 of what it has
                      copied (`keyfold.store.api.CopyingStore`); where it cannot after all, the bytes are sent

What fails leaves nothing visible. Where going on may help (the store is away, the process stops), the parts that were
sent stay for whoever comes next; what is never wanted again is the collector's (`keyfold_compactor.replica.collect`).
Bytes that do not agree are fetched once more, for they may have been damaged on their way.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from keyfold.errors import (
    AccessDenied,
    AlreadyExists,
    BucketMissing,
    Corrupt,
    KeyfoldError,
    ObjectNotFound,
    ReplicaDiverged,
    StoreError,
    UploadLost,
)
from keyfold.log.commit import Patience
from keyfold.log.names import Place, schema_key
from keyfold.log.objects import PART_BYTES, NameTaken, ObjectStream, create_object, part_bytes
from keyfold.store.api import Bytes, CopyingStore, ObjectStore, ResumedUpload, ResumingStore
from keyfold.store.pace import CHUNK_BYTES, Pacer
from keyfold_compactor.overlap import FetchAhead
from keyfold_compactor.replica.memory import Memory

STORE_COPY_BYTES_MIN: Final = 1024 * 1024
"""A copy inside a store takes three requests that cost as writes do, sending takes one and a read."""

LARGE_BYTES: Final = 4 * PART_BYTES
"""Of an object of this size it is asked first whether it is there: a request is less than sending it in vain."""

_SMALL_HELD_PARTS: Final = 2  # as it came, and as boto3 sends it
_LARGE_HELD_PARTS: Final = 4  # fetched ahead, come, being sent, and that in boto3's hands


class TransferStopped(KeyfoldError):
    """The copying was stopped before it was done; nothing is wrong with the object."""

    retriable = True


@dataclass(frozen=True, slots=True)
class CopyJob:
    """An object of the source partition at `place`, by its name in the partition's folder, as its manifest has it."""

    place: Place
    name: str
    size_bytes: int
    sha256: bytes

    @property
    def key(self) -> str:
        """Its key at the source."""
        return self.place.key(self.name)


class Way(Enum):
    """How an object came to be at the replica."""

    SENT = "sent"
    COPIED_BY_STORE = "copied by the store"
    WAS_THERE = "was there"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """One object that is at the replica now. `sent_bytes` went out from here for it, repetitions not counted."""

    job: CopyJob
    way: Way
    sent_bytes: int


class _Disagrees(Exception):
    """The bytes that came are not those that the manifest names."""


_NEVER_AGAIN: Final = (_Disagrees, ObjectNotFound, UploadLost, NameTaken)
"""After these the parts that were sent are of no use; after others they stay for whoever goes on."""


class Carrier:
    """Carries objects one by one, each in the thread that asks for it. Thread-safe."""

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        topics_dir: str,
        patience: Patience,
        memory: Memory,
        stopping: threading.Event,
        *,
        pacer: Pacer | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._topics_dir = topics_dir
        self._patience = patience
        self.memory = memory
        self._stopping = stopping
        self._pacer = pacer
        self._store_copies = isinstance(target, CopyingStore) and target.copies_from(source)

    def carry(self, job: CopyJob, stop: threading.Event) -> CopyResult:
        """See to it that the object is at the replica. Raises what `Transfer.copy` says."""
        target_key = replace(job.place, topics_dir=self._topics_dir).key(job.name)
        with self.memory.taken(_held_bytes(job)):
            try:
                self._go_on(job, stop)
                try:
                    return self._carry(job, target_key, stop, is_first=True)
                except (UploadLost, _Disagrees):
                    self._go_on(job, stop)
                return self._carry(job, target_key, stop, is_first=False)
            except _Disagrees as error:
                raise self._corrupt(job, str(error)) from None
            except NameTaken as error:
                raise self._diverged(job, error) from error

    def carry_schema(self, topics_dir: str, schema: int | str) -> bool:
        """See `Transfer.copy_schemas`; whether it was sent."""
        source_key, target_key = schema_key(topics_dir, schema), schema_key(self._topics_dir, schema)
        with _about(self._source):
            try:
                data = self._patience.repeat(lambda: self._source.get(source_key)).data
            except ObjectNotFound:
                return False
        with _about(self._target):
            with contextlib.suppress(NameTaken):
                create_object(self._target, target_key, data, self._patience)
            if self._patience.repeat(lambda: self._target.get(target_key)).data == data:
                return True
            raise NameTaken(
                target_key,
                "holds another schema than the source has under this id",
                hint="give the replica a topics directory that no other registry's schemas are in",
            )

    # The ways

    def _carry(self, job: CopyJob, target_key: str, stop: threading.Event, *, is_first: bool) -> CopyResult:
        """One attempt. The second one makes no use of what was begun before."""
        if (job.size_bytes >= LARGE_BYTES or not is_first) and self._is_there(job, target_key):
            return CopyResult(job, Way.WAS_THERE, 0)
        if is_first and self._copied_by_store(job, target_key):
            return CopyResult(job, Way.COPIED_BY_STORE, 0)
        if job.size_bytes <= PART_BYTES:
            return self._carry_small(job, target_key)
        return self._carry_large(job, target_key, self._left_by_others(target_key) if is_first else None, stop)

    def _is_there(self, job: CopyJob, target_key: str) -> bool:
        with _about(self._target):
            try:
                found = self._patience.repeat(lambda: self._target.head(target_key))
            except ObjectNotFound:
                return False
            if found.size_bytes != job.size_bytes:
                raise NameTaken(target_key, f"holds {found.size_bytes} bytes where {job.size_bytes} belong")
        return True

    def _carry_small(self, job: CopyJob, target_key: str) -> CopyResult:
        self._pace(job.size_bytes)
        with _about(self._source):
            data = self._patience.repeat(lambda: self._source.get(job.key)).data
        if len(data) != job.size_bytes:
            raise _Disagrees(f"has {len(data)} bytes, the manifest says {job.size_bytes}")
        _require_sum(hashlib.sha256(data).digest(), job)
        with _about(self._target):
            create_object(self._target, target_key, data, self._patience)
        return CopyResult(job, Way.SENT, job.size_bytes)

    def _carry_large(
        self, job: CopyJob, target_key: str, begun: ResumedUpload | None, stop: threading.Event
    ) -> CopyResult:
        stream = ObjectStream(self._target, target_key, self._patience, begun=begun)
        digest = hashlib.sha256()
        try:
            with contextlib.closing(self._pieces(job, stop)) as pieces:
                for piece in pieces:
                    digest.update(piece)
                    with _about(self._target):
                        stream.write((piece,))
            _require_sum(digest.digest(), job)
            with _about(self._target):
                stream.finish()
        except _NEVER_AGAIN:
            stream.abandon()
            raise
        return CopyResult(job, Way.SENT, job.size_bytes - stream.kept_bytes)

    def _copied_by_store(self, job: CopyJob, target_key: str) -> bool:
        """Whether the store has done it; not where it cannot, or tells another sum: sending shows what is wrong."""
        target = self._target
        if not self._store_copies or job.size_bytes < STORE_COPY_BYTES_MIN or not isinstance(target, CopyingStore):
            return False
        try:
            copied = self._patience.repeat(lambda: target.start_copy(self._source, job.key, target_key, job.size_bytes))
        except ObjectNotFound as error:
            error.host = error.host or self._source.url
            raise
        except StoreError as error:
            self._store_copies = error.retriable
            return False
        if copied is None:
            self._store_copies = False
            return False
        if copied.sha256 != job.sha256:
            with contextlib.suppress(StoreError):
                copied.abort()
            return False
        with _about(target):
            try:
                self._patience.repeat(copied.complete)
            except (AlreadyExists, UploadLost):
                with contextlib.suppress(StoreError):
                    copied.abort()
                return self._is_there(job, target_key)
        return True

    # What they are made of

    def _pieces(self, job: CopyJob, stop: threading.Event) -> Generator[Bytes, None, None]:
        def fetch(start: int, length: int) -> Bytes:
            self._go_on(job, stop)
            self._pace(length)
            with _about(self._source):
                return self._patience.repeat(lambda: self._source.get_range(job.key, start, length))

        try:
            with FetchAhead(fetch, _parts(job.size_bytes)) as ahead:
                for start, length in _parts(job.size_bytes):
                    yield ahead(start, length)
        except StoreError as error:
            if error.retriable or isinstance(error, ObjectNotFound | AccessDenied | BucketMissing):
                raise
            with _about(self._source):
                found = self._patience.repeat(lambda: self._source.head(job.key))
            if found.size_bytes == job.size_bytes:
                raise
            raise _Disagrees(f"has {found.size_bytes} bytes, the manifest says {job.size_bytes}") from error

    def _left_by_others(self, target_key: str) -> ResumedUpload | None:
        """An upload of this object that nobody has ended."""
        target = self._target
        if not isinstance(target, ResumingStore):
            return None
        with _about(target):
            return self._patience.repeat(lambda: target.resume_upload(target_key))

    def _pace(self, n_bytes: int) -> None:
        if self._pacer is not None:
            for start in range(0, n_bytes, CHUNK_BYTES):
                self._pacer.acquire(min(CHUNK_BYTES, n_bytes - start))

    def _go_on(self, job: CopyJob, stop: threading.Event) -> None:
        if stop.is_set() or self._stopping.is_set():
            raise TransferStopped(f"{job.place}: copying of {job.name} was stopped")

    # What is said

    def _corrupt(self, job: CopyJob, what: str) -> Corrupt:
        error = Corrupt(
            job.place.topic,
            job.place.partition,
            f"`{job.key}` in {self._source.url} {what}",
            hint=f"nothing was copied; run `keyfold log verify <url of the source> {job.place.topic}`",
        )
        error.host = self._source.url
        return error

    def _diverged(self, job: CopyJob, error: NameTaken) -> ReplicaDiverged:
        told = ReplicaDiverged(
            job.place.topic,
            job.place.partition,
            f"in {self._target.url} {error.message}",
            hint="names are never reused: something else writes into the replica's folder; stop it, delete the object",
        )
        told.host = error.host
        return told


def _parts(size_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, length) of the parts of an object, as `ObjectStream` cuts it."""
    start = 0
    while start < size_bytes:
        length = min(part_bytes(start), size_bytes - start)
        yield start, length
        start += length


def _held_bytes(job: CopyJob) -> int:
    if job.size_bytes <= PART_BYTES:
        return _SMALL_HELD_PARTS * job.size_bytes
    return min(_LARGE_HELD_PARTS * part_bytes(job.size_bytes), _SMALL_HELD_PARTS * job.size_bytes)


def _require_sum(found: bytes, job: CopyJob) -> None:
    if found != job.sha256:
        raise _Disagrees("has another SHA-256 than the manifest says")


@contextlib.contextmanager
def _about(store: ObjectStore) -> Iterator[None]:
    """Says in an error which store it is about, where the store itself has not."""
    try:
        yield
    except KeyfoldError as error:
        error.host = error.host or store.url
        raise
