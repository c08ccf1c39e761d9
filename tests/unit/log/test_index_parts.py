"""An index read a row group at a time gives the same as the whole index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from keyfold.log.assembly import FinishedSegment, SegmentLimits
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import BlockTable, Index
from keyfold.log.record import Record
from keyfold.log.rewrite import SegmentRewriter
from keyfold.runtime.arrow_types import ArrowArray
from tests.support.segments import SYNC, Made, make, plain_records


@pytest.fixture(scope="module")
def segment() -> Made:
    big = [Record(2_000 + n, 1, "CreateTime", b"k", bytes(9_000)) for n in range(3)]
    return make([*plain_records(600), *big, Record(2**60, -1, "NoTimestampType", None, None)], block_bytes=3_000)


@pytest.mark.parametrize("row_group_rows", [1, 2, 7, 60, 300, 603, 10_000])
def test_parts_are_whole_blocks_and_together_the_index(segment: Made, row_group_rows: int) -> None:
    parts = list(Index.parts(segment.index.encode(row_group_rows)))
    assert pa.concat_tables([part.rows for part in parts]).equals(segment.index.rows)
    assert [part.part for part in parts if part.part] == list(zip(firsts(parts), lasts(parts), strict=True))
    assert firsts(parts) == [0, *lasts(parts)[:-1]]
    assert lasts(parts)[-1] == len(segment.index.blocks)
    for part in parts:
        assert all(column.num_chunks == 1 for column in part.rows.columns)
        assert sorted(set(part.ints("block").tolist())) == list(range(*(part.part or (0, 0))))


def firsts(parts: list[Index]) -> list[int]:
    return [int(part.ints("block")[0]) for part in parts]


def lasts(parts: list[Index]) -> list[int]:
    return [int(part.ints("block")[-1]) + 1 for part in parts]


@pytest.mark.parametrize("row_group_rows", [1, 7, 60, 300])
@pytest.mark.parametrize("garbage", [0.0, 0.02, 0.5, 0.97])
def test_a_rewrite_in_parts_gives_the_same_bytes(segment: Made, row_group_rows: int, garbage: float) -> None:
    keep = np.random.default_rng(3).random(len(segment.index)) >= garbage
    marks = pa.array([9 if n % 3 else None for n in range(int(keep.sum()))], pa.int32())
    whole = rewritten(segment, [(segment.index, keep, marks)])
    pieces = []
    row = mark = 0
    for part in Index.parts(segment.index.encode(row_group_rows)):
        kept = keep[row : row + len(part)]
        count = int(kept.sum())
        pieces.append((part, kept, marks[mark : mark + count]))
        row, mark = row + len(part), mark + count
    assert rewritten(segment, pieces) == whole


def rewritten(segment: Made, pieces: Sequence[tuple[Index, np.ndarray, ArrowArray | None]]) -> FinishedSegment:
    rewriter = SegmentRewriter(sync_marker=SYNC, block_bytes=3_000)
    for index, keep, marks in pieces:
        rewriter.add(index, None, keep, marks, segment.fetch)
    return rewriter.finish()


def test_a_part_whose_rows_do_not_match_its_blocks_is_damage(segment: Made) -> None:
    first, second, *_ = Index.parts(segment.index.encode(60))
    for wrong in (replace(first, part=second.part), replace(first, part=None), replace(second, part=first.part)):
        with pytest.raises(SegmentDamaged, match="rows per block"):
            rewritten(segment, [(wrong, np.ones(len(wrong), np.bool_), None)])


def test_a_block_table_of_other_rows_is_damage(segment: Made) -> None:
    blocks = segment.index.blocks
    counts = blocks.record_count.copy()
    counts[0] += 1
    other = BlockTable(blocks.position, blocks.length, counts, blocks.first_offset, blocks.crc32)
    wrong = Index(segment.index.rows, other, segment.index.codec, SYNC)
    with pytest.raises(SegmentDamaged, match="do not match its block table"):
        list(Index.parts(wrong.encode()))


def test_a_flipped_byte_is_found_or_changes_nothing(segment: Made) -> None:
    data = segment.index.encode(60)
    random = Random(7)
    for at in [*range(0, len(data), 97), *random.sample(range(len(data) - 600, len(data)), 60)]:
        broken = bytearray(data)
        broken[at] ^= 1 << random.randrange(8)
        try:
            rows = pa.concat_tables([part.rows for part in Index.parts(bytes(broken), origin="index")])
        except SegmentDamaged:
            continue
        assert rows.equals(segment.index.rows)


def test_large_keys_end_a_row_group_early() -> None:
    records = [Record(n, 1, "CreateTime", b"%04d" % n * 100, b"v") for n in range(200)]
    made = make(records, cuts=range(5, 200, 5), block_bytes=400, limits=SegmentLimits(row_group_key_bytes=10_000))
    parts = list(Index.parts(made.finished.index_data))
    assert 4 < len(parts) < 40
    assert max(part.rows["key"].nbytes for part in parts) < 30_000
    assert pa.concat_tables([part.rows for part in parts]).equals(made.index.rows)
