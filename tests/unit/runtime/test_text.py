"""Sizes, times and names as people read them."""

from __future__ import annotations

import pytest

from keyfold.runtime.text import aligned_lines, count_text, duration_text, names_text, size_text, time_text


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-1536, "-1.5 KiB"),
        (3 * 1024**3, "3.0 GiB"),
        (5000 * 1024**4, "5000.0 TiB"),
    ],
)
def test_a_size_has_the_largest_unit_that_it_reaches(n_bytes: float, expected: str) -> None:
    assert size_text(n_bytes) == expected


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 copies"), (1, "1 copy"), (2, "2 copies"), (1_234_567, "1,234,567 copies")]
)
def test_one_thing_is_singular(count: int, expected: str) -> None:
    assert count_text(count, "copy", "copies") == expected
    assert count_text(2, "record") == "2 records"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(9.94, "9.9 s"), (10, "10 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 days")],
)
def test_a_duration_has_a_unit_that_fits(seconds: float, expected: str) -> None:
    assert duration_text(seconds) == expected


def test_a_time_is_in_utc_and_invalid_times_are_shown_as_numbers() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(-1) == "-"
    assert time_text(2**62) == str(2**62)


def test_names_beyond_the_fifth_are_counted() -> None:
    assert names_text(["a", "b"]) == "a, b"
    assert names_text(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_columns_are_aligned() -> None:
    rows = [("TOPIC", "SIZE", ""), ("a", "1.0 KiB", "note"), ("longer", "-", "")]
    assert list(aligned_lines(rows, right=(1,))) == ["TOPIC      SIZE", "a       1.0 KiB  note", "longer        -"]
    assert list(aligned_lines([])) == []
