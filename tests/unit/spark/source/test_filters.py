"""Filters narrow a scope, and never by more than they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.spark.source.filters import EVERYTHING, OFFSET_MAX, FilterBounds, scope_of
from tests.support.cleaning import load, memory_log, record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class EqualNullSafe(EqualTo): ...


class GreaterThan(EqualTo): ...


class GreaterThanOrEqual(EqualTo): ...


class LessThan(EqualTo): ...


class LessThanOrEqual(EqualTo): ...


class In(EqualTo): ...


class StringContains(EqualTo): ...


@dataclass(frozen=True)
class IsNotNull:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    child: Any


KINDS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}


def us(number: int) -> datetime:
    return EPOCH + timedelta(microseconds=number)


def lets_through(scope: FilterBounds, partition: int, offset: int, time_ms: int, key: bytes | None) -> bool:
    return (
        not scope.is_empty
        and scope.has_partition(partition)
        and scope.min_offset <= offset <= scope.max_offset
        and (scope.min_timestamp is None or scope.min_timestamp <= time_ms)
        and (scope.max_timestamp is None or time_ms <= scope.max_timestamp)
        and (scope.keys is None or key in scope.keys)
    )


NUMBERS = st.integers(-3, 8)
TIMES = st.integers(-3000, 8000)
KEYS = st.sampled_from([b"", b"a", b"b", b"c"])


@st.composite
def filters(draw: st.DrawFn) -> Any:
    column, values = draw(
        st.sampled_from([("partition", NUMBERS), ("offset", NUMBERS), ("timestamp", TIMES.map(us)), ("key", KEYS)])
    )
    kind = draw(st.sampled_from([EqualTo, In] if column == "key" else list(KINDS)))
    value = tuple(draw(st.lists(values, max_size=3))) if kind is In else draw(values)
    one = kind((column,), value)
    return Not(one) if column == "partition" and kind in {EqualTo, In} and draw(st.booleans()) else one


def holds(one: Any, row: dict[str, Any]) -> bool:
    if isinstance(one, Not):
        return not holds(one.child, row)
    return bool(KINDS[type(one)](row[one.attribute[0]], one.value))


@given(st.lists(filters(), max_size=5), st.integers(0, 8), st.integers(0, 8), st.integers(-3, 8), st.none() | KEYS)
def test_no_row_that_spark_accepts_is_out_of_scope(
    given_filters: list[Any], partition: int, offset: int, time_ms: int, key: bytes | None
) -> None:
    row = {"partition": partition, "offset": offset, "timestamp": us(time_ms * 1000), "key": key}
    if all(holds(one, row) for one in given_filters):
        assert lets_through(scope_of(given_filters), partition, offset, time_ms, key)


def test_filters_narrow_each_column() -> None:
    scope = scope_of(
        [
            In(("partition",), (1, 2, 3)),
            Not(EqualTo(("partition",), 2)),
            LessThan(("partition",), 3),
            GreaterThan(("offset",), 10),
            LessThanOrEqual(("offset",), 20),
            GreaterThanOrEqual(("timestamp",), us(1001)),
            LessThan(("timestamp",), us(5000)),
            In(("key",), (b"a", b"b", None)),
            EqualTo(("key",), bytearray(b"b")),
        ]
    )
    assert [partition for partition in range(5) if scope.has_partition(partition)] == [1]
    assert (scope.min_offset, scope.max_offset) == (11, 20)
    assert (scope.min_timestamp, scope.max_timestamp) == (2, 4)
    assert scope.keys == frozenset({b"b"})


@pytest.mark.parametrize(
    "one",
    [
        IsNotNull(("key",)),
        Not(EqualTo(("key",), b"a")),
        Not(EqualTo(("partition",), "3")),
        Not(GreaterThan(("partition",), 3)),
        EqualNullSafe(("key",), None),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "name"), "x"),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - what is tested
        GreaterThan(("key",), b"a"),
        StringContains(("timestamp_type",), "x"),
        EqualTo(("offset",), 1.5),
        Not(IsNotNull(("partition",))),
    ],
)
def test_unknown_filters_narrow_nothing(one: Any) -> None:
    assert scope_of([one]) == EVERYTHING


@pytest.mark.parametrize(
    "given_filters",
    [
        [GreaterThan(("offset",), 5), LessThan(("offset",), 6)],
        [EqualTo(("key",), b"a"), EqualTo(("key",), b"b")],
        [EqualTo(("partition",), 1), EqualTo(("partition",), 2)],
        [GreaterThan(("partition",), 1), LessThan(("partition",), 2)],
        [GreaterThan(("timestamp",), us(1000)), LessThan(("timestamp",), us(1001))],
    ],
)
def test_contradictory_filters_are_recognised(given_filters: list[Any]) -> None:
    assert scope_of(given_filters).is_empty


@pytest.mark.parametrize(
    ("low", "high", "is_wanted"),
    [(None, 49, True), (0, 49, False), (0, 50, True), (90, None, True), (91, None, False), (-1, 3, True)],
)
def test_a_segment_with_time_bounds_may_have_records_without_a_time(
    low: int | None, high: int | None, *, is_wanted: bool
) -> None:
    store, _ = memory_log([record(0, "a", "1", 50), record(1, "b", "1", -1), record(2, "c", "1", 90)])
    (entry,) = load(store).segments
    assert (entry.min_timestamp, entry.max_timestamp) == (50, 90)
    assert FilterBounds(min_timestamp=low, max_timestamp=high).selection.can_match(entry) == is_wanted


def test_no_filter_selects_everything() -> None:
    scope = scope_of([])
    assert scope.has_partition(2**31 - 1)
    assert (scope.min_offset, scope.max_offset) == (0, OFFSET_MAX)
    assert not scope.is_empty
