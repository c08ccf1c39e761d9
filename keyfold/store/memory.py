"""The reference store: a dict behind one lock.

It keeps exactly the promises of the protocol. A condition is checked and applied in one step. Every write gets a unique
ETag (by default even for equal bytes). Listings are in the order of the UTF-8 keys. Parts are invisible until the
upload is complete, and times come from the given clock. It also refuses what S3 refuses (an upload without parts, a
short part that is not the last), so that tests on it are meaningful.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from keyfold.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StoreError, UploadLost
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import Clock, SystemClock
from keyfold.store.api import (
    MIN_PART_BYTES,
    Blob,
    Create,
    ObjectInfo,
    ObjectStore,
    PutMode,
    PutResult,
    UploadInfo,
    require_size,
)
from keyfold.store.wrappers.base import unwrapped


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class _Parts:
    key: str
    started_ms: int
    parts: dict[int, bytes]


class MemoryStore:
    """An `ObjectStore` in this process. A low `min_part_bytes` lets tests work without 5 MiB parts.

    With `content_etags` an ETag is the MD5 of the bytes, as on S3: equal bytes have equal ETags, and an update can
    succeed after the object was changed and changed back. Stores with the same `server` can copy from each other
    (`CopyingStore`); a store without `server` can only copy within itself.
    """

    def __init__(
        self,
        name: str = "test",
        clock: Clock | None = None,
        *,
        min_part_bytes: int = MIN_PART_BYTES,
        content_etags: bool = False,
        server: str = "",
    ) -> None:
        self.name = name
        self.server = server
        self._clock: Clock = SystemClock() if clock is None else clock
        self._min_part_bytes = min_part_bytes
        self._content_etags = content_etags
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[str, _Parts] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """`memory://<name>`."""
        return f"memory://{self.name}"

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        with self._lock:
            found = self._find(key)
            require_size(key, len(found.data), max_bytes)
            return Blob(found.data, found.etag, found.last_modified_ms, self._clock.now_ms())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        if start < 0 or length < 0:
            raise ValueError(f"invalid range: {start=}, {length=}")
        with self._lock:
            data = self._find(key).data
        if start + length > len(data):
            raise StoreError(key, f"asked for {length} bytes from {start}, but the object has {len(data)}")
        return data[start : start + length]

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        with self._lock:
            return _info(key, self._find(key))

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        copy = bytes(data)
        with self._lock:
            self._check(key, mode)
            return self._write(key, copy)

    def start_upload(self, key: str) -> MemoryUpload:
        """See `ObjectStore.start_upload`."""
        with self._lock:
            upload_id = f"upload-{next(self._numbers)}"
            self._uploads[upload_id] = _Parts(key, self._clock.now_ms(), {})
        return MemoryUpload(self, key, upload_id)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`; a snapshot taken at the first row."""
        after = start_after.encode()
        with self._lock:
            rows = [
                _info(key, found)
                for key, found in self._objects.items()
                if key.startswith(prefix) and key.encode() > after
            ]
        yield from sorted(rows, key=lambda row: row.key.encode())

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`."""
        with self._lock:
            rests = [key[len(prefix) :] for key in self._objects if key.startswith(prefix)]
        yield from sorted({rest.split("/", 1)[0] for rest in rests if "/" in rest}, key=str.encode)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        with self._lock:
            self._objects.pop(key, None)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`."""
        with self._lock:
            rows = [
                UploadInfo(parts.key, upload_id, parts.started_ms)
                for upload_id, parts in self._uploads.items()
                if parts.key.startswith(prefix)
            ]
        yield from sorted(rows, key=lambda row: (row.key.encode(), row.started_ms))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
        with self._lock:
            found = self._uploads.get(upload_id)
            if found is not None and found.key == key:
                del self._uploads[upload_id]

    def resume_upload(self, key: str) -> MemoryUpload | None:
        """See `ResumingStore.resume_upload`."""
        with self._lock:
            begun = {upload_id: dict(u.parts) for upload_id, u in self._uploads.items() if u.key == key and u.parts}
        if not begun:
            return None
        upload_id, there = max(begun.items(), key=lambda item: len(item[1]))
        return MemoryUpload(self, key, upload_id, there)

    def copies_from(self, source: ObjectStore) -> bool:
        """See `CopyingStore.copies_from`."""
        other = unwrapped(source)
        return other is self or (isinstance(other, MemoryStore) and bool(self.server) and other.server == self.server)

    def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> MemoryCopy | None:
        """See `CopyingStore.start_copy`."""
        if not self.copies_from(source):
            return None
        data = unwrapped(source).get(source_key).data
        if len(data) != size_bytes:
            return None
        upload = self.start_upload(key)
        upload.write(data)
        return MemoryCopy(upload, _sum(data))

    def write_part(self, key: str, upload_id: str, part: Bytes, number: int) -> None:
        """Add or replace a part of an unfinished upload (what `MemoryUpload.write` does)."""
        copy = bytes(part)
        with self._lock:
            parts = self._parts(key, upload_id).parts
            before = parts.get(number - 1, b"")
            if number > 1 and len(before) < self._min_part_bytes:
                raise StoreError(key, f"part {number - 1} has {len(before)} bytes: only the last may be so short")
            parts[number] = copy

    def complete_upload(self, key: str, upload_id: str, sums: Sequence[bytes]) -> PutResult:
        """Make an upload's object visible, from the parts with these SHA-256 (what `MemoryUpload.complete` does)."""
        with self._lock:
            if upload_id not in self._uploads and key in self._objects:
                return PutResult(self._objects[key].etag, self._clock.now_ms())
            parts = self._parts(key, upload_id).parts
            if not sums:
                raise StoreError(key, "an upload needs at least one part")
            taken = [parts.get(number + 1, b"") for number in range(len(sums))]
            if [_sum(part) for part in taken] != [*sums]:
                raise UploadLost(key, "another process has replaced one of its parts")
            self._check(key, Create())
            del self._uploads[upload_id]
            return self._write(key, b"".join(taken))

    def _find(self, key: str) -> _Object:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key, f"no such object in {self.url}")
        return found

    def _parts(self, key: str, upload_id: str) -> _Parts:
        found = self._uploads.get(upload_id)
        if found is None:
            raise UploadLost(key, f"the store does not know upload {upload_id}")
        return found

    def _check(self, key: str, mode: PutMode) -> None:
        found = self._objects.get(key)
        if isinstance(mode, Create):
            if found is not None:
                raise AlreadyExists(key, "the object already exists")
        elif found is None:
            raise ObjectNotFound(key, f"no such object in {self.url} to update")
        elif found.etag != mode.etag:
            raise PreconditionFailed(key, f"its ETag is {found.etag}, not {mode.etag}")

    def _write(self, key: str, data: bytes) -> PutResult:
        now_ms = self._clock.now_ms()
        number = f"{next(self._numbers):016x}"
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest() if self._content_etags else number
        written = _Object(data, f'"{etag}"', now_ms)
        self._objects[key] = written
        return PutResult(written.etag, now_ms)


