"""What Spark's filters say about partitions, offsets, timestamps and keys: a `FilterBounds` that planning can use.

A scope only narrows: it never leaves out a record that the filters let through, and Spark applies all filters again to
what it is given. So a filter that is not understood is simply not used. Filters are told apart by the name of their
class, because Spark has such classes only since 4.1.

    partition, offset, key, timestamp     =  <=>  <  <=  >  >=  IN        (of keys only =, <=> and IN)
    partition                             <> too
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from keyfold.read.selection import Selection

OFFSET_MAX: Final = 2**63 - 1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_EQUAL: Final = frozenset({"EqualTo", "EqualNullSafe", "In"})
_OPERATORS: Final = _EQUAL | {"GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"}


@dataclass(frozen=True, slots=True)
class FilterBounds:
    """The records that filters can let through. Bounds are inclusive, times in ms; None is no bound."""

    partitions: frozenset[int] | None = None
    not_partitions: frozenset[int] = frozenset()
    min_partition: int = 0
    max_partition: int = OFFSET_MAX
    min_offset: int = 0
    max_offset: int = OFFSET_MAX
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    keys: frozenset[bytes] | None = field(default=None, repr=False)

    def has_partition(self, partition: int) -> bool:
        """Whether a partition can have such records."""
        if not self.min_partition <= partition <= self.max_partition or partition in self.not_partitions:
            return False
        return self.partitions is None or partition in self.partitions

    @property
    def selection(self) -> Selection:
        """What it says of times and keys."""
        return Selection(self.min_timestamp, self.max_timestamp, self.keys)

    @property
    def is_empty(self) -> bool:
        """Whether no record can be let through, whatever is in the log."""
        low, high = self.min_timestamp, self.max_timestamp
        no_time = low is not None and high is not None and low > high
        no_set = self.partitions == frozenset() or self.keys == frozenset()
        return self.min_offset > self.max_offset or self.min_partition > self.max_partition or no_time or no_set


EVERYTHING: Final = FilterBounds()


def scope_of(filters: Iterable[object]) -> FilterBounds:
    """What all of `filters` together let through, as far as it is understood."""
    scope = EVERYTHING
    for one in filters:
        scope = _narrowed(scope, one)
    return scope


def _narrowed(scope: FilterBounds, one: Any) -> FilterBounds:
    name = type(one).__name__
    if name == "Not":
        return _without(scope, one.child)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1 or name not in _OPERATORS:
        return scope
    values = [value for value in (one.value if name == "In" else [one.value]) if value is not None]
    if not values:  # `= null` is never true, `<=> null` may be; Spark says both in other ways
        return scope
    narrow = {"partition": _partitions, "offset": _offsets, "timestamp": _times, "key": _keys}.get(path[0].lower())
    return scope if narrow is None else narrow(scope, name, values)


def _without(scope: FilterBounds, child: Any) -> FilterBounds:
    """`NOT child`; only of use where it names partitions."""
    if getattr(child, "attribute", None) != ("partition",) or type(child).__name__ not in {"EqualTo", "In"}:
        return scope
    values = child.value if type(child).__name__ == "In" else [child.value]
    if not all(_is_int(value) for value in values):
        return scope
    return replace(scope, not_partitions=scope.not_partitions | frozenset(values))


def _partitions(scope: FilterBounds, name: str, values: list[Any]) -> FilterBounds:
    if name in _EQUAL and all(_is_int(value) for value in values):
        named = frozenset(values)
        return replace(scope, partitions=named if scope.partitions is None else scope.partitions & named)
    low, high = _bounds(name, values)
    return replace(
        scope, min_partition=_later(scope.min_partition, low), max_partition=_sooner(scope.max_partition, high)
    )


def _offsets(scope: FilterBounds, name: str, values: list[Any]) -> FilterBounds:
    low, high = _bounds(name, values)
    return replace(scope, min_offset=_later(scope.min_offset, low), max_offset=_sooner(scope.max_offset, high))


def _keys(scope: FilterBounds, name: str, values: list[Any]) -> FilterBounds:
    if name not in _EQUAL or not all(isinstance(value, bytes | bytearray) for value in values):
        return scope
    keys = frozenset(bytes(value) for value in values)
    return replace(scope, keys=keys if scope.keys is None else scope.keys & keys)


def _times(scope: FilterBounds, name: str, values: list[Any]) -> FilterBounds:
    """Spark's timestamps are in µs, a log's in ms, so `> 10.5 ms` is `>= 11 ms`."""
    if not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return scope
    low, high = _bounds(name, [(value - _EPOCH) // _US for value in values])
    low_ms = None if low is None else -(-low // 1000)
    high_ms = None if high is None else high // 1000
    if low_ms is not None and scope.min_timestamp is not None:
        low_ms = max(low_ms, scope.min_timestamp)
    if high_ms is not None and scope.max_timestamp is not None:
        high_ms = min(high_ms, scope.max_timestamp)
    return replace(
        scope,
        min_timestamp=scope.min_timestamp if low_ms is None else low_ms,
        max_timestamp=scope.max_timestamp if high_ms is None else high_ms,
    )


def _bounds(name: str, values: list[Any]) -> tuple[int | None, int | None]:
    """Inclusive bounds of whole numbers; any other value bounds nothing."""
    if not all(_is_int(value) for value in values):
        return None, None
    value = values[0]
    match name:
        case "GreaterThan":
            return value + 1, None
        case "GreaterThanOrEqual":
            return value, None
        case "LessThan":
            return None, value - 1
        case "LessThanOrEqual":
            return None, value
    return min(values), max(values)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _later(bound: int, other: int | None) -> int:
    return bound if other is None else max(bound, other)


def _sooner(bound: int, other: int | None) -> int:
    return bound if other is None else min(bound, other)
