"""A store wrapper that counts and times calls for a task's metrics: requests, bytes, seconds, errors by code.

Operations are the methods of `ObjectStore`, but `put` counts as `create` (uploads) or `update` (manifests). A call that
the store retries by itself (a read) counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from keyfold.errors import KeyfoldError, StoreError, StoreUnavailable
from keyfold.store.api import Create, ObjectStore, PutMode
from keyfold.store.wrappers.base import StoreWrapper
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import BAR, TaskMeter

T = TypeVar("T")

NO_ANSWER: Final = "NoAnswer"
OTHER: Final = "Other"
_NAMES: Final = {"upload.write": "upload_part", "upload.complete": "complete_upload", "upload.abort": "abort_upload"}
_CODES_MAX: Final = 40
_CODE_LETTERS_MAX: Final = 60


class MeteredStore(StoreWrapper):
    """An `ObjectStore` wrapper. Thread-safe."""

    def __init__(self, inner: ObjectStore, meter: TaskMeter) -> None:
        super().__init__(inner)
        self._meter = meter
        self._codes: set[str] = set()

    def perform(self, operation: str, key: str, send: Callable[[], T], mode: PutMode | None = None) -> T:
        """See `StoreWrapper.perform`. Counts and times the request."""
        if mode is not None:
            name = "create" if isinstance(mode, Create) else "update"
        else:
            name = _NAMES.get(operation, operation)
        self._meter.count(names.REQUESTS, name)
        began_s = self._meter.clock.monotonic_s()
        try:
            return super().perform(operation, key, send, mode)
        except KeyfoldError as error:
            self._meter.count(names.STORE_ERRORS, name, self._code(error))
            raise
        finally:
            self._meter.observe(names.REQUEST_SECONDS, self._meter.clock.monotonic_s() - began_s, name)

    def listing(self, operation: str, prefix: str, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """See `StoreWrapper.listing`. Counts as one `list`, with any number of pages; untimed, the caller paces it."""
        self._meter.count(names.REQUESTS, "list")
        return super().listing(operation, prefix, rows)

    def sent(self, operation: str, size_bytes: int) -> None:  # noqa: ARG002 - the signature of the base class
        """See `StoreWrapper.sent`."""
        self._meter.count(names.SENT_BYTES, by=size_bytes)

    def received(self, operation: str, size_bytes: int) -> None:  # noqa: ARG002 - the signature of the base class
        """See `StoreWrapper.received`."""
        self._meter.count(names.RECEIVED_BYTES, by=size_bytes)

    def _code(self, error: KeyfoldError) -> str:
        """Return the store's error code. The number of codes is limited, so that the number of series is."""
        code = error_code(error)
        if code not in self._codes:
            if len(self._codes) >= _CODES_MAX:
                return OTHER
            self._codes.add(code)
        return code


def error_code(error: KeyfoldError) -> str:
    """Return the store's error code, cleaned for a label; `NoAnswer` without an answer, else the error's class."""
    code = error.code if isinstance(error, StoreError) else ""
    if not code:
        return NO_ANSWER if isinstance(error, StoreUnavailable) else type(error).__name__
    return "".join(sign if sign.isprintable() and sign != BAR else "_" for sign in code[:_CODE_LETTERS_MAX])
