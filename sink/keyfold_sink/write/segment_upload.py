"""Upload one segment and its index.

A small segment is uploaded with one create request. A segment larger than `PART_BYTES` becomes a multipart upload,
whose parts are sent as they fill, so memory does not limit a segment's size. In both cases the object's name is new,
and its creation conditional (`keyfold.log.objects`). So after any number of retries the object has these bytes or does
not exist.

The calls run on a serial queue, in order and one at a time. Requests with an unknown result are retried while the queue
is open. If the store has lost an upload, `UploadLost` is raised, and the records are read from Kafka again. Parts of an
upload whose partition was revoked are left to garbage collection, as those of a dead process are.
"""

from __future__ import annotations

from keyfold.log.manifest import SegmentEntry
from keyfold.log.names import ObjectName, Place
from keyfold.log.objects import ObjectUpload, Retries, create_object
from keyfold.log.segment import SegmentWriter
from keyfold.store.api import ObjectStore


class SegmentUpload:
    """The upload of one segment and its index."""

    def __init__(self, store: ObjectStore, place: Place, name: ObjectName, retries: Retries) -> None:
        self._store = store
        self._place = place
        self._name = name
        self._retries = retries
        self._segment = ObjectUpload(store, place.key(str(name)), retries)

    def send_part(self, blocks: list[bytes]) -> None:
        """Upload finished blocks of at least `MIN_PART_BYTES` together, and free them."""
        self._segment.send_part(_joined(blocks))

    def finish(self, writer: SegmentWriter, blocks: list[bytes], *, base_offset: int, next_offset: int) -> SegmentEntry:
        """Upload the rest (`blocks` were drained before, and are freed) and the index.

        Return the entry to commit.
        """
        finished = writer.finish()
        rest = [*blocks, *finished.data]
        blocks.clear()
        finished.data.clear()
        self._segment.finish(_joined(rest))
        create_object(self._store, self._place.key(str(self._name.index)), finished.index_data, self._retries)
        return finished.entry(str(self._name), str(self._name.index), base_offset=base_offset, next_offset=next_offset)


def _joined(blocks: list[bytes]) -> bytes:
    """Join blocks and clear the list, so that the bytes are not in memory twice while the store is slow."""
    whole = b"".join(blocks)
    blocks.clear()
    return whole
