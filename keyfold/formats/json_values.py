"""From a JSON value to the raw value of a type, which `pyarrow.array` takes.

    int, long        a whole number in range; 1.0 is 1          date, time-*, timestamp-*   the number, or ISO 8601
    float, double    a number, or "NaN", "Infinity", ...        decimal                     a number, or it as a text
    bytes, fixed     Base64                                     uuid, enum                  a text
    record           an object; members that it does not name are let be; one that is missing is its default, or null
    union            the first branch that fits

The values of an opened envelope of Connect (bytes, Decimal, date, ...) fit too.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

from keyfold.formats.avro_default import default_value
from keyfold.formats.avro_schema import (
    JSON_TEXT,
    Array,
    Enumeration,
    Fixed,
    Logical,
    Map,
    Primitive,
    RecordField,
    RecordType,
    Type,
    Union,
    describe,
)
from keyfold.formats.errors import FormatMismatch
from keyfold.formats.logical_types import EPOCH, EPOCH_DAY, PER_SECOND, fit_decimal, unit_of, uuid_text

Fit = Callable[[object], Any]

_AT: Final = "has at `"
_NO_NUMBERS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_BITS: Final = {"int": 32, "long": 64}
_NULL: Final = Primitive("null")


def compile_json(schema: Type) -> Fit:
    """The function for one type, which holds itself nowhere.

    It raises `FormatMismatch`, whose message begins where the value is not of the type.
    """
    match schema:
        case Union(branches):
            return _union(branches, schema)
        case Array(items):
            return _array(compile_json(items))
        case Map(values):
            return _map(compile_json(values))
        case RecordType():
            return _record(schema)
        case Enumeration():
            return _enum(schema)
    return _leaf(schema)


def json_text(value: object) -> str:
    """A value as compact JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can say
            return json.dumps(value, separators=(",", ":"), default=_plain)
    return text


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    return binascii.b2a_base64(value, newline=False).decode() if isinstance(value, bytes) else str(value)


def _wrong(value: object, schema: Type) -> FormatMismatch:
    return FormatMismatch(f"is {_KINDS.get(type(value), 'something')}, but the schema says {describe(schema)}")


_KINDS: Final[dict[type, str]] = {dict: "an object", list: "an array", str: "a text", bool: "true or false"} | {
    **dict.fromkeys((int, float, Decimal), "a number"),
    type(None): "null",
}


def _leaf(schema: Primitive | Fixed) -> Fit:
    if schema.logical == JSON_TEXT:
        return lambda value: None if value is None else json_text(value)
    bare = _logical(schema.logical) if schema.logical is not None else None
    if bare is None:
        bare = _BARE["fixed" if isinstance(schema, Fixed) else schema.kind]
    size = schema.size if isinstance(schema, Fixed) and bare is _bytes else None

    def fit(value: object) -> object:
        try:
            found = bare(value)
        except (ValueError, OverflowError, InvalidOperation, TypeError):
            raise _wrong(value, schema) from None
        if size is not None and len(found) != size:
            raise FormatMismatch(f"has {len(found)} bytes, but the schema says {describe(schema)}")
        return found

    return fit


def _integer(bits: int) -> Fit:
    beyond = 1 << bits - 1

    def integer(value: Any) -> int:
        if type(value) is not int and type(value) not in {float, Decimal}:
            raise ValueError
        # The range first: 1e1000000000 is a short text and an endless number.
        if not -beyond <= value < beyond or value != int(value):
            raise ValueError
        return int(value)

    return integer


def _floating(value: Any) -> float:
    if type(value) in {float, int, Decimal}:
        return float(value)
    return _NO_NUMBERS[value] if type(value) is str and value in _NO_NUMBERS else _no(value)


def _no(_value: object) -> NoReturn:
    raise ValueError


def _text(value: object) -> str:
    return value if type(value) is str else _no(value)


def _boolean(value: object) -> bool:
    return value if type(value) is bool else _no(value)


def _null(value: object) -> None:
    if value is not None:
        raise ValueError


def _bytes(value: object) -> bytes:
    return value if type(value) is bytes else binascii.a2b_base64(_text(value).encode(), strict_mode=True)


_BARE: Final[dict[str, Fit]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer(32),
    "long": _integer(64),
    "float": _floating,
    "double": _floating,
    "string": _text,
    "bytes": _bytes,
    "fixed": _bytes,
}


def _logical(logical: Logical) -> Fit | None:
    if logical.name == "decimal":
        return lambda value: _decimal(value, logical)
    if logical.name == "uuid":
        return lambda value: uuid_text(_text(value))
    if logical.name == "date":
        return _days
    kind, unit = unit_of(logical)
    if kind == "time":
        return lambda value: _time(value, PER_SECOND[unit])
    return None if not kind else lambda value: _timestamp(value, PER_SECOND[unit])


