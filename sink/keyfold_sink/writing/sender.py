"""Sending one segment to the store: the part of a roll that waits.

A segment that stays small goes up in one create. One that outgrows `PART_BYTES` is begun as a multipart upload and its
blocks leave as they fill, so a segment's size is not bounded by memory. Either way the object's name is fresh and its
creation conditional: whatever is repeated, it holds these bytes or does not exist.

Runs on a lane: in order, never two calls at once. Results that are unknown are asked for again for as long as the lane
is open; an upload that the store has lost raises `UploadLost`, and the records are read from Kafka once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from keyfold.backoff import Backoff
from keyfold.errors import AlreadyExists, KeyfoldError, ObjectNotFound, StoreError, UploadLost
from keyfold.log.assembly import FinishedSegment
from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import ObjectName, Place
from keyfold.log.segment import SegmentWriter
from keyfold.store.api import Bytes, Create, ObjectStore, Upload
from keyfold_sink.writing.lane import Lane

T = TypeVar("T")

PART_BYTES: Final = 8 * 1024 * 1024
_DELAYS: Final = Backoff(first_ms=100, cap_ms=10_000)
_LOOKS: Final = 3
LOOK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Retry:
    """Repeats calls on a lane until they are answered or the lane is closed."""

    lane: Lane
    random: Random
    backoff: Backoff = _DELAYS
    look_again_s: float = LOOK_AGAIN_S

    def __call__(self, call: Callable[[], T]) -> T:
        """See `Lane.retry`."""
        return self.lane.retry(call, self.backoff, self.random)

    def believing(self, error: type[KeyfoldError], call: Callable[[], T], looks: int = _LOOKS) -> T:
        """The same, but `error` counts only at the last look: a broker that has just started may not know better."""
        for _ in range(looks - 1):
            with contextlib.suppress(error):
                return self(call)
            self.lane.wait(self.look_again_s)
        return self(call)


class SegmentSender:
    """One segment's way to the store, and its index's."""

    def __init__(self, store: ObjectStore, place: Place, name: ObjectName, retry: Retry) -> None:
        self._store = store
        self._place = place
        self._name = name
        self._retry = retry
        self._upload: Upload | None = None

    def send_part(self, blocks: list[bytes]) -> None:
        """Send blocks that are finished, and forget them; at least `MIN_PART_BYTES` of them together."""
        if self._upload is None:
            self._upload = self._retry(lambda: self._store.start_upload(self._key))
        upload = self._upload
        part = _taken(blocks)
        self._retry(lambda: upload.write(part))

    def finish(self, writer: SegmentWriter, blocks: list[bytes], *, base_offset: int, next_offset: int) -> SegmentEntry:
        """Send the rest (`blocks` were drained before, and are forgotten) and the index.

        What comes back is ready to be committed.
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
        """A name stands for one byte string: one that exists is mine, its answer was lost."""
        try:
            found = self._retry(lambda: self._store.head(key))
        except ObjectNotFound as error:
            raise UploadLost(key, "was uploaded and is gone: the collector took it from a fenced writer") from error
        if found.size_bytes != size_bytes:
            raise StoreError(
                key,
                f"holds {found.size_bytes} bytes where this sink's {size_bytes} bytes belong",
                hint="object names are never reused; something else writes into this folder",
            )


def _taken(blocks: list[bytes]) -> bytes:
    """Blocks in one piece, which is all that is left of them: a store that is slow must not hold everything twice."""
    whole = b"".join(blocks)
    blocks.clear()
    return whole
