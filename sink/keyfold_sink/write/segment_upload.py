"""Upload one segment and its index.

A small segment is uploaded with one create request. A segment larger than `PART_BYTES` becomes a multipart upload,
whose parts are sent as they fill, so memory does not limit a segment's size. In both cases the object's name is new,
and its creation conditional. So after any number of retries the object has these bytes or does not exist.

The calls run on a serial queue, in order and one at a time. Requests with an unknown result are retried while the queue
is open. If the store has lost an upload, `UploadLost` is raised, and the records are read from Kafka again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from keyfold.errors import AlreadyExists, KeyfoldError, ObjectNotFound, StoreError, UploadLost
from keyfold.log.assembly import FinishedSegment
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import ObjectName, Place
from keyfold.log.segment import SegmentWriter
from keyfold.runtime.backoff import Backoff
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import Create, ObjectStore, Upload
from keyfold_sink.write.serial_queue import Lane

T = TypeVar("T")

PART_BYTES: Final = 8 * 1024 * 1024
_DELAYS: Final = Backoff(first_ms=100, cap_ms=10_000)
_LOOKS: Final = 3
LOOK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry calls on a serial queue until they are answered or the queue is closed."""

    lane: Lane
    random: Random
    backoff: Backoff = _DELAYS
    look_again_s: float = LOOK_AGAIN_S

    def __call__(self, call: Callable[[], T]) -> T:
        """See `Lane.retry`."""
        return self.lane.retry(call, self.backoff, self.random)

    def believing(self, error: type[KeyfoldError], call: Callable[[], T], looks: int = _LOOKS) -> T:
        """Retry, also after `error` until the last attempt: a broker that just started may not know the topic yet."""
        for _ in range(looks - 1):
            with contextlib.suppress(error):
                return self(call)
            self.lane.wait(self.look_again_s)
        return self(call)


class SegmentSender:
    """The upload of one segment and its index."""

    def __init__(self, store: ObjectStore, place: Place, name: ObjectName, retry: Retry) -> None:
        self._store = store
        self._place = place
        self._name = name
        self._retry = retry
        self._upload: Upload | None = None

    def send_part(self, blocks: list[bytes]) -> None:
        """Upload finished blocks of at least `MIN_PART_BYTES` together, and free them."""
        if self._upload is None:
            self._upload = self._retry(lambda: self._store.start_upload(self._key))
        upload = self._upload
        part = _taken(blocks)
        self._retry(lambda: upload.write(part))

    def finish(self, writer: SegmentWriter, blocks: list[bytes], *, base_offset: int, next_offset: int) -> SegmentEntry:
        """Upload the rest (`blocks` were drained before, and are freed) and the index.

        Return the entry to commit.
        """
        finished = writer.finish()
        rest = [*blocks, *finished.data]
        blocks.clear()
        finished.data.clear()
        if self._upload is None:
            self._create(self._key, _taken(rest))
        else:
            self._complete(self._upload, rest, finished)
        self._create(self._place.key(str(self._name.index)), finished.index_data)
        return finished.entry(str(self._name), str(self._name.index), base_offset=base_offset, next_offset=next_offset)

    @property
    def _key(self) -> str:
        return self._place.key(str(self._name))

    def _complete(self, upload: Upload, rest: list[bytes], finished: FinishedSegment) -> None:
        part = _taken(rest)
        if part:
            self._retry(lambda: upload.write(part))
        try:
            self._retry(upload.complete)
        except AlreadyExists:
            self._require_size(self._key, finished.size_bytes)

    def _create(self, key: str, data: Bytes) -> None:
        try:
            self._retry(lambda: self._store.put(key, data, Create()))
        except AlreadyExists:
            self._require_size(key, len(data))

    def _require_size(self, key: str, size_bytes: int) -> None:
        """Check an existing object: its name is unique, so this upload made it and its answer was lost."""
        try:
            found = self._retry(lambda: self._store.head(key))
        except ObjectNotFound as error:
            raise UploadLost(
                key, "was uploaded and no longer exists: garbage collection deleted the object of a fenced writer"
            ) from error
        if found.size_bytes != size_bytes:
            raise StoreError(
                key,
                f"has {found.size_bytes} bytes, but this sink uploaded {size_bytes} bytes",
                hint="object names are never reused; check whether another program writes to this folder",
            )


def _taken(blocks: list[bytes]) -> bytes:
    """Join blocks and clear the list, so that the bytes are not in memory twice while the store is slow."""
    whole = b"".join(blocks)
    blocks.clear()
    return whole
