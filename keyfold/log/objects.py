"""Creation of objects with unused names: whole, or in parts while their bytes are still being produced.

A name stands for one byte string. So a request with a lost answer is retried unchanged, and an existing object is then
this writer's own, if it has the same size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from keyfold.errors import AlreadyExists, ObjectNotFound, StoreError, UploadLost
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.retry import Patience
from keyfold.store.api import Create, ObjectStore, ResumedUpload, Upload

PART_BYTES: Final = 8 * 1024 * 1024
PART_BYTES_MAX: Final = 512 * 1024 * 1024
# A part has a thousandth of the bytes before it: S3's 10,000 parts then hold 2.8 TiB, a thousand times Kafka's maximum
# `segment.bytes`.
_PART_SHARE: Final = 1000


class NameTaken(StoreError):
    """An object of another size has the name of this writer's object."""


def create_object(store: ObjectStore, key: str, data: Bytes, patience: Patience) -> None:
    """Create `key` with `data`, and retry the same request while its result is unknown.

    Raises `StoreUnavailable` or `ConditionUndecided` after the time limit: the call may be retried. Raises `UploadLost`
    if the object existed and is gone: it needs a new name, and most likely a new claim. Raises `NameTaken` if another
    object has the name.
    """
    try:
        patience.repeat(lambda: store.put(key, data, Create()))
    except AlreadyExists as error:
        _require_mine(store, key, len(data), patience, error)


class ObjectStream:
    """A new object that is sent while it is produced. Not thread-safe.

    Nothing is sent until the object exceeds one part. Call `abandon` after an error of `write` or `finish`. `begun` is
    an upload of this object by an earlier process: its existing parts are not sent again.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        patience: Patience,
        *,
        part_bytes: int = PART_BYTES,
        begun: ResumedUpload | None = None,
    ) -> None:
        if part_bytes < 1:
            raise ValueError(f"parts of {part_bytes} bytes")
        self._store = store
        self._key = key
        self._patience = patience
        self._part_bytes = part_bytes
        self._begun = begun
        self._upload: Upload | None = begun
        self._held: list[Bytes] = []
        self._is_ending = False
        self.held_bytes = 0
        self.sent_bytes = 0
        self.kept_bytes = 0

    def write(self, pieces: Iterable[Bytes]) -> None:
        """Add the next bytes, and send complete parts. Raises the store's errors after the time limit."""
        for piece in pieces:
            self._held.append(piece)
            self.held_bytes += len(piece)
            # More than a part, so that bytes are left for the last part, which `finish` sends.
            while self.held_bytes > (size := part_bytes(self.sent_bytes, self._part_bytes)):
                self._send(self._take(size))

    def finish(self) -> None:
        """Send the rest and make the object visible, create-only.

        Raises `UploadLost` if the store has lost the parts or requires them again: the object must be produced again
        under another name. Raises `StoreUnavailable` after the time limit: the object may exist or still appear.
        """
        size_bytes = self.sent_bytes + self.held_bytes
        if self._upload is None:
            self._is_ending = True
            create_object(self._store, self._key, self._take(size_bytes), self._patience)
            return
        self._send(self._take(self.held_bytes))
        self._is_ending = True
        try:
            self._patience.repeat(self._upload.complete)
        except (AlreadyExists, UploadLost) as error:
            # A `complete` with a lost answer may have been in flight when it was retried; then nothing is lost.
            try:
                _require_mine(self._store, self._key, size_bytes, self._patience, error)
            finally:  # in any case: this upload can no longer create the object, and no other process would end it
                with contextlib.suppress(StoreError):
                    self._upload.abort()

    @property
    def has_begun(self) -> bool:
        """Whether the store has parts of it in an unfinished upload."""
        return self._upload is not None and not self._is_ending

    def abandon(self) -> None:
        """Delete the parts, in one attempt: garbage collection deletes the rest, as for a dead process.

        Does nothing after `finish` has requested the object: it may exist or still appear.
        """
        self._held, self.held_bytes = [], 0
        if self._upload is not None and not self._is_ending:
            with contextlib.suppress(StoreError):
                self._upload.abort()

    def _send(self, part: bytes) -> None:
        if self._upload is None:
            self._upload = self._patience.repeat(lambda: self._store.start_upload(self._key))
        upload = self._upload
        if self._begun is not None and self._begun.keep(part):
            self.kept_bytes += len(part)
        else:
            self._patience.repeat(lambda: upload.write(part))
        self.sent_bytes += len(part)

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


def _require_mine(store: ObjectStore, key: str, size_bytes: int, patience: Patience, error: StoreError) -> None:
    """Require that an object that exists, or should exist, is the one that was sent."""
    try:
        found = patience.repeat(lambda: store.head(key))
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
