"""A store wrapper that counts and times calls for a task's metrics: requests, bytes, seconds, errors by code.

Operations are the methods of `ObjectStore`, but `put` counts as `create` (uploads) or `update` (manifests). A call that
the store retries by itself (a read) counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from keyfold.errors import KeyfoldError, StoreError, StoreUnavailable
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import Blob, Create, ObjectInfo, ObjectStore, PutMode, PutResult, Upload, UploadInfo
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import BAR, TaskMeter

T = TypeVar("T")

NO_ANSWER: Final = "NoAnswer"
OTHER: Final = "Other"
_CODES_MAX: Final = 40
_CODE_LETTERS_MAX: Final = 60


class MeteredStore:
    """An `ObjectStore` wrapper. Thread-safe."""

    def __init__(self, inner: ObjectStore, meter: TaskMeter) -> None:
        self.inner = inner
        self._meter = meter
        self._codes: set[str] = set()

    @property
    def url(self) -> str:
        """The inner store's URL."""
        return self.inner.url

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        blob = self.timed("get", lambda: self.inner.get(key, max_bytes))
        self._meter.count(names.RECEIVED_BYTES, by=len(blob.data))
        return blob

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        data = self.timed("get_range", lambda: self.inner.get_range(key, start, length))
        self._meter.count(names.RECEIVED_BYTES, by=len(data))
        return data

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return self.timed("head", lambda: self.inner.head(key))

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        self._meter.count(names.SENT_BYTES, by=len(data))
        operation = "create" if isinstance(mode, Create) else "update"
        return self.timed(operation, lambda: self.inner.put(key, data, mode))

    def start_upload(self, key: str) -> Upload:
        """See `ObjectStore.start_upload`."""
        return MeteredUpload(self, self._meter, self.timed("start_upload", lambda: self.inner.start_upload(key)))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. Counts as one call with any number of pages; untimed, as its caller sets the pace."""
        self._meter.count(names.REQUESTS, "list")
        return self.inner.list(prefix, start_after=start_after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`. Counts as `list`."""
        self._meter.count(names.REQUESTS, "list")
        return self.inner.list_folders(prefix)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self.timed("delete", lambda: self.inner.delete(key))

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`. Counts as `list`."""
        self._meter.count(names.REQUESTS, "list")
        return self.inner.list_uploads(prefix)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
        self.timed("abort_upload", lambda: self.inner.abort_upload(key, upload_id))

    def timed(self, operation: str, call: Callable[[], T]) -> T:
        """Count, time and make one call (also for `MeteredUpload`)."""
        self._meter.count(names.REQUESTS, operation)
        began_s = self._meter.clock.monotonic_s()
        try:
            return call()
        except KeyfoldError as error:
            self._meter.count(names.STORE_ERRORS, operation, self._code(error))
            raise
        finally:
            self._meter.observe(names.REQUEST_SECONDS, self._meter.clock.monotonic_s() - began_s, operation)

    def _code(self, error: KeyfoldError) -> str:
        """Return the store's error code. The number of codes is limited, so that the number of series is."""
        code = error_code(error)
        if code not in self._codes:
            if len(self._codes) >= _CODES_MAX:
                return OTHER
            self._codes.add(code)
        return code


class MeteredUpload:
    """An upload of a `MeteredStore`."""

    def __init__(self, store: MeteredStore, meter: TaskMeter, inner: Upload) -> None:
        self._store = store
        self._meter = meter
        self._inner = inner

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        self._meter.count(names.SENT_BYTES, by=len(part))
        self._store.timed("upload_part", lambda: self._inner.write(part))

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self._store.timed("complete_upload", self._inner.complete)

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._store.timed("abort_upload", self._inner.abort)


def error_code(error: KeyfoldError) -> str:
    """Return the store's error code, cleaned for a label; `NoAnswer` without an answer, else the error's class."""
    code = error.code if isinstance(error, StoreError) else ""
    if not code:
        return NO_ANSWER if isinstance(error, StoreUnavailable) else type(error).__name__
    return "".join(sign if sign.isprintable() and sign != BAR else "_" for sign in code[:_CODE_LETTERS_MAX])
