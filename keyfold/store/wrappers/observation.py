"""A store that reports whether it answers. A refusal is an answer; `StoreUnavailable` means no answer.

Parts of uploads are not reported: every uploader also sends other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from keyfold.errors import BucketMissing, StoreError, StoreUnavailable
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import Blob, ObjectInfo, ObjectStore, PutMode, PutResult, Upload, UploadInfo

T = TypeVar("T")


class Listener(Protocol):
    """A receiver of reports, called by any thread."""

    def answered(self) -> None:
        """Note that the store has answered."""

    def unanswered(self, why: str) -> None:
        """Note that the store has not answered, and why."""


class HeardStore:
    """An `ObjectStore` that reports answers to a listener and delegates every call."""

    def __init__(self, inner: ObjectStore, listener: Listener) -> None:
        self.inner = inner
        self._listener = listener

    @property
    def url(self) -> str:
        """URL of the inner store."""
        return self.inner.url

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        with self._heard():
            return self.inner.get(key, max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        with self._heard():
            return self.inner.get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        with self._heard():
            return self.inner.head(key)

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        with self._heard():
            return self.inner.put(key, data, mode)

    def start_upload(self, key: str) -> Upload:
        """See `ObjectStore.start_upload`."""
        with self._heard():
            return self.inner.start_upload(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return self._each(lambda: self.inner.list(prefix, start_after=start_after))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`."""
        return self._each(lambda: self.inner.list_folders(prefix))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        with self._heard():
            self.inner.delete(key)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`."""
        return self._each(lambda: self.inner.list_uploads(prefix))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
        with self._heard():
            self.inner.abort_upload(key, upload_id)

    def _each(self, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Report each step: a listing sends requests page by page, while it is read."""
        with self._heard():
            yield from rows()

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except (StoreUnavailable, BucketMissing) as error:
            self._listener.unanswered(str(error))
            raise
        except StoreError:
            self._listener.answered()
            raise
        self._listener.answered()
