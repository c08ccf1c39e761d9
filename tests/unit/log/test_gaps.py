"""A manifest's gaps stay few and their sums exact, whatever is skipped."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.cli.output import manifest_json, manifest_lines
from keyfold.log.gaps import MAX_GAPS, MAX_REASONS, NEWEST_GAPS, OTHER_REASONS, records_in, totals, with_gaps
from keyfold.log.manifest import WHOLE_RANGE, Gap
from keyfold.log.manifest_codec import encode_manifest
from tests.support.manifests import empty_manifest
from tests.support.untyped import untyped


def skip(offset: int, reason: str = "a", length: int = 1) -> Gap:
    return Gap(offset, offset + length, reason)


def test_adjacent_gaps_of_one_reason_are_joined() -> None:
    assert with_gaps((skip(1),), [skip(2), skip(3, length=4)]) == (Gap(1, 7, "a"),)
    assert with_gaps((skip(1),), [skip(2, "b"), skip(3)]) == (skip(1), skip(2, "b"), skip(3))
    assert with_gaps((skip(1),), [skip(3)]) == (skip(1), skip(3))


def test_adjacent_counted_gaps_keep_their_count() -> None:
    assert with_gaps((Gap(0, 10, "a", 3),), [skip(10)]) == (Gap(0, 11, "a", 4),)
    assert with_gaps((skip(0),), [Gap(1, 10, "a", 2)]) == (Gap(0, 10, "a", 3),)


def test_the_newest_gaps_stay_separate() -> None:
    gaps = with_gaps((), [skip(2 * n) for n in range(5000)])
    assert len(gaps) <= MAX_GAPS
    assert gaps[-NEWEST_GAPS:] == tuple(skip(2 * n) for n in range(5000 - NEWEST_GAPS, 5000))
    assert totals(gaps) == {"a": 5000}


def test_the_closest_gaps_are_joined_first() -> None:
    far = [skip(1000 * n) for n in range(100)]
    close = [skip(200_000 + 2 * n) for n in range(MAX_GAPS - 100)]
    gaps = with_gaps(with_gaps((), far + close), [skip(300_000)])
    assert gaps[:100] == tuple(far)
    assert gaps[100] == Gap(200_000, 200_000 + 2 * 101 + 1, "a", 102)


def test_a_completely_lost_range_is_recorded_as_such_until_it_is_joined() -> None:
    assert records_in(Gap(5, 15, "lost")) == 10
    many = with_gaps((), [Gap(100 * n, 100 * n + 10, "lost") for n in range(MAX_GAPS + 1)])
    assert totals(many) == {"lost": 10 * (MAX_GAPS + 1)}
    assert many[0].record_count != WHOLE_RANGE


def test_too_many_reasons_are_merged() -> None:
    gaps = with_gaps((), [skip(2 * n, f"reason {n}") for n in range(10_000)])
    assert len(gaps) <= MAX_GAPS
    assert len(totals(gaps)) == MAX_REASONS + 1
    assert totals(gaps)[OTHER_REASONS] == 10_000 - MAX_REASONS


def test_a_million_skips_cost_the_manifest_little() -> None:
    random = Random(5)
    gaps: tuple[Gap, ...] = ()
    offset = 0
    for _commit in range(100):
        fresh = []
        for _ in range(100):
            offset += random.randrange(2, 3000)
            fresh.append(skip(offset, random.choice(["not JSON", "not UTF-8", "schema not known"])))
        gaps = with_gaps(gaps, fresh)
    assert sum(totals(gaps).values()) == 10_000
    without = len(encode_manifest(empty_manifest(next_offset=offset + 1)))  # most of it is the schema
    assert len(encode_manifest(empty_manifest(gaps=gaps, next_offset=offset + 1))) - without < 3000


@pytest.mark.parametrize("commits", [1, 7])
@given(data=st.data())
def test_every_skip_lies_in_a_gap_of_its_reason_and_sums_are_preserved(commits: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=900))
    offset, gaps, skipped = 0, (), []  # type: int, tuple[Gap, ...], list[tuple[int, str]]
    for number in range(commits):
        fresh = []
        for distance, reason in steps[number::commits]:
            offset += distance + 1
            skipped.append((offset, reason))
            fresh.append(skip(offset, reason))
        gaps = with_gaps(gaps, fresh)
        assert len(gaps) <= MAX_GAPS
    for at, reason in skipped:
        assert any(g.from_offset <= at < g.to_offset and g.reason == reason for g in gaps)
    assert sum(totals(gaps).values()) == len(skipped)
    missing = {at for at, _ in skipped}
    for gap in gaps:
        if gap.record_count == WHOLE_RANGE:
            assert missing.issuperset(range(gap.from_offset, gap.to_offset))


def test_few_gaps_are_shown_singly_and_many_start_with_their_sums() -> None:
    few = empty_manifest(gaps=(Gap(1, 5, "lost"), Gap(7, 90, "skipped: x", 12)), next_offset=100)
    assert [line.split(maxsplit=1)[1] for line in manifest_lines(few, ()) if line.startswith("  gap")] == [
        "[1, 5) lost",
        "[7, 90) 12 of them: skipped: x",
    ]
    assert untyped(manifest_json(few))["gap_records"] == {"lost": 4, "skipped: x": 12}
    assert untyped(manifest_json(few))["gaps"][1] == {
        "from_offset": 7, "to_offset": 90, "reason": "skipped: x", "records": 12, "whole_range": False,
    }  # fmt: skip
    many = empty_manifest(gaps=with_gaps((), [skip(2 * n) for n in range(300)]), next_offset=600)
    lines = [line.split(maxsplit=1)[1] for line in manifest_lines(many, ()) if line.startswith("  gap")]
    assert lines[:2] == ["300 offsets: a", "the newest 10 of 300 ranges (all with --json):"]
    assert lines[-1] == "[598, 599) a"
    assert len(lines) == 12
