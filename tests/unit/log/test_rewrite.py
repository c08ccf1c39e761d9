"""The rewriter copies stored bytes, no more than needed, and never damaged ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keyfold.log.avro import SegmentDamaged
from keyfold.log.codec import CODECS
from keyfold.log.index import GAP_BYTES
from keyfold.log.record import Record
from keyfold.log.rewrite import SegmentRewriter
from keyfold.runtime.overlap import FETCH_BYTES
from tests.support.segments import SYNC, Made, make, plain_records, read_with_fastavro, rewrite

BLOCK = 4000


def thousand(codec: str = "zstandard", block_bytes: int = BLOCK) -> Made:
    return make(list(plain_records(1000)), codec=codec, block_bytes=block_bytes)


def mask(source: Made, garbage: float, seed: int = 1) -> list[bool]:
    keep: list[bool] = (np.random.default_rng(seed).random(len(source.index)) >= garbage).tolist()
    return keep


def survivors(source: Made, keep: list[bool]) -> list[Record]:
    return [record for record, kept in zip(source.records(), keep, strict=True) if kept]


@pytest.mark.parametrize("target", CODECS)
@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("garbage", [0.0, 0.1, 0.9])
def test_a_rewrite_keeps_the_selected_records_for_any_codecs(source: str, target: str, garbage: float) -> None:
    old = thousand(source)
    keep = mask(old, garbage)
    new = rewrite([old], [keep], codec=target, block_bytes=BLOCK)
    assert new.records() == survivors(old, keep) == read_with_fastavro(new.data)
    assert new.index.codec == target
    assert new.finished.record_count == sum(keep)


def test_a_segment_without_garbage_is_the_same_bytes() -> None:
    old = thousand()
    new = rewrite([old], [[True] * 1000], block_bytes=BLOCK)
    # Only the last block, which is small, is packed again.
    assert new.data == old.data
    assert new.index.rows.equals(old.index.rows)


def test_whole_blocks_move_as_stored_bytes() -> None:
    old = thousand()
    keep = np.ones(1000, np.bool_)
    keep[old.index.ints("block") == 3] = False
    keep[np.flatnonzero(old.index.ints("block") == 7)[0]] = False
    new = rewrite([old], [keep.tolist()], block_bytes=BLOCK)
    moved = {
        bytes(new.data[p : p + n]) for p, n in zip(new.index.blocks.position, new.index.blocks.length, strict=True)
    }
    for number, (position, length) in enumerate(zip(old.index.blocks.position, old.index.blocks.length, strict=True)):
        assert (old.data[position : position + length] in moved) == (number not in {3, 7})
    assert new.records() == survivors(old, keep.tolist())


def test_blocks_without_survivors_are_fetched_only_between_near_ones() -> None:
    old = make(list(plain_records(120, value_bytes=25_000)), codec="null", block_bytes=60_000)
    table = old.index.blocks
    assert len(table) == 60
    keep = np.isin(old.index.ints("block"), [2, 3, 8, 40])
    rewrite([old], [keep.tolist()])
    first, last = int(table.position[2]), int(table.position[40])
    assert old.fetched == [(first, int(table.position[9]) - first), (last, int(table.length[40]))]
    old.fetched.clear()
    rewrite([old], [keep.tolist()], gap_bytes=0)
    assert old.fetched == [
        (first, int(table.position[4]) - first),
        *((int(table.position[number]), int(table.length[number])) for number in (8, 40)),
    ]
    assert table.position[8] - table.position[4] <= GAP_BYTES < table.position[40] - table.position[9]


def test_nothing_is_fetched_if_nothing_survives() -> None:
    old, other = thousand(), make(list(plain_records(10, first=5000)))
    new = rewrite([old, other], [[False] * 1000, [True] * 10])
    assert old.fetched == []
    assert new.records() == other.records()


def test_neighbouring_blocks_are_fetched_together_up_to_a_limit() -> None:
    old = make(list(plain_records(120, value_bytes=100_000)), codec="null", block_bytes=200_000)
    rewrite([old], [[True] * 120])
    assert len(old.fetched) == 3
    assert all(length <= FETCH_BYTES for _, length in old.fetched)
    assert sum(length for _, length in old.fetched) == int(old.index.blocks.length.sum())


def test_a_block_larger_than_a_fetch_is_fetched_whole() -> None:
    records = [Record(0, 1, "CreateTime", b"k", bytes(FETCH_BYTES + 5)), Record(1, 1, "CreateTime", b"k", b"")]
    old = make(records, codec="null")
    assert rewrite([old], [[True, True]]).records() == records


def test_survivors_of_several_blocks_fill_blocks() -> None:
    old = make(list(plain_records(5000)), block_bytes=BLOCK)
    new = rewrite([old], [mask(old, 0.9)], block_bytes=BLOCK)
    sizes = np.bincount(new.index.ints("block"), weights=new.index.ints("length"))
    assert len(new.index.blocks) < len(old.index.blocks) / 5
    assert sizes[:-1].min() >= 0.75 * BLOCK
    assert sizes.max() <= 1.5 * BLOCK


def test_many_small_segments_become_one_with_full_blocks() -> None:
    small = [make(list(plain_records(7, first=100 * i))) for i in range(60)]
    new = rewrite(small, [[True] * 7] * 60, block_bytes=BLOCK)
    assert new.records() == [record for source in small for record in source.records()]
    assert len(new.index.blocks) < 20


def test_a_few_records_before_a_whole_block_do_not_become_a_block() -> None:
    old = thousand()
    block = old.index.ints("block")
    keep = block != 4
    keep[np.flatnonzero(block == 4)[0]] = True
    new = rewrite([old], [keep.tolist()], block_bytes=BLOCK)
    assert new.index.blocks.record_count[:-1].min() > 10
    assert new.records() == survivors(old, keep.tolist())


def test_blocks_do_not_grow_from_pass_to_pass() -> None:
    made = make(list(plain_records(3000)), block_bytes=BLOCK)
    for generation in range(12):
        keep = mask(made, 0.05, seed=generation)
        expected = survivors(made, keep)
        made = rewrite([made], [keep], block_bytes=BLOCK)
        assert made.records() == expected
        sizes = np.bincount(made.index.ints("block"), weights=made.index.ints("length"))
        assert sizes.max() <= 1.5 * BLOCK
        assert sizes[:-1].min() >= BLOCK / 8


def test_marks_are_kept_or_set() -> None:
    records = [Record(i, 1, "CreateTime", b"%d" % i, None) for i in range(4)]
    old = make(records)
    once = rewrite([old], [[True, True, False, True]], marks=[[None, 5, 6]])
    assert once.index.rows["cleaned_epoch"].to_pylist() == [None, 5, 6]
    assert once.finished.cleaned_epochs == (5, 6)
    assert (once.finished.tombstone_count, once.finished.unmarked_tombstone_count) == (3, 1)
    twice = rewrite([once], [[True, True, False]])
    assert twice.index.rows["cleaned_epoch"].to_pylist() == [None, 5]
    with pytest.raises(ValueError, match="2 marks for 3 kept rows"):
        rewrite([once], [[True] * 3], marks=[[1, 2]])


def test_counts_are_those_of_the_survivors() -> None:
    records = [
        Record(1, 50, "CreateTime", None, b"x"),
        Record(2, -1, "NoTimestampType", b"a", None),
        Record(3, 10, "CreateTime", b"b", b"x"),
        Record(9, 90, "CreateTime", None, None),
    ]
    finished = rewrite([make(records)], [[True, True, True, False]]).finished
    assert (finished.record_count, finished.tombstone_count, finished.keyless_count) == (3, 1, 1)
    assert (finished.first_offset, finished.last_offset) == (1, 3)
    assert (finished.min_timestamp, finished.max_timestamp) == (10, 50)


def test_drained_bytes_and_sizes_add_up() -> None:
    old = thousand("null")
    rewriter = SegmentRewriter(sync_marker=SYNC, codec="null", block_bytes=BLOCK)
    rewriter.add(old.index, None, np.array(mask(old, 0.5)), None, old.fetch)
    held = rewriter.memory_bytes
    drained = rewriter.drain()
    assert held - rewriter.memory_bytes == sum(map(len, drained))
    size = rewriter.size_bytes
    finished = rewriter.finish()
    assert finished.size_bytes == sum(map(len, [*drained, *finished.data]))
    assert abs(size - finished.size_bytes) < 100


def test_offsets_must_ascend_over_all_sources() -> None:
    first, second = make(list(plain_records(5, first=10))), make(list(plain_records(5, first=14)))
    with pytest.raises(SegmentDamaged, match="has offset 14 after offset 14"):
        rewrite([first, second], [[True] * 5] * 2)
    assert rewrite([first, second], [[True] * 4 + [False], [True] * 5]).finished.record_count == 9


def test_a_rewrite_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        rewrite([thousand()], [[False] * 1000])


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a mask of 3 for 1000 rows"):
        rewrite([thousand()], [[True] * 3])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("garbage", [0.0, 0.5])
def test_damage_in_what_is_fetched_is_never_carried_on(codec: str, garbage: float) -> None:
    old = make(list(plain_records(60)), codec=codec, block_bytes=1000)
    keep = mask(old, garbage)
    first = int(old.index.blocks.position[0])
    for position in range(first, len(old.data), 37):
        damaged = bytearray(old.data)
        damaged[position] ^= 4
        number = int(np.searchsorted(old.index.blocks.position, position, side="right")) - 1
        with pytest.raises(SegmentDamaged, match=rf"p/old\.avro, block {number}"):
            _add(replace(old, data=bytes(damaged)), keep)


def _add(source: Made, keep: list[bool], **changes: Any) -> None:
    rewriter = SegmentRewriter(sync_marker=SYNC, block_bytes=1000)
    index = replace(source.index, **changes)
    rewriter.add(index, None, np.array(keep), None, source.fetch, origin="p/old.avro")


def test_a_short_fetch_is_damage() -> None:
    old = thousand()
    cut = replace(old, data=old.data[:-1])
    with pytest.raises(SegmentDamaged, match=r"block \d+: received \d+ of"):
        _add(cut, [True] * 1000)


def test_an_index_that_contradicts_itself_or_its_segment_is_damage() -> None:
    old = thousand()
    rows, blocks = old.index.rows, old.index.blocks

    def column(name: str, change: int) -> pa.Table:
        numbers = rows[name].to_numpy().copy()
        numbers[500] += change
        return rows.set_column(
            rows.schema.get_field_index(name), rows.schema.field(name), pa.array(numbers, rows[name].type)
        )

    all_kept = [True] * 1000
    with pytest.raises(SegmentDamaged, match="another sync marker than the partition"):
        _add(old, all_kept, sync_marker=bytes(16))
    with pytest.raises(SegmentDamaged, match="rows are not contiguous"):
        _add(old, all_kept, rows=column("position", 1))
    with pytest.raises(SegmentDamaged, match="do not ascend"):
        _add(old, all_kept, rows=column("offset", -1))
    with pytest.raises(SegmentDamaged, match="do not match its block table"):
        _add(old, all_kept, rows=column("block", 1))
    last = rows["length"].to_numpy().copy()
    last[-1] += 1
    longer = rows.set_column(7, rows.schema.field("length"), pa.array(last))
    with pytest.raises(SegmentDamaged, match=r"block \d+: has \d+ uncompressed bytes"):
        _add(old, [*[False] * 998, False, True], rows=longer)
    counts = blocks.record_count.copy()
    counts[2] += 1
    with pytest.raises(SegmentDamaged, match="do not match its block table"):
        _add(old, all_kept, blocks=replace(blocks, record_count=counts))
