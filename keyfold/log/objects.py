"""Creation of objects with unused names: whole, or in parts while their bytes are still being produced.

    create_object     one create request
    ObjectUpload      one create request, or an upload in the parts that the caller gives
    ObjectStream      an `ObjectUpload` that cuts the bytes into parts

A name stands for one byte string. So a request with a lost answer is retried unchanged, and an existing object is then
this writer's own, if it has the same size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from keyfold.errors import AlreadyExists, ObjectNotFound, StoreError, UploadLost
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import Create, ObjectStore, ResumedUpload, Upload

T = TypeVar("T")

PART_BYTES: Final = 8 * 1024 * 1024
PART_BYTES_MAX: Final = 512 * 1024 * 1024
# A part has a thousandth of the bytes before it: S3's 10,000 parts then hold 2.8 TiB, a thousand times Kafka's maximum
# `segment.bytes`.
_PART_SHARE: Final = 1000


class Retries(Protocol):
    """How a caller retries: `RetryPolicy` until a time limit, the sink for as long as it owns the partition."""

    def repeat(self, call: Callable[[], T]) -> T:
        """Call until it returns or raises an error that is not retriable. Raise an error to stop before that."""


class NameTaken(StoreError):
    """An object of another size has the name of this writer's object."""


def create_object(store: ObjectStore, key: str, data: Bytes, retries: Retries) -> None:
    """Create `key` with `data`, and retry the same request while its result is unknown.

    Raises `StoreUnavailable` or `ConditionUndecided` when `retries` end: the call may be retried. Raises `UploadLost`
    if the object existed and is gone: it needs a new name, and most likely a new claim. Raises `NameTaken` if another
    object has the name.
    """
    try:
        retries.repeat(lambda: store.put(key, data, Create()))
    except AlreadyExists as error:
        _require_mine(store, key, len(data), retries, error)


class ObjectUpload:
    """A new object, created by one request or sent in parts of the caller's choice. Not thread-safe.

    Call `abandon` after an error of `send_part` or `finish`, unless garbage collection may delete the parts. `begun` is
    an upload of this object by an earlier process: its existing parts are not sent again.
    """

    def __init__(self, store: ObjectStore, key: str, retries: Retries, *, begun: ResumedUpload | None = None) -> None:
        self._store = store
        self._key = key
        self._retries = retries
        self._begun = begun
        self._upload: Upload | None = begun
        self._is_ending = False
        self.sent_bytes = 0
        self.kept_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether the store has parts of it in an unfinished upload."""
        return self._upload is not None and not self._is_ending

    def send_part(self, part: bytes) -> None:
        """Send the next part, of at least `MIN_PART_BYTES` unless it is the last. Raises the store's errors."""
        if self._upload is None:
            self._upload = self._retries.repeat(lambda: self._store.start_upload(self._key))
        upload = self._upload
        if self._begun is not None and self._begun.keep(part):
            self.kept_bytes += len(part)
        else:
            self._retries.repeat(lambda: upload.write(part))
        self.sent_bytes += len(part)

    def finish(self, rest: bytes) -> None:
        """Send the rest and make the object visible, create-only.

        Raises `UploadLost` if the store has lost the parts or requires them again: the object must be produced again
        under another name. Raises `StoreUnavailable` when `retries` end: the object may exist or still appear.
        """
        if self._upload is None:
            self._is_ending = True
            create_object(self._store, self._key, rest, self._retries)
            return
        if rest or not self.sent_bytes:
            self.send_part(rest)
        del rest  # free the memory while the store completes the upload
        self._is_ending = True
        try:
            self._retries.repeat(self._upload.complete)
        except (AlreadyExists, UploadLost) as error:
            # A `complete` with a lost answer may have been in flight when it was retried; then nothing is lost.
            try:
                _require_mine(self._store, self._key, self.sent_bytes, self._retries, error)
            finally:  # in any case: this upload can no longer create the object, and no other process would end it
                with contextlib.suppress(StoreError):
                    self._upload.abort()

    def abandon(self) -> None:
        """Delete the parts, in one attempt: garbage collection deletes the rest, as for a dead process.

        Does nothing after `finish` has requested the object: it may exist or still appear.
        """
        if self._upload is not None and not self._is_ending:
            with contextlib.suppress(StoreError):
                self._upload.abort()


class ObjectStream:
    """A new object that is sent while it is produced. Not thread-safe.

    Nothing is sent until the object exceeds one part. Call `abandon` after an error of `write` or `finish`. `begun` is
    an upload of this object by an earlier process: its existing parts are not sent again.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        retries: Retries,
        *,
        part_bytes: int = PART_BYTES,
        begun: ResumedUpload | None = None,
    ) -> None:
        if part_bytes < 1:
            raise ValueError(f"parts of {part_bytes} bytes")
        self._upload = ObjectUpload(store, key, retries, begun=begun)
        self._part_bytes = part_bytes
        self._held: list[Bytes] = []
        self.held_bytes = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes of the parts that the store has."""
        return self._upload.sent_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of the parts that the store had before, from an earlier process."""
        return self._upload.kept_bytes

    @property
    def has_begun(self) -> bool:
        """See `ObjectUpload.has_begun`."""
        return self._upload.has_begun

    def write(self, pieces: Iterable[Bytes]) -> None:
        """Add the next bytes, and send complete parts. Raises the store's errors when `retries` end."""
        for piece in pieces:
            self._held.append(piece)
            self.held_bytes += len(piece)
            # More than a part, so that bytes are left for the last part, which `finish` sends.
            while self.held_bytes > (size := part_bytes(self.sent_bytes, self._part_bytes)):
                self._upload.send_part(self._take(size))

    def finish(self) -> None:
        """See `ObjectUpload.finish`."""
        self._upload.finish(self._take(self.held_bytes))

    def abandon(self) -> None:
        """See `ObjectUpload.abandon`."""
        self._held, self.held_bytes = [], 0
        self._upload.abandon()

    def _take(self, size_bytes: int) -> bytes:
        """Return the first held bytes in one piece."""
        taken: list[Bytes] = []
        left = size_bytes
        for number, piece in enumerate(self._held):
            if len(piece) > left:
                view = memoryview(piece)
                taken.append(view[:left])
                self._held = [view[left:], *self._held[number + 1 :]]
                break
            taken.append(piece)
            left -= len(piece)
        else:
            self._held = []
        self.held_bytes -= size_bytes
        return b"".join(taken)


def part_bytes(sent_bytes: int, smallest: int = PART_BYTES) -> int:
    """Return the size of the part that follows `sent_bytes`. The first thousand parts have the same size."""
    return max(smallest, min(sent_bytes // _PART_SHARE, PART_BYTES_MAX))


def _require_mine(store: ObjectStore, key: str, size_bytes: int, retries: Retries, error: StoreError) -> None:
    """Require that an object that exists, or should exist, is the one that was sent."""
    try:
        found = retries.repeat(lambda: store.head(key))
    except ObjectNotFound:
        if isinstance(error, UploadLost):
            raise error from None
        raise UploadLost(key, "was uploaded and deleted again: another writer has fenced this one") from error
    if found.size_bytes != size_bytes:
        raise NameTaken(
            key,
            f"holds {found.size_bytes} bytes; this writer sent {size_bytes} bytes",
            hint="keyfold never reuses object names; find out what else writes into this folder",
        ) from error
