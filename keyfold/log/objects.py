"""New objects under names that nobody has used: whole, or in parts while their bytes are still being made.

A name stands for one byte string. So a request whose answer was lost is repeated as it was, and a name that is taken
then is this writer's own object, if it has the size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from keyfold.errors import AlreadyExists, ObjectNotFound, StoreError, UploadLost
from keyfold.retry import Patience
from keyfold.store.api import Bytes, Create, ObjectStore, ResumedUpload, Upload

PART_BYTES: Final = 8 * 1024 * 1024
PART_BYTES_MAX: Final = 512 * 1024 * 1024
# A part has a thousandth of what went before it: the 10,000 parts that S3 takes then hold 2.8 TiB, a thousand times
# what Kafka's `segment.bytes` can be.
_PART_SHARE: Final = 1000


class NameTaken(StoreError):
    """Bytes of another length are under a name that stands for this writer's."""


def create_object(store: ObjectStore, key: str, data: Bytes, patience: Patience) -> None:
    """Create `key` with `data`, repeating the same request while its result is unknown.

    Raises `StoreUnavailable` or `ConditionUndecided` when patience ends: the same call may be made again. Raises
    `UploadLost` when the object was there and is not any more: it needs a new name, and most likely a new claim.
    Raises `NameTaken` where something else is under the name.
    """
    try:
        patience.repeat(lambda: store.put(key, data, Create()))
    except AlreadyExists as error:
        _require_mine(store, key, len(data), patience, error)


class ObjectStream:
    """One new object, sent while it is made. For one thread.

    Until it has outgrown a part nothing is sent at all. After an error of `write` or `finish` call `abandon`. With
    `begun`, an upload of this object that another process has left, the parts that are there are not sent again.
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
        """Take what comes next, and send what fills a part. Raises what the store does, when patience ends."""
        for piece in pieces:
            self._held.append(piece)
            self.held_bytes += len(piece)
            # More than a part: something is left for the last one, which `finish` sends.
            while self.held_bytes > (size := part_bytes(self.sent_bytes, self._part_bytes)):
                self._send(self._take(size))

    def finish(self) -> None:
        """Send the rest and make the object visible, create-only.

        Raises `UploadLost` when the store has lost the parts, or wants them again: the object needs to be made anew,
        under another name. Raises `StoreUnavailable` when patience ends: the object may be there, or come yet.
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
            # A `complete` whose answer was lost may have been under way when it was repeated; then nothing is lost.
            try:
                _require_mine(self._store, self._key, size_bytes, self._patience, error)
            finally:  # whatever is true: this upload makes the object no more, and nobody would ever end it
                with contextlib.suppress(StoreError):
                    self._upload.abort()

    @property
    def has_begun(self) -> bool:
        """Whether parts of it are at the store, under an upload that nobody has ended."""
        return self._upload is not None and not self._is_ending

    def abandon(self) -> None:
        """Let the parts go, in one try: what stays is the collector's, like all that a dead process leaves.

        Does nothing once `finish` has asked for the object: then it may be there, or come yet.
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
        """The first bytes of those held, in one piece."""
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
    """The size of the part that follows `sent_bytes`. All parts have one size up to a thousand of them."""
    return max(smallest, min(sent_bytes // _PART_SHARE, PART_BYTES_MAX))


def _require_mine(store: ObjectStore, key: str, size_bytes: int, patience: Patience, error: StoreError) -> None:
    """The store says that the object is there already, or should be: it must be what was sent."""
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
