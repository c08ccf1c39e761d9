"""Copy one object to the replica. It becomes visible, create-only, once the checksum of all its bytes is right.

    small             one GET, one PUT
    large             fetched in ranges that are the parts of an upload, the next one while one is sent; the upload is
                      completed after the checksum. Parts that another process has sent are not sent again
                      (`keyfold.store.api.ResumingStore`)
    inside a store    copied by the store itself if it has both sides and reports the SHA-256 of the copy
                      (`keyfold.store.api.CopyingStore`); if it cannot after all, the bytes are sent

A failure leaves nothing visible. If a retry may continue (the store is away, the process stops), sent parts stay for
the next process; unwanted parts are garbage (`rounds.gc`). Bytes with a wrong checksum are fetched once more,
because they may have been damaged on the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
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
from keyfold.log.names import schema_key
from keyfold.log.objects import PART_BYTES, NameTaken, ObjectStream, create_object, part_bytes
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import Clock
from keyfold.runtime.overlap import FetchAhead
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import CopyingStore, ObjectStore, ResumedUpload, ResumingStore, ServerCopy
from keyfold.store.pacing import CHUNK_BYTES, Pacer
from keyfold.store.wrappers.base import unwrapped
from keyfold_replicator.copy.jobs import CopyJob, CopyMethod, CopyResult, TransferStopped
from keyfold_replicator.copy.memory_budget import CopyMemoryBudget

STORE_COPY_BYTES_MIN: Final = 1024 * 1024
"""A copy inside a store takes three requests that cost as much as writes; sending takes one and a read."""

LARGE_BYTES: Final = 4 * PART_BYTES
"""The replica is first asked for an object of at least this size: a request costs less than sending it in vain."""

_COPY_FAILURES_MAX: Final = 3
_SLEEP_S: Final = 0.25
_SMALL_HELD_PARTS: Final = 2  # as it came, and as boto3 sends it
_LARGE_HELD_PARTS: Final = 4  # fetched ahead, come, being sent, and that in boto3's hands


class _WrongBytes(Exception):
    """The bytes are not those that the manifest names."""


_NOT_OF_THE_UPLOAD: Final = (UploadLost, NameTaken, AccessDenied, BucketMissing)

_PARTS_USELESS_AFTER: Final = (_WrongBytes, ObjectNotFound, UploadLost, NameTaken)
"""After these errors the sent parts are of no use; after others they stay for the next process."""


class ObjectCopier:
    """Copy objects, each in the caller's thread. Thread-safe."""

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        topics_dir: str,
        retry: RetryPolicy,
        memory: CopyMemoryBudget,
        stopping: threading.Event,
        *,
        pacer: Pacer | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.topics_dir = topics_dir
        self.retry = retry
        self.memory = memory
        self.stopping = stopping
        self._pacer = pacer
        self._may_copy = isinstance(target, CopyingStore) and target.copies_from(source)
        self._copy_failures = 0

    def copy_object(self, job: CopyJob, stop: threading.Event) -> CopyResult:
        """Ensure that the object is at the replica. Raise what `Transfer.copy` documents."""
        one = _ObjectCopy(self, job, stop)
        with self.memory.reserved(_held_bytes(job)):
            try:
                try:
                    return one.run(is_first=True)
                except (UploadLost, _WrongBytes):
                    return one.run(is_first=False)
            except _WrongBytes as error:
                raise self._corrupt(job, str(error)) from None
            except NameTaken as error:
                raise self._diverged(job, error) from error

    def copy_schema(self, topics_dir: str, schema: int | str) -> bool:
        """See `Transfer.copy_schemas`; return whether the schema was sent."""
        source_key, target_key = schema_key(topics_dir, schema), schema_key(self.topics_dir, schema)
        with naming_host(self.source):
            try:
                data = self.retry.repeat(lambda: self.source.get(source_key)).data
            except ObjectNotFound:
                return False
        with naming_host(self.target):
            with contextlib.suppress(NameTaken):
                create_object(self.target, target_key, data, self.retry)
            if self.retry.repeat(lambda: self.target.get(target_key)).data == data:
                return True
            raise NameTaken(
                target_key,
                "holds another schema than the source has for this id",
                hint="give the replica a topics directory that holds no schemas of another registry",
            )

    def copying_target(self) -> CopyingStore | None:
        """Return the target if it is worth asking it to copy by itself."""
        may = self._may_copy and self._copy_failures < _COPY_FAILURES_MAX
        return self.target if may and isinstance(self.target, CopyingStore) else None

    def count_copy(self, *, has_failed: bool) -> None:
        """Count failures of the target's own copies. Stop asking after several in a row: each may take minutes."""
        self._copy_failures = self._copy_failures + 1 if has_failed else 0

    def note_no_copies(self) -> None:
        """Note that the target does not copy by itself, or not in a way that can be trusted."""
        self._may_copy = False

    def pace(self, n_bytes: int) -> None:
        """Return when `n_bytes` may be fetched."""
        if self._pacer is not None:
            for start in range(0, n_bytes, CHUNK_BYTES):
                self._pacer.acquire(min(CHUNK_BYTES, n_bytes - start))

    def _corrupt(self, job: CopyJob, what: str) -> Corrupt:
        error = Corrupt(
            job.place.topic,
            job.place.partition,
            f"`{job.key}` in {self.source.url} {what}",
            hint=f"the object was not copied; run `keyfold log verify <url of the source> {job.place.topic}`",
        )
        error.host = host_of(self.source)
        return error

    def _diverged(self, job: CopyJob, error: NameTaken) -> ReplicaDiverged:
        diverged = ReplicaDiverged(
            job.place.topic,
            job.place.partition,
            f"in {self.target.url} {error.message}",
            hint="another process writes into the replica's folder; stop it, and delete the object",
        )
        diverged.host = error.host
        return diverged


