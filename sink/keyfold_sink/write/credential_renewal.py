"""Renew the store's credentials after a refusal (403), and retry the refused request.

Credentials are rotated, and rights are revoked by mistake and restored. A sink that ended on a refusal would stand
still until an operator noticed. So each refusal makes the sink look for new credentials: in the files that the
configuration names (`${file:...}`), and wherever boto3 finds them. With `waits` a refusal is raised as a retriable
error. Without it the refusal is raised as it is, because at startup it is most likely a mistake to be reported at once.

A refusal says nothing about the object to be written. A conditional request that was refused had no effect, and may be
repeated unchanged.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, TypeVar

import structlog

from keyfold.config.config_file import resolve
from keyfold.errors import AccessDenied, ConfigError, StoreUnavailable
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore, PutMode, StoreLocation
from keyfold.store.wrappers.base import StoreWrapper
from keyfold_sink.config.options import SinkOptions

T = TypeVar("T")

RENEW_EVERY_S: Final = 10.0
# A sink works without the right to delete, so a refusal of these is raised as it is.
_AS_REFUSED: Final = frozenset({"delete", "abort_upload", "upload.abort"})
_KEY_ID: Final = "aws.access.key.id"
_SECRET: Final = "aws.secret.access.key"  # noqa: S105 - the key's name


class AccessRefused(StoreUnavailable):
    """The store refuses a request, which is retried; the message says which right is missing."""


class Renewable(ObjectStore, Protocol):
    """A store that can change its credentials (`OpenedStore`)."""

    def renew(self, location: StoreLocation) -> None:
        """Look up credentials again, and use them."""


def location_now(options: SinkOptions, environ: Mapping[str, str] | None = None) -> StoreLocation:
    """Return the bucket's location with the current credentials in the files that the configuration names."""
    written = {key: value for key, value in options.shown().items() if key in {_KEY_ID, _SECRET} and "${" in value}
    try:
        found = resolve(written, os.environ if environ is None else environ)
    except ConfigError:  # a file that is being replaced
        return options.location
    return options.location.adjusted(access_key_id=found.get(_KEY_ID), secret_access_key=found.get(_SECRET))


class RenewingStore(StoreWrapper):
    """An `ObjectStore` wrapper that looks for new credentials when the store refuses a request. Thread-safe."""

    def __init__(self, inner: Renewable, location: Callable[[], StoreLocation], clock: Clock, *, waits: bool) -> None:
        super().__init__(inner)
        self.waits = waits
        self._renewable = inner
        self._location = location
        self._clock = clock
        self._lock = threading.Lock()
        self._renewals = 0
        self._renewed_s: float | None = None
        self._events = structlog.get_logger("keyfold.sink")

    def perform(self, operation: str, key: str, send: Callable[[], T], mode: PutMode | None = None) -> T:
        """See `StoreWrapper.perform`. An upload may continue with other credentials than it began with."""
        if operation in _AS_REFUSED:
            return super().perform(operation, key, send, mode)
        return self.ask(lambda: super(RenewingStore, self).perform(operation, key, send, mode))

    def listing(self, operation: str, prefix: str, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """See `StoreWrapper.listing`. A listing that is refused in its middle is not restarted here."""
        renewals = self._renewals
        try:
            yield from super().listing(operation, prefix, rows)
        except AccessDenied as error:
            self._renew(renewals)
            raise self._refusal(error) from error

    def ask(self, call: Callable[[], T]) -> T:
        """Make a call. If it is refused, make it once more with renewed credentials, if a renewal is due."""
        for is_last in (False, False, True):
            renewals = self._renewals
            try:
                return call()
            except AccessDenied as error:
                if is_last or not self._renew(renewals):
                    raise self._refusal(error) from error
        raise AssertionError  # the last attempt returns or raises

    def renew(self) -> None:
        """Look up credentials again now, also without a refusal."""
        with self._lock:
            self._look_up()

    def _refusal(self, error: AccessDenied) -> Exception:
        if not self.waits:
            return error
        message = error.message.removeprefix(f"`{error.key}`: ")
        return AccessRefused(error.key, f"the store refuses access: {message}", hint=error.hint, code=error.code)

    def _renew(self, renewals: int) -> bool:
        """Look up credentials again, unless that was just done. Return whether they may have changed since the call."""
        with self._lock:
            if self._renewals != renewals:
                return True  # another thread renewed them during the call
            now_s = self._clock.monotonic_s()
            if self._renewed_s is not None and now_s - self._renewed_s < RENEW_EVERY_S:
                return False
            self._look_up()
            return True

    def _look_up(self) -> None:
        self._renewed_s = self._clock.monotonic_s()
        self._events.info("renewing the store's credentials")
        try:
            self._renewable.renew(self._location())
        except ConfigError as error:  # a profile that is being replaced
            self._events.warning("no new credentials found", error=str(error))
        self._renewals += 1


def is_refusal(error: object) -> bool:
    """Whether an error is a refusal by the store, or was caused by one."""
    while isinstance(error, BaseException):
        if isinstance(error, AccessRefused):
            return True
        error = error.__cause__
    return False
