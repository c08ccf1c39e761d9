"""Fetching ahead and sending in the background: the same requests and bytes, and errors that are raised."""

from __future__ import annotations

import threading
from random import Random

import numpy as np
import pytest

from keyfold.errors import StoreUnavailable
from keyfold.log.manifest import SegmentEntry
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.overlap import FETCH_BYTES, FETCH_THREADS, SEND_BYTES, FetchAhead, SendBehind
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, SimulatedCrash
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import MaskKey, UnitJob, UnitSource
from keyfold_compactor.execute.mapping import packed
from keyfold_compactor.execute.rewrite import rewrite_unit
from tests.support.cleaning import PLACE, Sink, load, record, retry_policy

KIB = 1024


def test_the_next_range_is_fetched_while_one_is_used() -> None:
    begun = {number: threading.Event() for number in range(3)}

    def fetch(start: int, length: int) -> bytes:
        begun[start].set()
        return bytes([start]) * length

    with FetchAhead(fetch, [(number, FETCH_BYTES) for number in range(3)]) as ahead:
        assert ahead(0, FETCH_BYTES) == bytes(FETCH_BYTES)
        assert begun[1].wait(60), "nobody has asked for it yet"
        assert not begun[2].wait(0.05), "more is held than one large range"
        assert ahead(1, FETCH_BYTES) == bytes([1]) * FETCH_BYTES
        assert ahead(2, FETCH_BYTES) == bytes([2]) * FETCH_BYTES


def test_small_ranges_are_fetched_in_groups() -> None:
    together = threading.Barrier(FETCH_THREADS)

    def fetch(start: int, length: int) -> bytes:
        together.wait(60)
        return bytes([start]) * length

    ranges = [(number, 5) for number in range(3 * FETCH_THREADS)]
    with FetchAhead(fetch, ranges) as ahead:
        assert [ahead(*each) for each in ranges] == [bytes([start]) * 5 for start, _ in ranges]


def test_nothing_is_fetched_before_the_first_range_is_requested() -> None:
    asked: list[int] = []
    with FetchAhead(lambda start, _: asked.append(start) or b"", [(0, 1)]):  # type: ignore[func-returns-value]  # append returns None
        pass
    assert asked == []


def test_a_pending_fetch_ends_before_the_task_continues() -> None:
    ended: list[int] = []
    begun, release = threading.Event(), threading.Event()

    def fetch(start: int, length: int) -> bytes:
        if start:
            begun.set()
            release.wait(60)
        ended.append(start)
        return b""

    size = FETCH_BYTES
    with FetchAhead(fetch, [(0, size), (1, size), (2, size)]) as ahead:
        ahead(0, size)
        assert begun.wait(60)
        threading.Timer(0.05, release.set).start()
    assert ended == [0, 1]


def test_an_error_of_a_fetch_ahead_is_raised_at_its_range() -> None:
    def fetch(start: int, length: int) -> bytes:
        if start:
            raise StoreUnavailable("key", "503")
        return bytes(length)

    with FetchAhead(fetch, [(0, 1), (1, 1)]) as ahead:
        ahead(0, 1)
        with pytest.raises(StoreUnavailable):
            ahead(1, 1)


def test_pieces_are_sent_in_order_and_in_batches() -> None:
    batches: list[bytes] = []
    with SendBehind(lambda pieces: batches.append(b"".join(pieces))) as sending:
        for number in range(40):
            sending.write([bytes([number]) * 50 * KIB, bytes([number]) * 50 * KIB])
        sending.flush()
    assert b"".join(batches) == b"".join(bytes([n]) * 100 * KIB for n in range(40))
    assert len(batches) < 6
    assert all(len(batch) >= SEND_BYTES for batch in batches[:-1])


def test_an_error_of_sending_is_raised_and_nothing_is_sent_after_it() -> None:
    sent: list[int] = []

    def send(pieces: list[bytes]) -> None:
        sent.append(len(pieces))
        raise StoreUnavailable("key", "503")

    with SendBehind(send) as sending:  # type: ignore[arg-type]  # any sender
        sending.write([bytes(SEND_BYTES)])
        with pytest.raises(StoreUnavailable):
            sending.write([bytes(SEND_BYTES)])
        with pytest.raises(StoreUnavailable):
            sending.flush()
    assert sent == [1]


