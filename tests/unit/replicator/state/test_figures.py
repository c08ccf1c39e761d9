"""What is pending at a replica and how far it is behind, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keyfold.log.commit import Pinned
from keyfold.log.manifest import UNSTAMPED, Manifest, Replaced, SegmentEntry
from keyfold_replicator.state.figures import Lag, Pending, figures, figures_by_cursor
from tests.support.manifests import compactor_name, empty_manifest, entry, sink_name

NOW_MS = 1_700_000_000_000


def appended(base: int, end: int, ago_s: int, **changes: object) -> SegmentEntry:
    """100 bytes and an index of 50, a record at each offset, whose timestamps are their offsets."""
    values = {"appended_at_ms": NOW_MS - 1000 * ago_s, "min_timestamp": base, "max_timestamp": end - 1, **changes}
    return entry(sink_name(base), base, end, **values)  # type: ignore[arg-type]  # fields by name, of any type


def rewritten(base: int, end: int, ago_s: int, attempt: int = 0, **changes: object) -> SegmentEntry:
    values = {"appended_at_ms": NOW_MS - 1000 * ago_s, "min_timestamp": base, "max_timestamp": end - 1, **changes}
    return entry(compactor_name(base, 2, attempt), base, end, **values)  # type: ignore[arg-type]  # fields by name, of any type


def log(*segments: SegmentEntry, **changes: Any) -> Manifest:
    start, end = (segments[0].base_offset, segments[-1].next_offset) if segments else (0, 0)
    return empty_manifest(0, segments=segments, log_start_offset=start, next_offset=end, **changes)


def pinned(manifest: Manifest, modified_ms: int = UNSTAMPED) -> Pinned:
    return Pinned(manifest, "etag", NOW_MS, modified_ms)


FOUR = tuple(appended(10 * i, 10 * i + 10, ago_s=400 - 100 * i) for i in range(4))


def test_two_logs_with_the_same_objects_have_nothing_pending() -> None:
    found = figures(pinned(log(*FOUR)), log(*FOUR))
    assert (found.pending, found.lag, found.is_by_cursor) == (Pending(), Lag(), False)


def test_new_segments_are_pending_and_the_oldest_of_them_is_the_lag() -> None:
    found = figures(pinned(log(*FOUR)), log(*FOUR[:2]))
    assert found.pending == Pending(bytes=300, records=20, segments=2, earliest_ms=20, latest_ms=39)
    assert found.lag == Lag(records=20, ms=200_000, existing_records=20)


def test_at_an_empty_replica_everything_is_pending_from_the_log_start() -> None:
    source = log(*FOUR[1:])
    found = figures(pinned(source), None)
    assert found.pending == Pending(bytes=450, records=30, segments=3, earliest_ms=10, latest_ms=39)
    assert found.lag == Lag(records=30, ms=300_000, existing_records=30), (
        "what was never there, or has expired, is no lag"
    )


def test_rewritten_segments_are_pending_although_no_record_is_missing() -> None:
    old = log(*FOUR)
    replaced = tuple(Replaced(n, 7, NOW_MS - 30_000) for s in FOUR[:2] for n in (s.name, s.index_name))
    source = log(rewritten(0, 20, 300, record_count=8), *FOUR[2:], replaced=replaced)
    found = figures(pinned(source), old)
    assert found.pending == Pending(bytes=150, records=8, segments=1), "no record is new: no times"
    assert found.lag == Lag(records=0, ms=30_000), "since then the source reads differently"


def test_a_new_index_alone_is_pending_bytes_without_records() -> None:
    marked = replace(FOUR[0], index_name=str(compactor_name(0, 2).index), index_size_bytes=70)
    found = figures(pinned(log(marked, *FOUR[1:])), log(*FOUR))
    assert found.pending == Pending(bytes=70, records=0, segments=1)


def test_a_pass_over_records_missing_at_the_replica_does_not_reduce_its_lag() -> None:
    # Three hours of records whose timestamps are wall-clock times; the merge keeps the newest append, a second ago.
    begun_ms = NOW_MS - 3 * 3_600_000
    merged = rewritten(20, 40, 1, min_timestamp=begun_ms + 5_000, max_timestamp=NOW_MS - 1_000)
    source = pinned(log(*FOUR[:2], merged))
    found = figures(source, log(*FOUR[:2]), received_at_ms=begun_ms)
    assert found.lag.ms == 3 * 3_600_000 - 5_000
    assert figures(source, log(*FOUR[:2])).lag.ms == 1_000, "without a cursor nobody knows better"
    early = pinned(log(*FOUR[:2], replace(merged, min_timestamp=3)))
    assert figures(early, log(*FOUR[:2]), received_at_ms=begun_ms).lag.ms == 3 * 3_600_000, "timestamps may be any"


def test_records_without_timestamps_have_no_earliest_or_latest_time() -> None:
    source = log(*FOUR[:2], replace(FOUR[2], min_timestamp=-1, max_timestamp=-1))
    found = figures(pinned(source), log(*FOUR[:2]))
    assert (found.pending.records, found.pending.earliest_ms, found.pending.latest_ms) == (10, -1, -1)


def test_an_unstamped_time_is_the_manifests_age() -> None:
    source = log(*FOUR[:3], replace(FOUR[3], appended_at_ms=UNSTAMPED))
    assert figures(pinned(source, modified_ms=NOW_MS - 7_000), log(*FOUR[:3])).lag.ms == 7_000
    assert figures(pinned(source), log(*FOUR[:3])).lag.ms == 0


def test_the_cursor_alone_shows_new_records_but_no_rewrites() -> None:
    source = log(rewritten(0, 20, 300), *FOUR[2:])
    found = figures_by_cursor(pinned(source), 30)
    assert found.is_by_cursor
    assert found.pending == Pending(bytes=150, records=10, segments=1, earliest_ms=30, latest_ms=39)
    assert found.lag == Lag(records=10, ms=100_000, existing_records=10)
    assert figures_by_cursor(pinned(source), -1).pending.segments == 3, "nothing received: all of it"
    assert figures_by_cursor(pinned(source), 40).pending == Pending()


def test_a_compacted_log_lacks_fewer_records_than_offsets() -> None:
    source = log(*FOUR[:2], rewritten(20, 40, 100, record_count=3))
    found = figures(pinned(source), log(*FOUR[:2]))
    assert (found.lag.records, found.lag.existing_records) == (20, 3)
    merged = log(FOUR[0], rewritten(10, 40, 100, record_count=25))
    found = figures(pinned(merged), log(*FOUR[:3]))
    assert (found.lag.records, found.lag.existing_records) == (10, 10), "no more than there are offsets"
    assert figures_by_cursor(pinned(merged), 30).lag.existing_records == 10
    assert figures_by_cursor(pinned(merged), 40).lag.existing_records == 0


def test_an_end_moved_over_a_hole_is_lag_without_bytes() -> None:
    source = log(*FOUR[:3], replace(FOUR[3], next_offset=50))
    found = figures(pinned(source), log(*FOUR))
    assert (found.pending, found.lag) == (Pending(), Lag(records=10, ms=0))


def test_sums_keep_the_outer_times_and_ignore_missing_ones() -> None:
    one, other, none = Pending(1, 2, 3, 10, 20), Pending(10, 20, 30, 5, 15), Pending(100, 0, 1)
    assert one + other + none == Pending(111, 22, 34, 5, 20)
    assert none + none == Pending(200, 0, 2, -1, -1)


def test_an_empty_log_is_never_behind() -> None:
    assert figures(pinned(log()), None) == figures(pinned(log()), log())
