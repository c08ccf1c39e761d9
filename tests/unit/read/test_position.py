"""The position rules, as values in and values out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold.errors import OffsetOutOfRange
from keyfold.log.manifest import Ancestor, Manifest, SegmentEntry
from keyfold.read.position import (
    anchor_of,
    check_resumed,
    end_offset,
    segment_at,
    segments_between,
    segments_from_time,
    start_offset,
)


def entry(base: int, last: int, next_offset: int, *, max_timestamp: int = 0) -> SegmentEntry:
    return SegmentEntry(
        f"{base:020d}.avro", f"_index/{base:020d}.parquet", base, last, next_offset, 1, 0, 0, 0, 1, 1, 0, max_timestamp,
        0, b"", b"",
    )  # fmt: skip


LOG = Manifest(
    "t", 0, "id", b"m" * 16, version=4, log_start_offset=10, next_offset=50, last_pass_epoch=5,
    segments=(
        entry(10, 15, 20, max_timestamp=300), entry(20, 29, 30, max_timestamp=100),
        entry(30, 44, 50, max_timestamp=200),
    ),
)  # fmt: skip


@pytest.mark.parametrize(("asked", "start"), [(None, 10), (10, 10), (17, 17), (50, 50)])
def test_a_read_starts_at_the_given_offset_or_the_log_start(asked: int | None, start: int) -> None:
    assert start_offset(LOG, asked) == start


@pytest.mark.parametrize("asked", [-1, 0, 9, 51])
def test_an_offset_outside_the_log_is_an_error_with_the_range(asked: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=rf"offset {asked} is outside of the log, which has offsets \[10, 50\)"):
        start_offset(LOG, asked)


def test_a_read_ends_at_the_requested_end_or_the_versions_end() -> None:
    assert [end_offset(LOG, to) for to in (None, 20, 99)] == [50, 20, 50]


def test_segments_that_cannot_match_are_left_out() -> None:
    assert [s.base_offset for s in segments_between(LOG, 16, 30)] == [20]  # 16..19 is a hole of the first
    assert [s.base_offset for s in segments_between(LOG, 15, 31)] == [10, 20, 30]
    assert segments_between(LOG, 45, 50) == ()
    assert [s.base_offset for s in segments_from_time(LOG, 150)] == [10, 30]


def test_the_segment_of_a_position_is_the_one_whose_range_holds_it() -> None:
    assert [getattr(segment_at(LOG, p), "base_offset", None) for p in (9, 10, 19, 20, 49, 50)] == [
        None, 10, 10, 20, 30, None,
    ]  # fmt: skip


def test_a_reader_continues_in_a_newer_version() -> None:
    check_resumed(anchor_of(LOG), 10, replace(LOG, version=9, next_offset=80))


def test_a_reader_overtaken_by_the_log_start_gets_an_error() -> None:
    newer = replace(LOG, log_start_offset=30)
    check_resumed(anchor_of(LOG), 30, newer)
    with pytest.raises(OffsetOutOfRange, match="log start moved to 30 before offset 29"):
        check_resumed(anchor_of(LOG), 29, newer)


@pytest.mark.parametrize(
    ("purged_epoch", "purged_to", "position", "hole"),
    [
        (6, 40, 40, True),  # marked after the reader began, and the tombstone is still ahead
        (6, 40, 41, False),  # passed already
        (5, 40, 12, False),  # marked by a pass that the reader's first version had: no older record was ever seen
    ],
)
def test_a_purged_tombstone_affects_only_readers_that_still_needed_it(
    purged_epoch: int, purged_to: int, position: int, hole: bool
) -> None:
    newer = replace(LOG, purged_epoch=purged_epoch, purged_to=purged_to)
    if hole:
        with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 40 were removed"):
            check_resumed(anchor_of(LOG), position, newer)
    else:
        check_resumed(anchor_of(LOG), position, newer)


def test_a_recreated_log_is_not_the_one_that_was_read() -> None:
    with pytest.raises(OffsetOutOfRange, match="created again"):
        check_resumed(anchor_of(LOG), 20, replace(LOG, log_id="other"))


PROMOTED = replace(
    LOG,
    log_id="promoted",
    last_pass_epoch=7,
    version=3,
    next_offset=60,
    last_epoch=9,
    lineage=(Ancestor("id", 4, 50, 6), Ancestor("b", 8, 55, 8)),
)


def test_a_promoted_log_serves_readers_of_the_log_it_continues() -> None:
    anchor = check_resumed(anchor_of(LOG), 50, PROMOTED)
    assert (anchor.log_id, anchor.last_pass_epoch, anchor.seen_to) == ("promoted", 5, 60)
    check_resumed(anchor, 60, PROMOTED)  # from now on it is a reader of this log: behind the old one's end too


def test_a_reader_ahead_of_the_promoted_log_gets_an_error() -> None:
    with pytest.raises(OffsetOutOfRange, match=r"the old log \(id\) only below offset 50; this reader, at offset 51"):
        check_resumed(anchor_of(LOG), 51, PROMOTED)
    # At offset 20, of a version that ended at 52: offset 12 may have been left out there because of offset 51.
    ahead = check_resumed(anchor_of(LOG), 20, replace(LOG, version=5, next_offset=52))
    with pytest.raises(OffsetOutOfRange, match="has seen the old log below offset 52"):
        check_resumed(ahead, 20, PROMOTED)


def test_passes_of_the_old_log_after_the_branch_do_not_count() -> None:
    """Both logs gave the number 7 to a pass of their own: the new log's has marked what this reader still needs."""
    reader = anchor_of(replace(LOG, last_pass_epoch=8))
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 40"):
        check_resumed(reader, 30, replace(PROMOTED, purged_epoch=7, purged_to=40))
    check_resumed(reader, 30, replace(PROMOTED, purged_epoch=6, purged_to=40))


def test_a_version_ending_before_the_position_is_a_lagging_replicas() -> None:
    behind = replace(LOG, version=3, next_offset=45)
    with pytest.raises(
        OffsetOutOfRange, match="ends at offset 45, but this reader, at offset 20, has seen the log up to 50"
    ):
        check_resumed(anchor_of(LOG), 20, behind)


def test_a_reader_positioned_before_a_pass_does_not_remember_the_pass() -> None:
    """There an older record of the key may still be read, whose tombstone the pass has marked."""
    anchor = check_resumed(anchor_of(LOG), 20, replace(LOG, version=3, last_pass_epoch=4))
    assert anchor.last_pass_epoch == 4
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 40"):
        check_resumed(anchor, 30, replace(LOG, version=9, last_pass_epoch=7, purged_epoch=5, purged_to=40))


def test_a_log_outside_the_lineage_is_another_log() -> None:
    with pytest.raises(OffsetOutOfRange, match="created again"):
        check_resumed(anchor_of(PROMOTED), 20, LOG)
