"""Objects that are sent while they are made: how they are cut, what is held, what is left when they fail."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from keyfold.errors import StoreError, StoreUnavailable, UploadLost
from keyfold.log.objects import PART_BYTES, PART_BYTES_MAX, ObjectStream, create_object, part_bytes
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import MIN_PART_BYTES, Create, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import UnitJob, UnitSource
from keyfold_compactor.execute.mapping import packed
from keyfold_compactor.execute.rewrite import rewrite_unit
from tests.support.cleaning import PLACE, Sink, load, record, retry_policy

MIB = 1 << 20
S3_PARTS_MAX = 10_000


class Sizes(MemoryStore):
    """Remembers the sizes of parts."""

    def __init__(self) -> None:
        super().__init__("sizes", ManualClock(), min_part_bytes=10)
        self.parts: list[int] = []

    def write_part(self, key: str, upload_id: str, part: Bytes, number: int) -> None:
        super().write_part(key, upload_id, part, number)
        self.parts.append(len(part))


def stream(store: MemoryStore | FaultyStore, *, part_bytes: int = 10) -> ObjectStream:
    return ObjectStream(store, "object", retry_policy(ManualClock(), Random(0)), part_bytes=part_bytes)


@pytest.mark.parametrize("pieces", [[b"x" * 10], [b"a", b"", b"b" * 9], [b""], []])
def test_an_object_up_to_one_part_is_a_single_put(pieces: list[bytes]) -> None:
    store = FaultyStore(MemoryStore())
    sent = stream(store)
    sent.write(pieces)
    assert store.calls == []
    sent.finish()
    assert [call.operation for call in store.calls] == ["put"]
    assert store.get("object").data == b"".join(pieces)


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(20))
def test_all_parts_but_the_last_have_equal_size_for_any_input_pieces(seed: int) -> None:
    random = Random(seed)
    pieces = [random.randbytes(random.choice((0, 1, 3, 9, 10, 11, 35))) for _ in range(random.randint(5, 60))]
    store = Sizes()
    sent = stream(store)
    for piece in pieces:
        sent.write([piece])
        assert sent.held_bytes <= 10
    sent.finish()
    whole = b"".join(pieces)
    assert store.get("object").data == whole
    assert sum(store.parts) in {0, len(whole)}
    assert all(size == 10 for size in store.parts[:-1])
    assert all(0 < size <= 10 for size in store.parts[-1:])
    assert list(store.list_uploads("")) == []


def test_ten_thousand_parts_hold_a_thousand_of_kafkas_largest_segments() -> None:
    sent = count = 0
    while sent < 1_000 * 2**31:
        size = part_bytes(sent)
        assert MIN_PART_BYTES <= size <= PART_BYTES_MAX
        sent, count = sent + size, count + 1
    assert count <= S3_PARTS_MAX


def test_a_kafka_sized_segment_is_uploaded_in_parts_of_equal_size() -> None:
    assert {part_bytes(sent) for sent in range(0, 2**31, PART_BYTES)} == {PART_BYTES}


def test_part_sizes_never_shrink() -> None:
    sizes = [part_bytes(sent) for sent in range(0, 1 << 42, 1 << 32)]
    assert all(a <= b for a, b in pairwise(sizes))


def test_an_abandoned_object_leaves_nothing() -> None:
    store = Sizes()
    sent = stream(store)
    sent.write([b"x" * 25])
    assert len(list(store.list_uploads(""))) == 1
    sent.abandon()
    assert list(store.list_uploads("")) == []
    assert list(store.list("")) == []


def test_abandoning_makes_one_attempt_and_never_raises() -> None:
    store = FaultyStore(Sizes())
    sent = stream(store)
    sent.write([b"x" * 25])
    store.add(Fault(lambda call: call.operation == "upload.abort", FaultKind.UNAVAILABLE))
    sent.abandon()
    assert [call.operation for call in store.calls].count("upload.abort") == 1


def test_an_object_that_may_exist_is_not_abandoned() -> None:
    store = FaultyStore(Sizes(), [Fault(lambda call: call.operation == "upload.complete", FaultKind.LATE, times=10**6)])
    sent = stream(store)
    sent.write([b"x" * 25])
    with pytest.raises(StoreUnavailable):
        sent.finish()
    sent.abandon()
    store.land()
    assert store.inner.get("object").data == b"x" * 25


def test_a_lost_answer_to_a_completed_upload_is_checked_again() -> None:
    store = FaultyStore(Sizes(), [Fault(lambda call: call.operation == "upload.complete", FaultKind.LOST_ANSWER)])
    sent = stream(store)
    sent.write([b"x" * 25])
    sent.finish()
    assert store.inner.get("object").data == b"x" * 25


def test_an_upload_refused_because_it_already_landed_succeeds() -> None:
    """S3 answers 409 to a repeated end of an upload while the first, whose answer was lost, is still at work."""
    store = FaultyStore(
        Sizes(),
        [
            Fault(lambda call: call.operation == "upload.complete", FaultKind.LOST_ANSWER),
            Fault(lambda call: call.operation == "upload.complete", FaultKind.CONFLICT),
        ],
    )
    sent = stream(store)
    sent.write([b"x" * 25])
    sent.finish()
    assert [call.operation for call in store.calls][-3:] == ["upload.complete", "head", "upload.abort"]


def test_a_lost_upload_is_reported() -> None:
    store = Sizes()
    sent = stream(store)
    sent.write([b"x" * 25])
    for upload in list(store.list_uploads("")):
        store.abort_upload(upload.key, upload.upload_id)
    with pytest.raises(UploadLost):
        sent.finish()


def test_an_object_deleted_between_refusal_and_check_is_lost() -> None:
    """A repeated request finds the name taken, and the garbage collection of a fenced writer deletes the object."""
    inner = MemoryStore()
    inner.put("object", b"mine", Create())

    def collect(call: Call) -> None:
        if call.operation == "head":
            inner.delete("object")

    with pytest.raises(UploadLost, match="was uploaded and deleted again"):
        create_object(FaultyStore(inner, on_call=collect), "object", b"mine", retry_policy(ManualClock(), Random(0)))


def test_another_object_under_the_name_is_an_error() -> None:
    store = FaultyStore(Sizes())
    sent = stream(store)
    sent.write([b"x" * 25])
    other = stream(store, part_bytes=100)
    other.write([b"other"])
    other.finish()
    with pytest.raises(StoreError, match="holds 5 bytes; this writer sent 25 bytes"):
        sent.finish()


class Drain(MemoryStore):
    """Keeps of what is uploaded its checksum alone, so that what is measured is what the writer holds."""

    def __init__(self) -> None:
        super().__init__("drain", ManualClock())
        self.checksum = hashlib.sha256()
        self.part_count = 0

    def write_part(self, key: str, upload_id: str, part: Bytes, number: int) -> None:
        del key, upload_id
        self.checksum.update(part)
        self.part_count += 1

    def complete_upload(self, key: str, upload_id: str, sums: Sequence[bytes]) -> PutResult:
        del key
        del self._uploads[upload_id]
        return PutResult("-", 0)


def rewritten_peak_bytes(sources: int, every: int) -> tuple[int, int]:
    """Rewrites segments of 4 MiB into one; what Python and numpy had allocated at most, and the segment's size."""
    store, random = Drain(), Random(1)
    sink = Sink.open(store)
    for number in range(sources):
        batch = [record(number * 128 + i, f"key-{i}", random.randbytes(32_768)) for i in range(128)]
        sink.append(batch, block_bytes=65_536)
    manifest = load(store)
    keep = np.arange(128) % every != 0
    unit = UnitJob(
        log=0,
        group=0,
        place=PLACE,
        epoch=9,
        sync_marker=manifest.sync_marker,
        encoding=Encoding("null", 1, 65_536, part_bytes=MIB),
        sources=tuple(UnitSource(at, e, int(keep.sum())) for at, e in enumerate(manifest.segments)),
        base_offset=0,
        next_offset=manifest.next_offset,
        is_remark=False,
    )
    masks = {(0, at): packed(keep) for at in range(sources)}
    tracemalloc.start()
    try:
        entry = rewrite_unit(unit, masks, store, retry_policy(ManualClock(), Random(2)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.checksum.digest() == entry.checksum
    assert store.part_count == -(-entry.size_bytes // MIB)
    return peak_bytes, entry.size_bytes


@pytest.mark.parametrize("every", [64, 2], ids=["blocks move", "blocks are packed again"])
def test_a_rewrites_memory_does_not_grow_with_the_segment(every: int) -> None:
    """Two ranges of stored blocks (4 MiB), two parts (1 MiB here) and what follows them, blocks in the making."""
    small_bytes, _ = rewritten_peak_bytes(5, every)  # as many as are fetched ahead and sent from behind too
    large_bytes, size_bytes = rewritten_peak_bytes(12, every)
    assert size_bytes > 20 * MIB
    assert large_bytes < 12 * MIB
    assert large_bytes - small_bytes < MIB
