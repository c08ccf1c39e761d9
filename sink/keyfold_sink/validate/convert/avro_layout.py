"""Check whether bytes match an Avro schema, without decoding them into objects.

A schema is compiled once into *steps*: functions from the bytes and a position to the position after the checked part.
The steps of a record are those of its fields in order. A value is valid if the last position is its end.

    check = compile_check(schema)          the complete schema as JSON
    check(value, 5) == len(value)          `AvroDataInvalid` or another position: the value does not decode

A strict and robust decoder would also do, but fastavro's is neither. It recurses into nested records until the stack
overflows (10,000 levels, 10 KB, crash the process). It repeats items that take no bytes as often as the data says. It
counts a negative branch of a union from the end. The check here creates no objects, so it is also faster. It refuses
what Avro's own Java decoder refuses, and strings that are not UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from keyfold.formats.confluent_framing import is_bytes_alone
from keyfold.formats.schema_bounds import without_end
from keyfold_sink.validate.convert.avro_schema import NAMED, AvroSchemaInvalid, full_name, namespace_of, resolve

Step = Callable[[bytes, int], int]
Items = Callable[[bytes, int, int], int]

_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_INLINED: Final = 8


class AvroDataInvalid(Exception):
    """The bytes do not match the schema; the message says why."""


def compile_check(schema: object) -> Step:
    """Compile a complete schema into a check. Raise `AvroSchemaInvalid` for an invalid schema.

    For invalid data the check raises `AvroDataInvalid`, `IndexError` or `UnicodeDecodeError`, or returns a position
    that is not the end of the value. For data that is nested too deeply it raises `RecursionError`.
    """
    if is_bytes_alone(schema):
        return _rest
    compiler = _Compiler()
    steps = compiler.steps(schema, "")
    compiler.refuse_endless()
    return _in_a_row(steps)


class _Compiler:
    """The compiler of types into steps. A named type is compiled once, and may refer to itself."""

    def __init__(self) -> None:
        self._named: dict[str, list[Step] | None] = {}
        self._open: dict[str, list[Step]] = {}
        self._parts: dict[str, set[str]] = {}  # the named types that each value of a record has in it
        self._record = ""  # whose part is being compiled; none inside a union, an array or a map

    def refuse_endless(self) -> None:
        """Refuse each value of a record that has itself in each of its values, before it is followed without end."""
        for name in without_end(self._parts) & self._open.keys():
            self._open[name][:] = [_endless(name)]

    def steps(self, schema: object, namespace: str) -> list[Step]:
        """Return the steps of a type; none if it takes no bytes."""
        if isinstance(schema, list):
            return [_union([_in_a_row(self._steps_in("", branch, namespace)) for branch in schema])]
        if isinstance(schema, str):
            primitive = _PRIMITIVES.get(schema)
            return self._reference(schema, namespace) if primitive is None else list(primitive)
        if not isinstance(schema, dict):
            raise AvroSchemaInvalid("a type must be a name, a list or an object")
        kind = schema.get("type")
        if isinstance(kind, str):
            if kind == "array":
                return [_blocks(self._steps_in("", schema.get("items"), namespace))]
            if kind == "map":
                return [_blocks([_string, *self._steps_in("", schema.get("values"), namespace)])]
            if kind in NAMED:
                return self._definition(kind, schema, namespace)
        return self.steps(kind, namespace)

    def _steps_in(self, record: str, schema: object, namespace: str) -> list[Step]:
        outer, self._record = self._record, record
        steps = self.steps(schema, namespace)
        self._record = outer
        return steps

    def _reference(self, name: str, namespace: str) -> list[Step]:
        full = resolve(name, namespace, self._named)
        self._parts.setdefault(self._record, set()).add(full)
        known = self._named[full]
        if known is not None:
            return known
        later = self._open.setdefault(full, [])  # a recursive record
        return [lambda data, at: _run(later, data, at)]

    def _definition(self, kind: str, schema: Mapping[str, Any], namespace: str) -> list[Step]:
        name = full_name(schema, namespace)
        if name in self._named:
            raise AvroSchemaInvalid(f"the type {name!r} is defined twice")
        self._named[name] = None
        self._parts.setdefault(self._record, set()).add(name)
        steps: list[Step] = []
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise AvroSchemaInvalid(f"the fixed type {name!r} has no size")
            steps = [_skip(size)] if size else []
        elif kind == "enum":
            steps = [_enum(len(schema.get("symbols", ())))]
        else:
            for field in schema.get("fields", ()):
                steps += self._steps_in(name, field.get("type"), namespace_of(name))
        # Later references use one call instead of copying the steps, whose number could grow exponentially.
        self._named[name] = steps if len(steps) < _INLINED else [_in_a_row(steps)]
        if name in self._open:
            self._open[name].extend(steps)
        return steps


def _in_a_row(steps: list[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    in_order = tuple(steps)

    def row(data: bytes, at: int) -> int:
        for step in in_order:
            at = step(data, at)
        return at

    return row


def _run(steps: list[Step], data: bytes, at: int) -> int:
    for step in steps:
        at = step(data, at)
    return at


def _endless(name: str) -> Step:
    def refuse(_data: bytes, at: int) -> int:
        raise AvroDataInvalid(f"the record {name!r} at byte {at} has another one in it, and so on without end")

    return refuse


def _rest(data: bytes, _at: int) -> int:
    return len(data)


def _skip(size: int) -> Step:
    def skip(_data: bytes, at: int) -> int:
        return at + size

    return skip


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise AvroDataInvalid(f"byte {at} is {data[at]}, which is not a boolean")
    return at + 1


def _int(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 128 else _end_of_number(data, at, _INT_BYTES)


def _long(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 128 else _end_of_number(data, at, _LONG_BYTES)


def _end_of_number(data: bytes, at: int, most_bytes: int) -> int:
    for end in range(at, at + most_bytes):
        if data[end] < 128:
            return end + 1
    raise AvroDataInvalid(f"the number at byte {at} has more than {most_bytes} bytes")


def _number(data: bytes, at: int, most_bytes: int) -> tuple[int, int]:
    """Return a number of several bytes, still in zigzag encoding, and the position after it."""
    end = _end_of_number(data, at, most_bytes)
    number = 0
    for byte in reversed(data[at:end]):
        number = number << 7 | byte & 127
    return number, end


def _bytes(data: bytes, at: int) -> int:
    length, begin = data[at], at + 1
    if length > 127:
        second = data[begin]
        if second < 128:  # a length of at most 8,191 bytes, as most have
            length, begin = length & 127 | second << 7, at + 2
        else:
            length, begin = _number(data, at, _LONG_BYTES)
    if length & 1:
        raise AvroDataInvalid(f"the length at byte {at} is negative")
    return begin + (length >> 1)


def _string(data: bytes, at: int) -> int:
    length, begin = data[at], at + 1
    if length > 127:
        second = data[begin]
        if second < 128:  # a length of at most 8,191 bytes, as most have
            length, begin = length & 127 | second << 7, at + 2
        else:
            length, begin = _number(data, at, _LONG_BYTES)
    if length & 1:
        raise AvroDataInvalid(f"the length at byte {at} is negative")
    end = begin + (length >> 1)
    data[begin:end].decode()
    return end


def _enum(count: int) -> Step:
    def enum(data: bytes, at: int) -> int:
        number, end = data[at], at + 1
        if number > 127:
            number, end = _number(data, at, _INT_BYTES)
        if number & 1 or number >> 1 >= count:
            raise AvroDataInvalid(f"byte {at} is not the number of one of the {count} symbols of its enum")
        return end

    return enum


def _union(branches: list[Step]) -> Step:
    count = len(branches)

    def union(data: bytes, at: int) -> int:
        number, end = data[at], at + 1
        if number > 127:
            number, end = _number(data, at, _INT_BYTES)
        if number & 1 or number >> 1 >= count:
            raise AvroDataInvalid(f"byte {at} is not the number of one of the {count} branches of its union")
        return branches[number >> 1](data, end)

    return union


def _blocks(steps: list[Step]) -> Step:
    """Return the step of an array's or a map's items, which come in blocks with a count; the last count is 0."""
    items = _strings if steps == [_string] else _each(_in_a_row(steps)) if steps else None

    def blocks(data: bytes, at: int) -> int:
        while True:
            number, end = data[at], at + 1
            if number > 127:
                number, end = _number(data, at, _LONG_BYTES)
            at = end
            if number == 0:
                return at
            if number & 1:  # a negative count: the block's size in bytes follows
                number += 1
                at = _long(data, at)
            if items is not None:
                if number >> 1 > len(data) - at:  # each takes at least a byte: refuse an absurd count at once
                    raise IndexError
                at = items(data, at, number >> 1)

    return blocks


def _each(item: Step) -> Items:
    def each(data: bytes, at: int, count: int) -> int:
        for _ in range(count):
            at = item(data, at)
        return at

    return each


def _strings(data: bytes, at: int, count: int) -> int:
    """Check `count` strings, without a call for each."""
    for _ in range(count):
        length, begin = data[at], at + 1
        if length > 127:
            length, begin = _number(data, at, _LONG_BYTES)
        if length & 1:
            raise AvroDataInvalid(f"the length at byte {at} is negative")
        at = begin + (length >> 1)
        data[begin:at].decode()
    return at


_PRIMITIVES: Final[Mapping[str, tuple[Step, ...]]] = {
    "null": (),
    "boolean": (_boolean,),
    "int": (_int,),
    "long": (_long,),
    "float": (_skip(4),),
    "double": (_skip(8),),
    "bytes": (_bytes,),
    "string": (_string,),
}
