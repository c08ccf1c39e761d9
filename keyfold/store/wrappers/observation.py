"""A store that reports whether it answers. A refusal is an answer; `StoreUnavailable` means no answer.

Parts of uploads are not reported: every uploader also sends other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from keyfold.errors import BucketMissing, StoreError, StoreUnavailable
from keyfold.store.api import ObjectStore, PutMode, Upload
from keyfold.store.wrappers.base import StoreWrapper

T = TypeVar("T")


class AnswerListener(Protocol):
    """A receiver of reports, called by any thread."""

    def answered(self) -> None:
        """Note that the store has answered."""

    def unanswered(self, why: str) -> None:
        """Note that the store has not answered, and why."""


class ObservedStore(StoreWrapper):
    """An `ObjectStore` that reports answers to a listener and delegates every call."""

    def __init__(self, inner: ObjectStore, listener: AnswerListener) -> None:
        super().__init__(inner)
        self._listener = listener

    def perform(self, operation: str, key: str, send: Callable[[], T], mode: PutMode | None = None) -> T:
        """See `StoreWrapper.perform`."""
        with self._reported():
            return super().perform(operation, key, send, mode)

    def listing(self, operation: str, prefix: str, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """See `StoreWrapper.listing`. Reports when the listing has been read: it sends requests page by page."""
        with self._reported():
            yield from super().listing(operation, prefix, rows)

    def wrapped_upload(self, key: str, upload: Upload) -> Upload:  # noqa: ARG002 - what subclasses may use
        """Return the upload as it is; the module says why."""
        return upload

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (StoreUnavailable, BucketMissing) as error:
            self._listener.unanswered(str(error))
            raise
        except StoreError:
            self._listener.answered()
            raise
        self._listener.answered()
