"""Avro data to Arrow without a loop over values: all values of one writer schema take each step of it at once.

Where a field begins differs from value to value; which field comes next does not. So the positions of all values go
from field to field together. A union parts them by branch; items of arrays and maps are read in rounds, the first of
every value that has one, then the second. What is not wanted is passed over.

Invariant: the result is that of `keyfold.formats.avro_read` for each value, or `Misplaced`, or `Unsuited`: then some
value is wrong, or reading one by one is the better way, which also says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyfold.formats.avro_default import default_value
from keyfold.formats.avro_leaves import Leaves, as_kind
from keyfold.formats.avro_resolve import (
    Action,
    ReadArray,
    ReadEnum,
    ReadLeaf,
    ReadMap,
    ReadRecord,
    ReadUnion,
)
from keyfold.formats.avro_schema import Primitive
from keyfold.formats.column_width import ColumnMemory, null_bytes
from keyfold.formats.errors import Unsuited
from keyfold.log.arrow_numbers import PADDING, Ints, Misplaced, refuse
from keyfold.runtime.arrow_types import ArrowArray, column_of, lists_of
from keyfold.runtime.buffers import Bytes

__all__ = ["Misplaced", "padded", "pass_over", "read_arrow"]

_FEW_ITEMS: Final = 65_536
# After this many rounds, with fewer values than this left, reading them one by one is quicker.
_ROUNDS: Final = 16
_FEW_VALUES: Final = 128

ListType: TypeAlias = "pa.ListType[pa.DataType]"
MapType: TypeAlias = "pa.MapType[pa.DataType, pa.DataType, pa.DataType]"
Found: TypeAlias = "tuple[ArrowArray | None, Ints]"


def padded(raw: Bytes) -> bytes:
    """Raw bytes as `read_arrow` takes them."""
    return b"".join([raw, bytes(PADDING)])


def read_arrow(
    action: Action, kind: pa.DataType, raw: bytes, starts: Ints, ends: Ints, memory: ColumnMemory
) -> ArrowArray:
    """The values at `[starts, ends)` of `padded` bytes, which ascend, as an array of `kind`.

    Raises `Misplaced`, `Unsuited` and `TooWide`.
    """
    found, at = _Walk(Leaves(raw), memory).read(action, kind, starts, ends)
    refuse(at != ends, "it does not end where its data ends")
    assert found is not None, "an array of a kind must be made"
    return found


def pass_over(action: Action, raw: bytes, starts: Ints, ends: Ints) -> None:
    """Read the values at `[starts, ends)` of `padded` bytes, and make nothing of them. Strings must be UTF-8.

    Raises `Misplaced` and `Unsuited`.
    """
    _, at = _Walk(Leaves(raw, checks_texts=True), ColumnMemory(len(raw))).read(action, None, starts, ends)
    refuse(at != ends, "it does not end where its data ends")


class _Walk:
    def __init__(self, leaves: Leaves, memory: ColumnMemory) -> None:
        self._leaves = leaves
        self._memory = memory

    def read(self, action: Action, kind: pa.DataType | None, at: Ints, limits: Ints) -> Found:  # noqa: PLR0911 - one return per kind of action
        """The values at `at` as an array of `kind` (None: they are passed over), and the positions behind them."""
        if not len(at):
            return None if kind is None else pa.array([], kind), at
        match action:
            case ReadLeaf():
                if kind is not None and _is_null(action):
                    self._memory.reserve(len(at) * null_bytes(kind))
                return self._leaves.read(action, kind, at, limits)
            case ReadUnion():
                return self._union(action, kind, at, limits)
            case ReadRecord():
                return self._record(action, cast("pa.StructType | None", kind), at, limits)
            case ReadEnum():
                return self._enum(action, kind, at, limits)
            case ReadArray():
                return self._array(action, cast("ListType | None", kind), at, limits)
            case ReadMap():
                return self._map(action, cast("MapType | None", kind), at, limits)
        raise Misplaced(0, action.message)

    def _record(self, action: ReadRecord, kind: pa.StructType | None, at: Ints, limits: Ints) -> Found:
        count = len(at)
        arrays: list[ArrowArray | None] = [None] * (0 if kind is None else kind.num_fields)
        for step, place in action.steps:
            wanted = None if kind is None or place is None else kind.field(place).type
            found, at = self.read(step, wanted, at, limits)
            if place is not None and kind is not None:
                arrays[place] = found
        if kind is None:
            return None, at
        for place in action.defaults:
            member = action.target.fields[place]
            one = pa.array([default_value(member.type, member.default, raw=True)], kind.field(place).type)
            self._memory.reserve(count * one.nbytes)
            arrays[place] = one.take(pa.array(np.zeros(count, np.int64)))
        return pa.StructArray.from_arrays(cast("list[ArrowArray]", arrays), fields=list(kind)), at

    def _union(self, action: ReadUnion, kind: pa.DataType | None, at: Ints, limits: Ints) -> Found:
        branches, at = self._leaves.numbers(at, limits)
        first = int(branches[0])
        refuse((branches < 0) | (branches >= len(action.branches)), "a number is not a branch of its union")
        if (branches == first).all():
            return self.read(action.branches[first], kind, at, limits)
        behind = at.copy()
        order = np.full(len(at), -1, np.int64)
        pieces: list[ArrowArray] = []
        placed = 0
        for number, branch in enumerate(action.branches):
            rows = np.flatnonzero(branches == number)
            if len(rows) and not _is_null(branch):
                found, behind[rows] = self.read(branch, kind, at[rows], limits[rows])
                if found is not None:
                    pieces.append(found)
                order[rows] = np.arange(placed, placed + len(rows))
                placed += len(rows)
        if kind is None:
            return None, behind
        if placed < len(at):
            self._memory.reserve((len(at) - placed) * null_bytes(kind))
        joined = pa.concat_arrays(pieces) if pieces else pa.array([], kind)
        return joined.take(column_of(order, mask=order < 0)), behind

    def _enum(self, action: ReadEnum, kind: pa.DataType | None, at: Ints, limits: Ints) -> Found:
        numbers, at = self._leaves.numbers(at, limits)
        refuse((numbers < 0) | (numbers >= len(action.symbols)), "a number is not a symbol of its enum")
        if kind is None:
            return None, at
        unknown = np.array([symbol is None for symbol in action.symbols])
        refuse(unknown[numbers], "a symbol is not in the reader's enum")
        self._memory.reserve(int(np.array([len(symbol or "") for symbol in action.symbols])[numbers].sum()))
        symbols = pa.array([symbol or "" for symbol in action.symbols], pa.string())
        return as_kind(symbols.take(column_of(numbers)), kind), at

    def _array(self, action: ReadArray, kind: ListType | None, at: Ints, limits: Ints) -> Found:
        wanted = None if kind is None else kind.value_type
        items = _Items(self._leaves, at, limits)
        pieces = items.rounds(lambda at, limits: self.read(action.items, wanted, at, limits))
        if kind is None:
            return None, items.at
        values = items.in_order(pieces, kind.value_type)
        return as_kind(lists_of(items.bounds(), values), kind), items.at

    def _map(self, action: ReadMap, kind: MapType | None, at: Ints, limits: Ints) -> Found:
        wanted = None if kind is None else kind.item_type
        keys: list[ArrowArray] = []

        def pair(at: Ints, limits: Ints) -> Found:
            spans, at = self._leaves.spans(at, limits)
            if kind is None:
                self._leaves.pass_text(spans)
            else:
                keys.append(self._leaves.texts(spans))
            return self.read(action.values, wanted, at, limits)

        items = _Items(self._leaves, at, limits)
        pieces = items.rounds(pair)
        if kind is None:
            return None, items.at
        names, values = items.in_order(keys, pa.string()), items.in_order(pieces, kind.item_type)
        items.require_distinct(names)
        maps = pa.MapArray.from_arrays(  # type: ignore[call-overload]  # the stubs miss columns of any type
            column_of(items.bounds()), names, values
        )
        return as_kind(maps, kind), items.at


def _is_null(action: Action) -> bool:
    return isinstance(action, ReadLeaf) and action.written == Primitive("null")


@dataclass(slots=True)
class _Items:
    """Items of arrays, or of maps, of many values."""

    leaves: Leaves
    at: Ints
    limits: Ints
    counts: Ints = field(init=False)
    owners: Ints = field(init=False)

    def rounds(self, read: Callable[[Ints, Ints], Found]) -> list[ArrowArray]:
        """Read all items with `read`; what each round has found."""
        self.at = self.at.copy()
        self.counts = np.zeros(len(self.at), np.int64)
        left = np.zeros(len(self.at), np.int64)
        rows = np.arange(len(self.at))
        pieces: list[ArrowArray] = []
        owners: list[Ints] = []
        spare = int((self.limits - self.at).sum())  # items that take no bytes may be any number
        while len(rows := self._open(rows, left)):
            spare -= len(rows)
            if spare < 0 or (len(owners) > _ROUNDS and len(rows) < _FEW_VALUES):
                raise Unsuited
            found, self.at[rows] = read(self.at[rows], self.limits[rows])
            left[rows] -= 1
            self.counts[rows] += 1
            if found is not None:
                pieces.append(found)
            owners.append(rows)
        self.owners = np.concatenate(owners) if owners else np.empty(0, np.int64)
        return pieces

    def _open(self, rows: Ints, left: Ints) -> Ints:
        """The values that have another item; counts of the next pieces are read where a piece has ended."""
        ended = rows[left[rows] == 0]
        if len(ended):
            counts, at = self.leaves.numbers(self.at[ended], self.limits[ended])
            sized = np.flatnonzero(counts < 0)
            if len(sized):
                counts[sized] = -counts[sized]
                limits = self.limits[ended[sized]]
                sizes, at[sized] = self.leaves.numbers(at[sized], limits)
                refuse((sizes < 0) | (sizes > limits - at[sized]), "it declares more bytes of items than it has")
            most = np.maximum(self.limits[ended] - at, _FEW_ITEMS)
            refuse((counts < 0) | (counts > most), "it declares more items than it can have")
            self.at[ended], left[ended] = at, counts
        return rows[left[rows] > 0]

    def in_order(self, pieces: list[ArrowArray], kind: pa.DataType) -> ArrowArray:
        """All items, those of the first value first."""
        if not pieces:
            return pa.array([], kind)
        if len(pieces) == 1:
            return pieces[0]
        return pa.concat_arrays(pieces).take(column_of(np.argsort(self.owners, kind="stable")))

    def bounds(self) -> npt.NDArray[np.int32]:
        """Where each value's items begin and end."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)

    def require_distinct(self, names: ArrowArray) -> None:
        """Raise `Unsuited` where a map has a key twice: the last one counts."""
        if int(self.counts.max(initial=0)) > 1:
            codes = names.dictionary_encode()
            numbers = codes.indices.to_numpy().astype(np.int64)
            both = np.repeat(np.arange(len(self.counts)), self.counts) * len(codes.dictionary) + numbers
            if len(np.unique(both)) < len(both):
                raise Unsuited
