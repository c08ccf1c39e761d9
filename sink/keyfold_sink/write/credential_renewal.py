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
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import structlog

from keyfold.config.config_file import resolve
from keyfold.errors import AccessDenied, ConfigError, StoreUnavailable
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import Clock
from keyfold.store.api import Blob, ObjectInfo, ObjectStore, PutMode, PutResult, Upload, UploadInfo
from keyfold.store.s3 import S3Location
from keyfold_sink.config.options import SinkOptions

T = TypeVar("T")

RENEW_EVERY_S: Final = 10.0
_KEY_ID: Final = "aws.access.key.id"
_SECRET: Final = "aws.secret.access.key"  # noqa: S105 - the key's name


class AccessRefused(StoreUnavailable):
    """The store refuses a request, which is retried; the message says which right is missing."""


class Renewable(ObjectStore, Protocol):
    """A store that can change its credentials (`S3Store`)."""

    def renew(self, location: S3Location) -> None:
        """Look up credentials again, and use them."""


def location_now(options: SinkOptions, environ: Mapping[str, str] | None = None) -> S3Location:
    """Return the bucket's location with the current credentials in the files that the configuration names."""
    written = {key: value for key, value in options.shown().items() if key in {_KEY_ID, _SECRET} and "${" in value}
    try:
        found = resolve(written, os.environ if environ is None else environ)
    except ConfigError:  # a file that is being replaced
        return options.location
    known = options.location
    return replace(
        known,
        access_key_id=found.get(_KEY_ID, known.access_key_id),
        secret_access_key=found.get(_SECRET, known.secret_access_key),
    )


class RenewingStore:
    """An `ObjectStore` wrapper that looks for new credentials when the store refuses a request. Thread-safe."""

    def __init__(self, inner: Renewable, location: Callable[[], S3Location], clock: Clock, *, waits: bool) -> None:
        self.waits = waits
        self._inner = inner
        self._location = location
        self._clock = clock
        self._lock = threading.Lock()
        self._renewals = 0
        self._renewed_s: float | None = None
        self._events = structlog.get_logger("keyfold.sink")

    @property
    def url(self) -> str:
        """The inner store's URL."""
        return self._inner.url

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        return self.ask(lambda: self._inner.get(key, max_bytes))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return self.ask(lambda: self._inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return self.ask(lambda: self._inner.head(key))

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        return self.ask(lambda: self._inner.put(key, data, mode))

    def start_upload(self, key: str) -> Upload:
        """See `ObjectStore.start_upload`."""
        return _Upload(self, self.ask(lambda: self._inner.start_upload(key)))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. A listing that is refused in its middle is not restarted here."""
        return self._listed(lambda: self._inner.list(prefix, start_after=start_after))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`; refusals as with `list`."""
        return self._listed(lambda: self._inner.list_folders(prefix))

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`; refusals as with `list`."""
        return self._listed(lambda: self._inner.list_uploads(prefix))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`. A sink works without the right to delete, so a refusal is raised as it is."""
        self._inner.delete(key)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`; refusals as with `delete`."""
        self._inner.abort_upload(key, upload_id)

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

    def _listed(self, pages: Callable[[], Iterator[T]]) -> Iterator[T]:
        renewals = self._renewals
        try:
            yield from pages()
        except AccessDenied as error:
            self._renew(renewals)
            raise self._refusal(error) from error

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
            self._inner.renew(self._location())
        except ConfigError as error:  # a profile that is being replaced
            self._events.warning("no new credentials found", error=str(error))
        self._renewals += 1


class _Upload:
    """An upload of a `RenewingStore`; it may continue with other credentials than it began with."""

    def __init__(self, store: RenewingStore, inner: Upload) -> None:
        self._store = store
        self._inner = inner

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        self._store.ask(lambda: self._inner.write(part))

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self._store.ask(self._inner.complete)

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._inner.abort()


def is_refusal(error: object) -> bool:
    """Whether an error is a refusal by the store, or was caused by one."""
    while isinstance(error, BaseException):
        if isinstance(error, AccessRefused):
            return True
        error = error.__cause__
    return False