class MemoryUpload:
    """An unfinished upload of a `MemoryStore`; `there` are the parts that it had when it was resumed."""

    def __init__(self, store: MemoryStore, key: str, upload_id: str, there: Mapping[int, bytes] | None = None) -> None:
        self._store = store
        self.key = key
        self.upload_id = upload_id
        self._there = there or {}
        self._sums: list[bytes] = []

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        self._store.write_part(self.key, self.upload_id, part, len(self._sums) + 1)
        self._sums.append(_sum(part))

    def keep(self, part: Bytes) -> bool:
        """See `ResumedUpload.keep`."""
        is_there = self._there.get(len(self._sums) + 1) == part
        if is_there:
            self._sums.append(_sum(part))
        return is_there

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self._store.complete_upload(self.key, self.upload_id, self._sums)

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._store.abort_upload(self.key, self.upload_id)


@dataclass(frozen=True, slots=True)
class MemoryCopy:
    """A copy within a server, not visible yet."""

    upload: MemoryUpload
    sha256: bytes

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self.upload.complete()

    def abort(self) -> None:
        """See `Upload.abort`."""
        self.upload.abort()


def _info(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(found.data), found.etag, found.last_modified_ms)


def _sum(part: Bytes) -> bytes:
    return hashlib.sha256(part).digest()
