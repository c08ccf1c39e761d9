"""Avro data to values, without trust: a tree of actions compiled into functions, one call a type.

Every number is in its range, every length and count within the bytes that are there, text is UTF-8. What is wrong
comes as `AvroDecodeError`. The values are Python's, or raw ones that `pyarrow.array` takes for the reader's type
(`keyfold.formats.logical_types`): then a record is a tuple and a map a list of pairs.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from keyfold.formats.avro_default import default_value
from keyfold.formats.avro_resolve import (
    Action,
    ReadArray,
    ReadEnum,
    ReadLeaf,
    ReadMap,
    ReadRecord,
    ReadUnion,
    Refuse,
    resolve,
)
from keyfold.formats.avro_schema import Fixed, Primitive, Type
from keyfold.formats.logical_types import Convert, conversion
from keyfold.log.avro import read_varint

Read = Callable[[bytes, int], tuple[object, int]]
"""(data, position) -> (value, where the next begins). Raises what `FAULTS` lists."""

_FEW_ITEMS: Final = 65_536
_INT_MIN: Final = -(2**31)
_INT_BEYOND: Final = 2**31


class AvroDecodeError(Exception):
    """The bytes are not what the writer's schema says, or the reader's has no place for them."""


FAULTS: Final = (AvroDecodeError, IndexError, ValueError, OverflowError, RecursionError, struct.error)
"""What a `Read` raises for data that is wrong."""


class Into(Enum):
    """What to make of the data."""

    PYTHON = "python"
    RAW = "raw"
    NOTHING = "nothing"


def fault_text(error: Exception) -> str:
    """What is wrong, after `cannot be decoded with schema 3: `."""
    if isinstance(error, UnicodeDecodeError):
        return f"a string is not UTF-8 ({error.reason})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, IndexError):
        return "its bytes end too early"
    return str(error)


def compile_reader(action: Action, into: Into) -> Read:
    """The function that reads one value."""
    return _Compiler(into).read(action)


class _Compiler:
    def __init__(self, into: Into) -> None:
        self._into = into
        self._records: dict[int, Read] = {}

    def read(self, action: Action) -> Read:  # noqa: PLR0911 - one for each kind of action
        match action:
            case ReadLeaf():
                return self._leaf(action)
            case ReadEnum():
                return _enum(action)
            case ReadArray(items):
                return _array(self.read(items))
            case ReadMap(values):
                return _map(self.read(values), as_dict=self._into is Into.PYTHON)
            case ReadUnion(branches):
                return _union(tuple(map(self.read, branches)))
            case ReadRecord():
                return self._record(action)
        return _refuse(action)

    def _leaf(self, action: ReadLeaf) -> Read:
        written, target = action.written, action.target
        bare = _fixed(written.size) if isinstance(written, Fixed) else _PRIMITIVES[written.kind]
        if action.is_rest:
            bare = _rest
        if self._into is Into.NOTHING:
            return _bytes if bare is _string else bare
        steps = [_promotion(written, target), conversion(written, target, raw=self._into is Into.RAW)]
        for step in steps:
            if step is not None:
                bare = _then(bare, step)
        return bare

    def _record(self, action: ReadRecord) -> Read:
        found = self._records.get(id(action))
        if found is not None:
            return found
        made: list[Read] = []
        self._records[id(action)] = lambda data, at: made[0](data, at)  # noqa: PLW0108 - it holds itself, and is not made yet
        skip = _Compiler(Into.NOTHING)
        steps = tuple((skip.read(step) if place is None else self.read(step), place) for step, place in action.steps)
        made.append(self._assembled(action, steps))
        self._records[id(action)] = made[0]
        return made[0]

    def _assembled(self, action: ReadRecord, steps: tuple[tuple[Read, int | None], ...]) -> Read:
        if self._into is Into.NOTHING:
            return _skip_all(tuple(read for read, _ in steps))
        fields = action.target.fields
        blank: list[object] = [None] * len(fields)
        raw = self._into is Into.RAW
        for place in action.defaults:
            blank[place] = default_value(fields[place].type, fields[place].default, raw=raw)
        if raw:
            return _tuple(steps, blank)
        names = tuple(each.name for each in fields)
        return _dict(steps, names, blank, frozenset(action.defaults))


def _then(read: Read, convert: Convert) -> Read:
    def converted(data: bytes, at: int) -> tuple[object, int]:
        value, at = read(data, at)
        return convert(value), at

    return converted


def _promotion(written: Primitive | Fixed, target: Primitive | Fixed) -> Convert | None:
    if isinstance(written, Fixed) or isinstance(target, Fixed) or written.kind == target.kind:
        return None
    if target.kind in {"float", "double"}:
        return float
    return _PROMOTE.get((written.kind, target.kind))


_PROMOTE: Final[Mapping[tuple[str, str], Convert]] = {
    ("string", "bytes"): str.encode,
    ("bytes", "string"): bytes.decode,
}


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return read_varint(data, at)


def _int(data: bytes, at: int) -> tuple[int, int]:
    value, at = _long(data, at)
    if not _INT_MIN <= value < _INT_BEYOND:
        raise AvroDecodeError(f"it has {value} instead of an int")
    return value, at


def _null(_data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise AvroDecodeError(f"it has byte {byte} instead of a boolean")
    return byte == 1, at + 1


def _number(layout: str) -> Read:
    form = struct.Struct(layout)
    size = form.size

    def number(data: bytes, at: int) -> tuple[float, int]:
        if at + size > len(data):
            raise IndexError
        return form.unpack_from(data, at)[0], at + size

    return number


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise AvroDecodeError(f"it has a length of {size} with {len(data) - at} bytes left")
    return data[at:end], end


def _rest(data: bytes, at: int) -> tuple[bytes, int]:
    return data[at:], len(data)


def _string(data: bytes, at: int) -> tuple[str, int]:
    text, at = _bytes(data, at)
    return text.decode(), at


def _fixed(size: int) -> Read:
    def fixed(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return fixed


_PRIMITIVES: Final[Mapping[str, Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _number("<f"),
    "double": _number("<d"),
    "bytes": _bytes,
    "string": _string,
}


def _enum(action: ReadEnum) -> Read:
    symbols, written, name = action.symbols, action.written, action.target.name

    def symbol(data: bytes, at: int) -> tuple[str, int]:
        number, at = _long(data, at)
        if not 0 <= number < len(symbols):
            raise AvroDecodeError(f"it has index {number} of enum {name}, which has {len(symbols)} symbols")
        found = symbols[number]
        if found is None:
            raise AvroDecodeError(f"{written[number]!r} is not a symbol of the reader's enum {name}")
        return found, at

    return symbol


def _count(data: bytes, at: int) -> tuple[int, int]:
    """How many items follow; a negative count has their size in bytes after it."""
    count, at = _long(data, at)
    if count < 0:
        count = -count
        size, at = _long(data, at)
        if not 0 <= size <= len(data) - at:
            raise AvroDecodeError(f"it declares {size} bytes of items with {len(data) - at} bytes left")
    if count > max(len(data) - at, _FEW_ITEMS):
        raise AvroDecodeError(f"it declares {count} items with {len(data) - at} bytes left")
    return count, at


def _array(item: Read) -> Read:
    def array(data: bytes, at: int) -> tuple[list[object], int]:
        found: list[object] = []
        count, at = _count(data, at)
        while count:
            for _ in range(count):
                value, at = item(data, at)
                found.append(value)
            count, at = _count(data, at)
        return found, at

    return array


def _map(item: Read, *, as_dict: bool) -> Read:
    def mapping(data: bytes, at: int) -> tuple[object, int]:
        found: dict[str, object] = {}
        count, at = _count(data, at)
        while count:
            for _ in range(count):
                key, at = _string(data, at)
                found[key], at = item(data, at)
            count, at = _count(data, at)
        return found if as_dict else list(found.items()), at

    return mapping


def _union(branches: tuple[Read, ...]) -> Read:
    def union(data: bytes, at: int) -> tuple[object, int]:
        number, at = _long(data, at)
        if not 0 <= number < len(branches):
            raise AvroDecodeError(f"it has branch {number} of a union of {len(branches)}")
        return branches[number](data, at)

    return union


def _refuse(action: Refuse) -> Read:
    def refuse(_data: bytes, _at: int) -> tuple[object, int]:
        raise AvroDecodeError(action.message)

    return refuse


def _skip_all(reads: tuple[Read, ...]) -> Read:
    def skip(data: bytes, at: int) -> tuple[None, int]:
        for read in reads:
            _, at = read(data, at)
        return None, at

    return skip


def _tuple(steps: tuple[tuple[Read, int | None], ...], blank: list[object]) -> Read:
    def record(data: bytes, at: int) -> tuple[tuple[object, ...], int]:
        values = blank.copy()
        for read, place in steps:
            value, at = read(data, at)
            if place is not None:
                values[place] = value
        return tuple(values), at

    return record


def _dict(
    steps: tuple[tuple[Read, int | None], ...], names: tuple[str, ...], blank: list[object], defaults: frozenset[int]
) -> Read:
    start = dict(zip(names, blank, strict=True))
    loose = [names[place] for place in defaults if isinstance(blank[place], dict | list)]
    named = tuple((read, None if place is None else names[place]) for read, place in steps)

    def record(data: bytes, at: int) -> tuple[dict[str, object], int]:
        values = start.copy()
        for read, name in named:
            value, at = read(data, at)
            if name is not None:
                values[name] = value
        for name in loose:
            values[name] = copy.deepcopy(values[name])
        return values, at

    return record


def plain_reader(writer: Type, reader: Type | None, into: Into) -> Read:
    """The function for a writer and, where there is one, a reader's schema."""
    return compile_reader(resolve(writer, writer if reader is None else reader), into)