class _ObjectCopy:
    """One object in progress, in one thread."""

    def __init__(self, copier: ObjectCopier, job: CopyJob, stop: threading.Event) -> None:
        self._copier = copier
        self._source = copier.source
        self._target = copier.target
        self._job = job
        self._key = replace(job.place, topics_dir=copier.topics_dir).own_key(job.name)
        self._stop = stop
        retry = copier.retry
        self._retry = replace(retry, clock=_StoppableClock(retry.clock, self._require_running))

    def run(self, *, is_first: bool) -> CopyResult:
        """Make one attempt. The second one does not use anything that was begun before."""
        self._require_running()
        job = self._job
        if (job.size_bytes >= LARGE_BYTES or not is_first) and self._is_at_replica():
            return CopyResult(job, CopyMethod.WAS_THERE, 0)
        if is_first and job.size_bytes >= STORE_COPY_BYTES_MIN and self._is_copied_by_store():
            return CopyResult(job, CopyMethod.COPIED_BY_STORE, 0)
        if job.size_bytes <= PART_BYTES:
            return CopyResult(job, CopyMethod.SENT, self._send_small())
        return CopyResult(job, CopyMethod.SENT, self._send_large(self._unfinished_upload() if is_first else None))

    def _is_at_replica(self) -> bool:
        with naming_host(self._target):
            try:
                found = self._retry.repeat(lambda: self._target.head(self._key))
            except ObjectNotFound:
                return False
            if found.size_bytes != self._job.size_bytes:
                raise NameTaken(self._key, f"holds {found.size_bytes} bytes instead of {self._job.size_bytes}")
        return True

    def _send_small(self) -> int:
        job = self._job
        self._copier.pace(job.size_bytes)
        with naming_host(self._source):
            data = self._retry.repeat(lambda: self._source.get(job.key)).data
        if len(data) != job.size_bytes:
            raise _WrongBytes(f"has {len(data)} bytes, but the manifest says {job.size_bytes}")
        self._require_checksum(hashlib.sha256(data).digest())
        with naming_host(self._target):
            create_object(self._target, self._key, data, self._retry)
        return job.size_bytes

    def _send_large(self, unfinished: ResumedUpload | None) -> int:
        stream = ObjectStream(self._target, self._key, self._retry, begun=unfinished)
        digest = hashlib.sha256()
        try:
            with contextlib.closing(self._pieces()) as pieces:
                for piece in pieces:
                    digest.update(piece)
                    with naming_host(self._target), self._aborting_refused_upload(unfinished):
                        stream.write((piece,))
            self._require_checksum(digest.digest())
            with naming_host(self._target), self._aborting_refused_upload(unfinished):
                stream.finish()
        except _PARTS_USELESS_AFTER:
            stream.abandon()
            raise
        return self._job.size_bytes - stream.kept_bytes

    @contextlib.contextmanager
    def _aborting_refused_upload(self, unfinished: ResumedUpload | None) -> Iterator[None]:
        """Abort another process's upload if the store refuses to continue it, and start the object again.

        The refusal (its key is gone, for example) may concern only that upload. If it stayed, each attempt would resume
        it.
        """
        try:
            yield
        except StoreError as error:
            if unfinished is None or error.retriable or isinstance(error, _NOT_OF_THE_UPLOAD):
                raise
            with contextlib.suppress(StoreError):
                unfinished.abort()
            raise UploadLost(self._key, f"its upload cannot be continued and begins again: {error.message}") from error

    def _is_copied_by_store(self) -> bool:
        """Whether the store has copied the object. If not, or with another checksum, sending shows what is wrong."""
        job, target = self._job, self._copier.copying_target()
        if target is None:
            return False
        try:
            copied = self._retry.repeat(lambda: target.start_copy(self._source, job.key, self._key, job.size_bytes))
        except ObjectNotFound as error:
            error.host = error.host or host_of(self._source)
            raise
        except StoreError:
            self._copier.count_copy(has_failed=True)
            return False
        if copied is None:
            self._copier.note_no_copies()
            return False
        if copied.sha256 != job.sha256:
            with contextlib.suppress(StoreError):
                copied.abort()
            return False
        with naming_host(self._target):
            return self._is_made_visible(copied)

    def _is_made_visible(self, copied: ServerCopy) -> bool:
        """Whether the copy has become the object; False if the store refuses what it has copied."""
        try:
            self._retry.repeat(copied.complete)
        except StoreError as error:
            if error.retriable:
                raise
            with contextlib.suppress(StoreError):
                copied.abort()
            if isinstance(error, AlreadyExists | UploadLost):
                return self._is_at_replica()
            self._copier.count_copy(has_failed=True)
            return False
        self._copier.count_copy(has_failed=False)
        return True

    def _pieces(self) -> Generator[Bytes, None, None]:
        """Yield the object's bytes, cut like its parts; the next ones are fetched while these are used."""
        job = self._job

        def fetch(start: int, length: int) -> Bytes:
            self._require_running()
            self._copier.pace(length)
            with naming_host(self._source):
                return self._retry.repeat(lambda: self._source.get_range(job.key, start, length))

        try:
            with FetchAhead(fetch, _parts(job.size_bytes)) as ahead:
                for start, length in _parts(job.size_bytes):
                    yield ahead(start, length)
        except StoreError as error:
            if error.retriable or isinstance(error, ObjectNotFound | AccessDenied | BucketMissing):
                raise
            with naming_host(self._source):
                found = self._retry.repeat(lambda: self._source.head(job.key))
            if found.size_bytes == job.size_bytes:
                raise
            raise _WrongBytes(f"has {found.size_bytes} bytes, but the manifest says {job.size_bytes}") from error

    def _unfinished_upload(self) -> ResumedUpload | None:
        """Return an unfinished upload of this object; None if there is none, or the store does not say."""
        target = self._target
        if not isinstance(target, ResumingStore):
            return None
        with naming_host(target):
            try:
                return self._retry.repeat(lambda: target.resume_upload(self._key))
            except StoreError as error:
                if error.retriable:
                    raise
                return None

    def _require_checksum(self, found: bytes) -> None:
        if found != self._job.sha256:
            raise _WrongBytes("does not have the SHA-256 of the manifest")

    def _require_running(self) -> None:
        if self._stop.is_set() or self._copier.stopping.is_set():
            raise TransferStopped(f"{self._job.place}: the copy of {self._job.name} was stopped")


