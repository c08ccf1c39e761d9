"""A store that logs its requests at the level debug: `keyfold log ... -v` shows what a command asks the bucket for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import structlog

from keyfold.errors import StoreError
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore, PutMode
from keyfold.store.wrappers.base import FullStoreWrapper

T = TypeVar("T")

log = structlog.get_logger(__name__)


class RequestLog(FullStoreWrapper):
    """An `ObjectStore` that delegates every call and logs it. Other attributes are those of the inner store."""

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def perform(self, operation: str, key: str, send: Callable[[], T], mode: PutMode | None = None) -> T:
        """See `StoreWrapper.perform`."""
        start_s = self._clock.monotonic_s()
        outcome = "ok"
        try:
            return super().perform(operation, key, send, mode)
        except StoreError as error:
            outcome = type(error).__name__
            raise
        finally:
            elapsed_ms = round(1000 * (self._clock.monotonic_s() - start_s))
            log.debug("store request", operation=operation, key=key, outcome=outcome, elapsed_ms=elapsed_ms)

    def listing(self, operation: str, prefix: str, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """See `StoreWrapper.listing`."""
        log.debug("store listing", operation=operation, prefix=prefix)
        return super().listing(operation, prefix, rows)
