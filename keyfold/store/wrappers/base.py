"""The base of stores around another store: every call is delegated, through a few methods that subclasses override.

    perform         one request: count it, time it, repeat it, or let it fail. Operations are named after the calls of
                    `ObjectStore`, and `upload.write`, `upload.complete`, `upload.abort`, `start_copy`, `resume_upload`
    listing         one listing, whose pages are requested while it is read
    sent, received  bytes of bodies: sent before the request, received after it
    wrapped_upload  an upload that was started, so that its requests pass through `perform` too

A class that wraps every call of one kind overrides one method, and a new call of `ObjectStore` is delegated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

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

T = TypeVar("T")


def unwrapped(store: ObjectStore) -> ObjectStore:
    """Return the store inside all wrappers."""
    while (inner := getattr(store, "inner", None)) is not None:
        store = inner
    return store


class StoreWrapper:
    """An `ObjectStore` that delegates every call to `inner`."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    # What subclasses override

    def perform(self, operation: str, key: str, send: Callable[[], T], mode: PutMode | None = None) -> T:  # noqa: ARG002 - what subclasses may use
        """Make one request with `send`; `mode` is the condition of a put."""
        return send()

    def listing(self, operation: str, prefix: str, rows: Callable[[], Iterator[T]]) -> Iterator[T]:  # noqa: ARG002 - what subclasses may use
        """List with `rows`, which sends no request before its first row is read."""
        return rows()

    def sent(self, operation: str, size_bytes: int) -> None:
        """Note the bytes of a body before it is sent."""

    def received(self, operation: str, size_bytes: int) -> None:
        """Note the bytes of a body that was received."""

    def wrapped_upload(self, key: str, upload: Upload) -> Upload:
        """Return an upload whose requests pass through this store."""
        return UploadWrapper(self, key, upload)

    # `ObjectStore`

    @property
    def url(self) -> str:
        """URL of the inner store."""
        return self.inner.url

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        blob = self.perform("get", key, lambda: self.inner.get(key, max_bytes))
        self.received("get", len(blob.data))
        return blob

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        data = self.perform("get_range", key, lambda: self.inner.get_range(key, start, length))
        self.received("get_range", len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return self.perform("head", key, lambda: self.inner.head(key))

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        self.sent("put", len(data))
        return self.perform("put", key, lambda: self.inner.put(key, data, mode), mode)

    def start_upload(self, key: str) -> Upload:
        """See `ObjectStore.start_upload`."""
        return self.wrapped_upload(key, self.perform("start_upload", key, lambda: self.inner.start_upload(key)))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return self.listing("list", prefix, lambda: self.inner.list(prefix, start_after=start_after))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`."""
        return self.listing("list_folders", prefix, lambda: self.inner.list_folders(prefix))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self.perform("delete", key, lambda: self.inner.delete(key))

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`."""
        return self.listing("list_uploads", prefix, lambda: self.inner.list_uploads(prefix))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
        self.perform("abort_upload", key, lambda: self.inner.abort_upload(key, upload_id))


class FullStoreWrapper(StoreWrapper):
    """A wrapper that also resumes uploads and copies inside the store, if the inner store does."""

    def wrapped_resumed_upload(self, key: str, upload: ResumedUpload) -> ResumedUpload:
        """Return a resumed upload whose requests pass through this store."""
        return ResumedUploadWrapper(self, key, upload)

    def resume_upload(self, key: str) -> ResumedUpload | None:
        """See `ResumingStore.resume_upload`."""
        inner = self.inner
        if not isinstance(inner, ResumingStore):
            return None
        begun = self.perform("resume_upload", key, lambda: inner.resume_upload(key))
        return None if begun is None else self.wrapped_resumed_upload(key, begun)

    def copies_from(self, source: ObjectStore) -> bool:
        """See `CopyingStore.copies_from`."""
        return isinstance(self.inner, CopyingStore) and self.inner.copies_from(source)

    def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> ServerCopy | None:
        """See `CopyingStore.start_copy`."""
        inner = self.inner
        if not isinstance(inner, CopyingStore):
            return None
        copied = self.perform("start_copy", key, lambda: inner.start_copy(source, source_key, key, size_bytes))
        return None if copied is None else CopyWrapper(self, key, copied)


class UploadWrapper:
    """An upload of a `StoreWrapper`."""

    def __init__(self, store: StoreWrapper, key: str, inner: Upload) -> None:
        self._store = store
        self._key = key
        self._inner = inner

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        self._store.sent("upload.write", len(part))
        self._store.perform("upload.write", self._key, lambda: self._inner.write(part))

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self._store.perform("upload.complete", self._key, self._inner.complete)

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._store.perform("upload.abort", self._key, self._inner.abort)


class ResumedUploadWrapper(UploadWrapper):
    """A resumed upload of a `StoreWrapper`. Kept parts send no request."""

    def __init__(self, store: StoreWrapper, key: str, inner: ResumedUpload) -> None:
        super().__init__(store, key, inner)
        self._resumed = inner

    def keep(self, part: Bytes) -> bool:
        """See `ResumedUpload.keep`."""
        return self._resumed.keep(part)


class CopyWrapper:
    """A copy inside the store of a `StoreWrapper`."""

    def __init__(self, store: StoreWrapper, key: str, inner: ServerCopy) -> None:
        self._store = store
        self._key = key
        self._inner = inner

    @property
    def sha256(self) -> bytes:
        """See `ServerCopy.sha256`."""
        return self._inner.sha256

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self._store.perform("upload.complete", self._key, self._inner.complete)

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._store.perform("upload.abort", self._key, self._inner.abort)