class _StoppableClock:
    """A clock whose sleeps end when `require_running` raises."""

    def __init__(self, inner: Clock, require_running: Callable[[], None]) -> None:
        self._inner = inner
        self._require_running = require_running
        self.now_ms = inner.now_ms
        self.monotonic_s = inner.monotonic_s

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        while seconds > 0:
            self._require_running()
            self._inner.sleep(min(seconds, _SLEEP_S))
            seconds -= _SLEEP_S


def _parts(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of an object's parts, as `ObjectStream` cuts it."""
    start = 0
    while start < size_bytes:
        length = min(part_bytes(start), size_bytes - start)
        yield start, length
        start += length


def _held_bytes(job: CopyJob) -> int:
    if job.size_bytes <= PART_BYTES:
        return _SMALL_HELD_PARTS * job.size_bytes
    return min(_LARGE_HELD_PARTS * part_bytes(job.size_bytes), _SMALL_HELD_PARTS * job.size_bytes)


@contextlib.contextmanager
def naming_host(store: ObjectStore) -> Iterator[None]:
    """Add the store's host to errors that do not name one."""
    try:
        yield
    except KeyfoldError as error:
        error.host = error.host or host_of(store)
        raise


def host_of(store: ObjectStore) -> str:
    """Return `host:port` of a store, or the URL of one without a host."""
    return str(getattr(unwrapped(store), "host", store.url))