def job(store: MemoryStore, gap_bytes: int | None = None) -> tuple[UnitJob, dict[MaskKey, bytes]]:
    """Return a rewrite of three segments of 6 MiB, of which every third record is removed."""
    sink, random = Sink.open(store), Random(1)
    for number in range(3):
        batch = [record(number * 96 + i, f"key-{i}", random.randbytes(65_536)) for i in range(96)]
        sink.append(batch, block_bytes=65_536)
    manifest = load(store)
    keep = np.arange(96) % 3 != 0
    unit = UnitJob(
        log=0,
        group=0,
        place=PLACE,
        epoch=9,
        sync_marker=manifest.sync_marker,
        encoding=Encoding("null", 1, 65_536, part_bytes=1024 * KIB, gap_bytes=gap_bytes),
        sources=tuple(UnitSource(at, e, int(keep.sum())) for at, e in enumerate(manifest.segments)),
        base_offset=0,
        next_offset=manifest.next_offset,
        is_remark=False,
    )
    return unit, {(0, at): packed(keep) for at in range(3)}


def rewritten(
    inner: MemoryStore, faults: list[Fault], overlap_bytes_min: int, gap_bytes: int | None = None
) -> tuple[FaultyStore, SegmentEntry]:
    unit, masks = job(inner, gap_bytes)
    store = FaultyStore(inner, faults)
    entry = rewrite_unit(
        unit, masks, store, retry_policy(ManualClock(), Random(2)), overlap_bytes_min=overlap_bytes_min
    )
    return store, entry


def memory() -> MemoryStore:
    return MemoryStore("test", ManualClock(), min_part_bytes=1)


@pytest.mark.parametrize(("gap_bytes", "fetches"), [(None, 6), (0, 96)])
def test_a_unit_has_the_same_bytes_and_requests_with_and_without_overlap(gap_bytes: int | None, fetches: int) -> None:
    plain, entry = rewritten(memory(), [], 2**60, gap_bytes)
    beside, other = rewritten(memory(), [], 0, gap_bytes)
    assert other.checksum == entry.checksum
    assert other.index_checksum == entry.index_checksum

    def requests(store: FaultyStore) -> list[tuple[str, str]]:
        return sorted((call.operation, call.key) for call in store.calls)

    assert requests(beside) == requests(plain)
    assert sum(call.operation == "get_range" for call in beside.calls) == fetches


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("get_range", FaultKind.UNAVAILABLE),
        ("upload.write", FaultKind.UNAVAILABLE),
        ("upload.write", FaultKind.LOST_ANSWER),
        ("upload.complete", FaultKind.LOST_ANSWER),
    ],
)
def test_a_background_request_is_retried_like_any_other(operation: str, kind: FaultKind) -> None:
    _, entry = rewritten(memory(), [], 2**60)
    _, other = rewritten(memory(), [Fault(lambda call: call.operation == operation, kind, times=2)], 0)
    assert other.checksum == entry.checksum


@pytest.mark.parametrize("operation", ["get_range", "upload.write"])
def test_a_crash_in_a_background_request_ends_the_process(operation: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(SimulatedCrash):
        rewritten(memory(), [Fault(lambda call: call.operation == operation, FaultKind.CRASH_BEFORE)], 0)
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("keyfold-")]


def test_an_upload_that_fails_permanently_is_aborted() -> None:
    inner = memory()
    unit, masks = job(inner)
    store = FaultyStore(inner, [Fault(lambda c: c.operation == "upload.write", FaultKind.UNAVAILABLE, times=10**6)])
    with pytest.raises(StoreUnavailable):
        rewrite_unit(unit, masks, store, retry_policy(ManualClock(), Random(2)), overlap_bytes_min=0)
    assert list(inner.list_uploads("")) == []