def _decimal(value: Any, logical: Logical) -> Decimal:
    if type(value) is float:
        value = repr(value)
    elif type(value) not in {int, str, Decimal}:
        raise ValueError
    found = Decimal(value)
    if not found.is_finite():
        raise ValueError
    try:
        return fit_decimal(found, logical)
    except ValueError as error:
        raise FormatMismatch(f"does not fit into the columns: {error}") from None


def _days(value: object) -> int:
    if type(value) is str:
        value = date.fromisoformat(value)
    if type(value) is date:
        return value.toordinal() - EPOCH_DAY
    return int(_BARE["int"](value))


def _time(value: object, per_second: int) -> int:
    if type(value) is str:
        value = time.fromisoformat(value)
    if type(value) is time:
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * per_second + value.microsecond * per_second // 10**6
    return int(_BARE["long"](value))


def _timestamp(value: object, per_second: int) -> int:
    if type(value) is str:
        value = datetime.fromisoformat(value)
    if type(value) is datetime:
        gone = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - EPOCH
        micros = (gone.days * 86_400 + gone.seconds) * 10**6 + gone.microseconds
        return micros * per_second // 10**6
    return int(_BARE["long"](value))


def _enum(schema: Enumeration) -> Fit:
    symbols = frozenset(schema.symbols)

    def fit(value: object) -> str:
        if type(value) is str:
            if value in symbols:
                return value
            if schema.default is not None:
                return schema.default
        raise _wrong(value, schema)

    return fit


def _array(item: Fit) -> Fit:
    def fit(value: object) -> list[object]:
        if type(value) is not list:
            raise FormatMismatch(f"is {_KINDS.get(type(value), 'something')}, but the schema says array")
        return [_inside(number, item, each) for number, each in enumerate(value)]

    return fit


def _map(member: Fit) -> Fit:
    def fit(value: object) -> list[tuple[str, object]]:
        if type(value) is not dict:
            raise FormatMismatch(f"is {_KINDS.get(type(value), 'something')}, but the schema says map")
        return [(name, _inside(name, member, each)) for name, each in value.items()]

    return fit


def _inside(where: int | str, fit: Fit, value: object) -> object:
    """An item or a member; `where` is its number or its name."""
    try:
        return fit(value)
    except FormatMismatch as error:
        place = f".{where}" if isinstance(where, str) else f"[{where}]"
        raise FormatMismatch(_below(place, error.message)) from None


def _below(where: str, message: str) -> str:
    """The message about a member or an item, said of what it is in."""
    if message.startswith(_AT):
        return f"{_AT}{where}{message.removeprefix(_AT)}"
    return f"{_AT}{where}` {message.removeprefix('is ')}"


def _union(branches: tuple[Type, ...], schema: Union) -> Fit:
    rest = [compile_json(branch) for branch in branches if branch != _NULL]
    has_null = len(rest) < len(branches)
    if has_null and len(rest) == 1:
        (only,) = rest
        return lambda value: None if value is None else only(value)

    def fit(value: object) -> object:
        if value is None and has_null:
            return None
        if len(rest) == 1:
            return rest[0](value)
        for branch in rest:
            try:
                return branch(value)
            except FormatMismatch:
                continue
        raise _wrong(value, schema)

    return fit


def _record(schema: RecordType) -> Fit:
    members = tuple(map(_member, schema.fields))

    def fit(value: object) -> tuple[object, ...]:
        if type(value) is not dict:
            raise FormatMismatch(f"is {_KINDS.get(type(value), 'something')}, but the schema says record {schema.name}")
        name, found = "", []
        try:
            for name, member, default, aliases in members:
                each = value.get(name, _NO_DEFAULT)
                if each is _NO_DEFAULT:
                    each = next((value[alias] for alias in aliases if alias in value), _NO_DEFAULT)
                found.append(_missing(default) if each is _NO_DEFAULT else member(each))
        except FormatMismatch as error:
            raise FormatMismatch(_below(f".{name}", error.message)) from None
        return tuple(found)

    return fit


_NO_DEFAULT: Final = object()


def _member(each: RecordField) -> tuple[str, Fit, object, tuple[str, ...]]:
    default: object = _NO_DEFAULT
    if each.has_default:
        default = default_value(each.type, each.default, raw=True)
    elif isinstance(each.type, Union) and _NULL in each.type.branches:
        default = None
    return each.name, compile_json(each.type), default, tuple(sorted(each.aliases))


def _missing(default: object) -> object:
    if default is _NO_DEFAULT:
        raise FormatMismatch("nothing, and the schema has no default for it")
    return default
