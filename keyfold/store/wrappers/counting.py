"""A store that counts requests, which cost money, and bytes, which cost time.

Operations have the same names as in `keyfold.store.wrappers.faults`: the calls of `ObjectStore`, `upload.write`,
`upload.complete` and `upload.abort`, and `start_copy` and `resume_upload` if the store has them. A call is counted when
it is made, its bytes when they have been transferred. A copy inside the store transfers no bytes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from keyfold.runtime.buffers import Bytes
from keyfold.store.api import (
    Blob,
    CopyingStore,
    ObjectInfo,
    ObjectStore,
    PutMode,
    PutResult,
    ResumedUpload,
    ResumingStore,
    ServerCopy,
    Upload,
    UploadInfo,
)


class CountedStore:
    """An `ObjectStore` that counts and delegates every call. Thread-safe."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """URL of the inner store."""
        return self.inner.url

    @property
    def calls(self) -> Counter[str]:
        """Calls so far, by operation."""
        with self._lock:
            return self._calls.copy()

    @property
    def bytes_moved(self) -> Counter[str]:
        """Bytes of bodies so far, by operation."""
        with self._lock:
            return self._bytes.copy()

    @property
    def bytes_read(self) -> int:
        """Received bytes of bodies."""
        moved = self.bytes_moved
        return moved["get"] + moved["get_range"]

    @property
    def bytes_written(self) -> int:
        """Sent bytes of bodies, including those of refused requests."""
        moved = self.bytes_moved
        return moved["put"] + moved["upload.write"]

    def reset(self) -> None:
        """Reset all counts to zero."""
        with self._lock:
            self._calls.clear()
            self._bytes.clear()

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        self.count("get")
        blob = self.inner.get(key, max_bytes)
        self.moved("get", len(blob.data))
        return blob

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        self.count("get_range")
        data = self.inner.get_range(key, start, length)
        self.moved("get_range", len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        self.count("head")
        return self.inner.head(key)

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        self.count("put")
        self.moved("put", len(data))
        return self.inner.put(key, data, mode)

    def start_upload(self, key: str) -> CountedUpload:
        """See `ObjectStore.start_upload`."""
        self.count("start_upload")
        return CountedUpload(self, self.inner.start_upload(key))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`; counts one call for any number of pages."""
        self.count("list")
        return self.inner.list(prefix, start_after=start_after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`."""
        self.count("list_folders")
        return self.inner.list_folders(prefix)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self.count("delete")
        self.inner.delete(key)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`."""
        self.count("list_uploads")
        return self.inner.list_uploads(prefix)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
        self.count("abort_upload")
        self.inner.abort_upload(key, upload_id)

    def resume_upload(self, key: str) -> CountedResumedUpload | None:
        """See `ResumingStore.resume_upload`."""
        if not isinstance(self.inner, ResumingStore):
            return None
        self.count("resume_upload")
        begun = self.inner.resume_upload(key)
        return None if begun is None else CountedResumedUpload(self, begun)

    def copies_from(self, source: ObjectStore) -> bool:
        """See `CopyingStore.copies_from`."""
        return isinstance(self.inner, CopyingStore) and self.inner.copies_from(source)

    def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> ServerCopy | None:
        """See `CopyingStore.start_copy`."""
        if not isinstance(self.inner, CopyingStore):
            return None
        self.count("start_copy")
        copied = self.inner.start_copy(source, source_key, key, size_bytes)
        return None if copied is None else CountedCopy(self, copied)

    def count(self, operation: str) -> None:
        """Count one call (also for `CountedUpload`)."""
        with self._lock:
            self._calls[operation] += 1

    def moved(self, operation: str, size_bytes: int) -> None:
        """Count the bytes of one call (also for `CountedUpload`)."""
        with self._lock:
            self._bytes[operation] += size_bytes


class CountedUpload:
    """An upload of a `CountedStore`."""

    def __init__(self, store: CountedStore, inner: Upload) -> None:
        self._store = store
        self._inner = inner

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        self._store.count("upload.write")
        self._store.moved("upload.write", len(part))
        self._inner.write(part)

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        self._store.count("upload.complete")
        return self._inner.complete()

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._store.count("upload.abort")
        self._inner.abort()


class CountedResumedUpload(CountedUpload):
    """A resumed upload of a `CountedStore`."""

    def __init__(self, store: CountedStore, inner: ResumedUpload) -> None:
        super().__init__(store, inner)
        self._resumed = inner

    def keep(self, part: Bytes) -> bool:
        """See `ResumedUpload.keep`."""
        return self._resumed.keep(part)


class CountedCopy:
    """A copy inside the store of a `CountedStore`."""

    def __init__(self, store: CountedStore, inner: ServerCopy) -> None:
        self._store = store
        self._inner = inner

    @property
    def sha256(self) -> bytes:
        """See `ServerCopy.sha256`."""
        return self._inner.sha256

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        self._store.count("upload.complete")
        return self._inner.complete()

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._store.count("upload.abort")
        self._inner.abort()
