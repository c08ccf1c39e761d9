"""The segment writer: appends of any size make the same segment, and everything it says about itself is true."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keyfold.log.assembly import SegmentLimits
from keyfold.log.codec import CODECS
from keyfold.log.index import Index
from keyfold.log.record import CREATE_TIME, NO_TIMESTAMP, Record, RecordColumns
from keyfold.log.segment import MANY_RECORDS, SegmentWriter, segment_bytes
from tests.support.segments import SYNC, columns_of, make, plain_records, read_with_fastavro

BLOCK = 64 * 1024


def record(offset: int, key: bytes | None = b"k", value: bytes | None = b"v", timestamp: int = 7) -> Record:
    return Record(offset, timestamp, CREATE_TIME, key, value)


@pytest.mark.parametrize("codec", CODECS)
def test_large_and_small_appends_give_the_same_bytes(codec: str) -> None:
    records = list(plain_records(3 * MANY_RECORDS))
    whole = make(records, codec=codec, block_bytes=5000)
    for cuts in ([1], range(0, len(records), 20), [MANY_RECORDS + 3], range(len(records))):
        assert make(records, codec=codec, block_bytes=5000, cuts=cuts).data == whole.data
    assert whole.records() == records == read_with_fastavro(whole.data)


def test_blocks_have_the_requested_size() -> None:
    segment = make(list(plain_records(2000)), block_bytes=10_000)
    rows = segment.index
    sizes = np.bincount(rows.ints("block"), weights=rows.ints("length"))
    assert sizes.max() <= 10_000
    assert sizes[:-1].min() > 9_000


def test_a_record_larger_than_a_block_gets_its_own_block() -> None:
    records = [record(0), record(1, value=bytes(50_000)), record(2), record(3, value=bytes(70_000)), record(4)]
    segment = make(records, block_bytes=1000)
    assert segment.index.ints("block").tolist() == [0, 1, 2, 3, 4]
    assert segment.records() == records


def test_a_finished_segments_statistics_match_its_records() -> None:
    records = [
        record(10, None, b"x", 100),
        record(12, b"", None, -5),
        Record(13, -1, NO_TIMESTAMP, b"a", b""),
        record(14, b"a", None, 90),
        record(20, None, None, 80),
    ]
    segment = make(records)
    finished = segment.finished
    assert (finished.first_offset, finished.last_offset, finished.record_count) == (10, 20, 5)
    assert (finished.tombstone_count, finished.unmarked_tombstone_count, finished.keyless_count) == (2, 2, 2)
    assert (finished.min_timestamp, finished.max_timestamp) == (-5, 100)
    assert finished.size_bytes == len(segment.data)
    assert finished.index_size_bytes == len(finished.index_data)
    assert finished.checksum == hashlib.sha256(segment.data).digest()
    assert finished.index_checksum == hashlib.sha256(finished.index_data).digest()
    entry = finished.entry("s", "i", base_offset=3, next_offset=21)
    assert (entry.base_offset, entry.last_offset, entry.next_offset, entry.cleaned_epochs) == (3, 20, 21, ())
    with pytest.raises(ValueError, match=r"outside the range \[3, 20\)"):
        finished.entry("s", "i", base_offset=3, next_offset=20)


def test_a_segment_without_timestamps_reports_minus_one() -> None:
    finished = make([Record(0, -1, NO_TIMESTAMP, b"a", b"b")]).finished
    assert (finished.min_timestamp, finished.max_timestamp) == (-1, -1)


def test_draining_changes_nothing() -> None:
    writer = SegmentWriter(sync_marker=SYNC, block_bytes=500)
    drained: list[bytes] = []
    for one in plain_records(300):
        writer.append(columns_of([one]))
        drained += writer.drain()
        assert writer.drain() == []
    finished = writer.finish()
    data = segment_bytes(finished, *drained)
    assert data == make(list(plain_records(300)), block_bytes=500).data
    assert len(data) == finished.size_bytes


@pytest.mark.parametrize("count", [2, 30, MANY_RECORDS + 1])
@pytest.mark.parametrize("fault", ["same", "lower", "before"])
def test_non_ascending_offsets_are_refused_and_nothing_is_added(count: int, fault: str) -> None:
    writer = SegmentWriter(sync_marker=SYNC)
    writer.append(columns_of([record(100)]))
    bad = list(plain_records(count, first=101))
    where = {"same": (-1, bad[-2].offset), "lower": (-1, 7), "before": (0, 100)}[fault]
    bad[where[0]] = replace(bad[where[0]], offset=where[1])
    with pytest.raises(ValueError, match=f"offset {where[1]} follows offset"):
        writer.append(columns_of(bad))
    good = list(plain_records(count, first=101))
    writer.append(columns_of(good))
    assert (writer.record_count, writer.last_offset) == (count + 1, good[-1].offset)
    assert writer.finish().record_count == count + 1


@pytest.mark.parametrize("count", [1, MANY_RECORDS])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offsets", 2**63),
        ("timestamps", 2**63),
        ("timestamp_types", 3),
        ("timestamp_types", -1),
        ("leader_epochs", 2**31),
    ],
)
def test_numbers_that_do_not_fit_are_refused(count: int, column: str, value: int) -> None:
    columns = columns_of(list(plain_records(count)))
    numbers = list(getattr(columns, column))
    numbers[-1] = value
    writer = SegmentWriter(sync_marker=SYNC)
    with pytest.raises(ValueError, match=r"fit|type must be between"):
        writer.append(replace(columns, **{column: numbers}))
    assert (writer.record_count, writer.memory_bytes) == (0, SegmentWriter(sync_marker=SYNC).memory_bytes)


@pytest.mark.parametrize("count", [1, MANY_RECORDS])
def test_a_header_name_that_is_not_text_is_refused_immediately(count: int) -> None:
    columns = columns_of(list(plain_records(count)))
    writer = SegmentWriter(sync_marker=SYNC)
    with pytest.raises(UnicodeEncodeError):
        writer.append(replace(columns, headers=[[("\ud800", b"")]] * count))
    writer.append(columns)
    assert writer.finish().record_count == count


@pytest.mark.parametrize("block_bytes", [0, -1, 2**31])
def test_invalid_block_sizes_are_refused(block_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"blocks of {block_bytes} bytes"):
        SegmentWriter(sync_marker=SYNC, block_bytes=block_bytes)


@pytest.mark.parametrize("count", [1, MANY_RECORDS])
def test_columns_of_different_lengths_are_refused(count: int) -> None:
    columns = columns_of(list(plain_records(count)))
    with pytest.raises(ValueError, match="differ in length"):
        SegmentWriter(sync_marker=SYNC).append(replace(columns, keys=columns.keys[1:]))


def test_an_empty_append_is_ignored_and_an_empty_segment_is_refused() -> None:
    writer = SegmentWriter(sync_marker=SYNC)
    writer.append(RecordColumns([], [], [], [], [], [], []))
    with pytest.raises(ValueError, match="a segment needs at least one record"):
        writer.finish()


def test_finishing_twice_is_refused() -> None:
    writer = SegmentWriter(sync_marker=SYNC)
    writer.append(columns_of([record(1)]))
    writer.finish()
    with pytest.raises(ValueError, match="finished already"):
        writer.finish()


@pytest.mark.parametrize("with_headers", [False, True])
def test_slices_and_wide_offsets_give_the_same_bytes(*, with_headers: bool) -> None:
    """What only large batches and records of more than 1 GiB reach, with lower bounds."""
    records = [
        replace(
            r,
            key=None if r.offset % 5 == 0 else r.key,
            value=None if r.offset % 7 == 0 else r.value,
            headers=(("n", b"%d" % r.offset),) if with_headers and r.offset % 3 else (),
            leader_epoch=r.offset // 100,
        )
        for r in plain_records(1000)
    ]
    expected = make(records, block_bytes=3000)
    assert make(records, block_bytes=3000, limits=SegmentLimits(slice_bytes=5000)).data == expected.data
    limits = SegmentLimits(slice_bytes=5000, small_binary_bytes=10)
    wide = make(records, block_bytes=3000, limits=limits)
    assert wide.data == expected.data
    assert wide.index.rows.equals(expected.index.rows)
    assert wide.records() == records


@pytest.mark.parametrize("arrow_bytes_max", [2**31 - 1, 1000])
@pytest.mark.parametrize("without_value", [(), (0, 7), (700,)])
def test_large_values_give_the_same_bytes_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch, arrow_bytes_max: int, without_value: tuple[int, ...]
) -> None:
    monkeypatch.setattr("keyfold.log.record_encoder._INT32_MAX", arrow_bytes_max)
    records = [
        replace(
            r,
            key=b"%04d" % (r.offset % 50) * (250 if r.offset % 3 == 0 else 1),
            value=None if r.offset in without_value else bytes([r.offset % 251]) * (1000 + 3 * r.offset),
        )
        for r in plain_records(MANY_RECORDS + 200)
    ]
    segment = make(records)
    assert segment.data == make(records, cuts=range(0, len(records), 10)).data
    assert segment.records() == records == read_with_fastavro(segment.data)


@pytest.mark.parametrize("count", [10, MANY_RECORDS])
def test_numpy_columns_are_columns_too(count: int) -> None:
    records = list(plain_records(count))
    names = ("offsets", "timestamps", "timestamp_types", "leader_epochs")
    columns = columns_of(records)
    numbers: dict[str, Any] = {name: np.array(getattr(columns, name)) for name in names}
    writer = SegmentWriter(sync_marker=SYNC)
    writer.append(replace(columns, **numbers))
    assert segment_bytes(writer.finish()) == make(records).data


@pytest.mark.parametrize("batch", [1, 20, 1000])
def test_memory_is_counted_and_the_size_estimate_is_close(batch: int) -> None:
    writer = SegmentWriter(sync_marker=SYNC, block_bytes=20_000)
    records = list(plain_records(20_000))
    held = 0
    for start in range(0, len(records), batch):
        writer.append(columns_of(records[start : start + batch]))
        held += sum(map(len, writer.drain()))
    waiting = writer.memory_bytes
    # Rows wait for their row group: about 45 bytes each; records for their block.
    assert 20_000 * 40 < waiting < 20_000 * 70 + 3 * 20_000
    guess = writer.size_bytes
    finished = writer.finish()
    assert abs(guess - finished.size_bytes) < 0.02 * finished.size_bytes


def test_undrained_bytes_count_as_memory() -> None:
    writer = SegmentWriter(sync_marker=SYNC, codec="null", block_bytes=BLOCK)
    writer.append(columns_of(list(plain_records(1000, value_bytes=1000))))
    before = writer.memory_bytes
    gone = sum(map(len, writer.drain()))
    assert gone > 900_000
    assert before - writer.memory_bytes == gone


def test_rows_leave_memory_with_their_row_group() -> None:
    records = list(plain_records(5500))
    writer = SegmentWriter(sync_marker=SYNC, codec="null", block_bytes=BLOCK, limits=SegmentLimits(row_group_rows=1000))
    most = 0
    for start in range(0, len(records), 300):
        writer.append(columns_of(records[start : start + 300]))
        writer.drain()
        most = max(most, writer.memory_bytes)
    finished = writer.finish()
    assert Index.parse(finished.index_data).rows["key"].to_pylist() == [r.key for r in records]
    assert Index.parse(finished.index_data).ints("offset").tolist() == list(range(5500))
    assert most < 1300 * 70 + 5500 * 12 + 2 * BLOCK
