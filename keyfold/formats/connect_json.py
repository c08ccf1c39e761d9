"""Connect's JSON with schemas: from a payload to the value that its schema means.

    {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}, ...]}, "payload": {"id": 7}}

`bytes` are Base64, a map with other keys than texts is an array of pairs, and `Decimal`, `Date`, `Time` and
`Timestamp` of org.apache.kafka.connect.data are the numbers that they are in Connect. Members that a struct does not
name are let be; a null takes the schema's default.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final, TypeGuard

from keyfold.formats.avro_schema import (
    JSON_TEXT,
    Array,
    Logical,
    Map,
    Primitive,
    RecordField,
    RecordType,
    Type,
    Union,
    has_decimals,
)
from keyfold.formats.errors import FormatMismatch
from keyfold.formats.logical_types import DAY_SECONDS, EPOCH, EPOCH_DAY, EPOCH_LOCAL, exact_decimal
from keyfold.formats.schema_bounds import SCHEMA_DEPTH_MAX

Convert = Callable[[object], object]
"""Converts a payload, which is any JSON."""

_LOGICAL: Final = "org.apache.kafka.connect.data."
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_DECIMAL_DIGITS: Final = 38
_SCALE_DIGITS: Final = 10  # of an int in Java
_TYPES: Final[Mapping[str, type]] = {"boolean": bool, "string": str}
_AVRO: Final = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"} | {
    kind: kind for kind in ("float", "double", "boolean", "string", "bytes")
}
_ANYTHING: Final = Primitive("string", JSON_TEXT)


def is_envelope(document: object) -> TypeGuard[Mapping[str, object]]:
    """Whether a JSON document is Connect's envelope."""
    if type(document) is not dict or document.keys() != {"schema", "payload"}:
        return False
    schema = document["schema"]
    return schema is None or (type(schema) is dict and type(schema.get("type")) is str)


class Envelope:
    """What one of Connect's schemas means: `convert` a payload, and the `type` of the result (None: no schema).

    Where the type `has_decimals`, numbers of a payload are parsed as `Decimal`: a float would lose their digits.
    """

    def __init__(self, schema: object) -> None:
        self.convert, self.type = _compile(schema)
        self.has_decimals = self.type is not None and has_decimals(self.type)


def _compile(schema: Any, level: int = 0) -> tuple[Convert, Type | None]:
    """Compile a schema. Raise `FormatMismatch` where Connect has no such schema, or it is nested too deeply."""
    if level > SCHEMA_DEPTH_MAX:
        raise FormatMismatch(f"has an envelope with a schema of more than {SCHEMA_DEPTH_MAX} levels")
    if schema is None:
        return _as_it_is, None
    kind = str(schema.get("type")) if isinstance(schema, dict) else ""
    logical = _logical(schema) if isinstance(schema, dict) else None
    if logical is not None:
        bare, made = logical
    elif kind == "struct":
        bare, made = _struct(schema, level)
    elif kind == "array":
        item, item_type = _compile(schema.get("items"), level + 1)
        bare, made = _array(item), Array(_known(item_type))
    elif kind == "map":
        bare, made = _map(schema, level)
    elif kind in _AVRO:
        bare, made = _simple(kind), Primitive(_AVRO[kind])
    else:
        raise FormatMismatch(f"has an envelope with a schema of the unknown type {kind!r}")
    return _or_null(bare, schema), Union((Primitive("null"), made))


def _known(made: Type | None) -> Type:
    return _ANYTHING if made is None else made


def _as_it_is(payload: object) -> object:
    return payload


def _or_null(bare: Convert, schema: Mapping[str, object]) -> Convert:
    default = schema.get("default")
    optional = schema.get("optional") is True

    def convert(payload: object) -> object:
        if payload is not None:
            return bare(payload)
        if default is not None:
            return bare(default)
        if optional:
            return None
        raise FormatMismatch(f"has a payload with null, but its schema requires {schema.get('type')}")

    return convert


def _wrong(payload: object, kind: str) -> FormatMismatch:
    return FormatMismatch(f"has a payload with a {type(payload).__name__}, but its schema says {kind}")


def _simple(kind: str) -> Convert:
    def convert(payload: Any) -> object:
        if kind in _BITS:
            beyond = 1 << _BITS[kind] - 1
            # The range first: 1e1000000000 is a short text and an endless number.
            if type(payload) in {int, float, Decimal} and -beyond <= payload < beyond and payload == int(payload):
                return int(payload)
        elif kind in {"float", "double"}:
            if type(payload) in {int, float, Decimal} or payload in {"NaN", "Infinity", "-Infinity"}:
                return _float(payload)
        elif type(payload) is _TYPES.get(kind):
            return payload
        elif kind == "bytes" and type(payload) is str:
            return _base64(payload)
        raise _wrong(payload, kind)

    return convert


def _float(number: Any) -> float:
    """The nearest float; infinity where the number is beyond all of them, as in Java."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError as error:
        raise FormatMismatch(f"has a payload with a text that is not Base64: {error}") from error


def _struct(schema: Mapping[str, object], level: int) -> tuple[Convert, Type]:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(each, dict) and "field" in each for each in fields):
        raise FormatMismatch("has an envelope with a struct without fields")
    compiled = {str(each["field"]): _compile(each, level + 1) for each in fields}

    def convert(payload: object) -> object:
        if type(payload) is not dict:
            raise _wrong(payload, "struct")
        return {name: member(payload.get(name)) for name, (member, _) in compiled.items()}

    if not compiled:
        return convert, _ANYTHING
    made = RecordType(str(schema.get("name") or "struct"))
    made.fields = tuple(RecordField(name, _known(each)) for name, (_, each) in compiled.items())
    return convert, made


def _array(item: Convert) -> Convert:
    def convert(payload: object) -> object:
        if type(payload) is not list:
            raise _wrong(payload, "array")
        return [item(each) for each in payload]

    return convert


def _map(schema: Mapping[str, Any], level: int) -> tuple[Convert, Type]:
    """A map with texts for keys is an object; any other is a list of pairs, as Avro has it."""
    key, key_type = _compile(schema.get("keys"), level + 1)
    value, value_type = _compile(schema.get("values"), level + 1)
    is_object = isinstance(schema.get("keys"), dict) and schema["keys"].get("type") == "string"

    def convert(payload: object) -> object:
        if type(payload) is dict and is_object:
            return {name: value(each) for name, each in payload.items()}
        if is_object or type(payload) is not list or not all(type(pair) is list and len(pair) == 2 for pair in payload):
            raise _wrong(payload, "map")
        return [{"key": key(name), "value": value(each)} for name, each in payload]

    if is_object:
        return convert, Map(_known(value_type))
    entry = RecordType("entry", fields=(RecordField("key", _known(key_type)), RecordField("value", _known(value_type))))
    return convert, Array(entry)


def _logical(schema: Mapping[str, object]) -> tuple[Convert, Type] | None:
    name = schema.get("name")
    if not isinstance(name, str) or not name.startswith(_LOGICAL):
        return None
    name = name.removeprefix(_LOGICAL)
    if name == "Decimal":
        return _decimal(schema)
    return _TIMES.get(name)


def _decimal(schema: Mapping[str, object]) -> tuple[Convert, Type] | None:
    parameters = schema.get("parameters")
    text = str(parameters.get("scale", "") if isinstance(parameters, dict) else "")
    if not text.isdecimal() or len(text) > _SCALE_DIGITS:
        return None
    scale = int(text)

    def convert(payload: Any) -> Decimal:
        if type(payload) is str:
            try:
                return exact_decimal(_base64(payload), scale)
            except ValueError as error:
                raise FormatMismatch(f"has an invalid payload: {error}") from error
        if type(payload) in {int, Decimal}:
            return Decimal(payload)
        if type(payload) is float and math.isfinite(payload):  # a default: the schema is parsed before it is known
            return Decimal(repr(payload))
        raise _wrong(payload, "a decimal")

    return convert, Primitive("bytes", Logical("decimal", max(_DECIMAL_DIGITS, scale), scale))


def _whole(make: Callable[[int], object], kind: str) -> Convert:
    def convert(payload: object) -> object:
        if type(payload) is not int:
            raise _wrong(payload, kind)
        try:
            return make(payload)
        except (OverflowError, ValueError) as error:
            raise FormatMismatch(
                f"has a payload with {payload}, which is not a {kind} that Python can represent"
            ) from error

    return convert


def _time(count_ms: int) -> object:
    if not 0 <= count_ms < DAY_SECONDS * 1000:
        raise ValueError(count_ms)
    return (EPOCH_LOCAL + timedelta(milliseconds=count_ms)).time()


_TIMES: Final[Mapping[str, tuple[Convert, Type]]] = {
    "Date": (_whole(lambda days: date.fromordinal(days + EPOCH_DAY), "date"), Primitive("int", Logical("date"))),
    "Time": (_whole(_time, "time"), Primitive("int", Logical("time-millis"))),
    "Timestamp": (
        _whole(lambda ms: EPOCH + timedelta(milliseconds=ms), "timestamp"),
        Primitive("long", Logical("timestamp-millis")),
    ),
}
