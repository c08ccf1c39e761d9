"""Connect's JSON with schemas: from a payload to the value that its schema means.

    {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}, ...]}, "payload": {"id": 7}}

`bytes` are Base64, a map with other keys than texts is an array of pairs, and `Decimal`, `Date`, `Time` and
`Timestamp` of org.apache.kafka.connect.data are the numbers that they are in Connect. Members that a struct does not
name are let be; a null takes the schema's default.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from keyfold.typed.logical import DAY_SECONDS, EPOCH, EPOCH_DAY, EPOCH_LOCAL, exact_decimal
from keyfold.typed.misfit import Misfit

Convert = Callable[[Any], Any]

_LOGICAL: Final = "org.apache.kafka.connect.data."
_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_DECIMAL_DIGITS: Final = 38
_TYPES: Final[Mapping[str, type]] = {"boolean": bool, "string": str}
_ARROW: Final[Mapping[str, Any]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


def is_envelope(document: Any) -> bool:
    """Whether a JSON document is Connect's envelope."""
    if type(document) is not dict or document.keys() != {"schema", "payload"}:
        return False
    schema = document["schema"]
    return schema is None or (type(schema) is dict and type(schema.get("type")) is str)


class Envelope:
    """What one of Connect's schemas means: `convert` a payload, and the Arrow `type` of the result."""

    def __init__(self, schema: Any) -> None:
        self.convert, self.type = _compile(schema)


def _compile(schema: Any) -> tuple[Convert, Any]:
    """Raises `Misfit` where the schema is none of Connect's."""
    if schema is None:
        return _as_it_is, None
    kind = str(schema.get("type")) if isinstance(schema, dict) else ""
    logical = _logical(schema) if isinstance(schema, dict) else None
    if logical is not None:
        bare, arrow = logical
    elif kind == "struct":
        bare, arrow = _struct(schema)
    elif kind == "array":
        item, item_type = _compile(schema.get("items"))
        bare, arrow = _array(item), pa.list_(_known(item_type))
    elif kind == "map":
        bare, arrow = _map(schema)
    elif kind in _ARROW:
        bare, arrow = _simple(kind), _ARROW[kind]
    else:
        raise Misfit(f"has an envelope with a schema of type {kind!r}, which Connect does not know")
    return _or_null(bare, schema), arrow


def _known(arrow: Any) -> Any:
    return pa.null() if arrow is None else arrow


def _as_it_is(payload: Any) -> Any:
    return payload


def _or_null(bare: Convert, schema: Mapping[str, Any]) -> Convert:
    default = schema.get("default")
    optional = schema.get("optional") is True

    def convert(payload: Any) -> Any:
        if payload is not None:
            return bare(payload)
        if default is not None:
            return bare(default)
        if optional:
            return None
        raise Misfit(f"has a payload with null where its schema requires {schema.get('type')}")

    return convert


def _wrong(payload: Any, kind: str) -> Misfit:
    return Misfit(f"has a payload with a {type(payload).__name__} where its schema says {kind}")


def _simple(kind: str) -> Convert:
    def convert(payload: Any) -> Any:
        if kind in _BITS:
            beyond = 1 << _BITS[kind] - 1
            if type(payload) is float and payload.is_integer():
                payload = int(payload)
            if type(payload) is int and -beyond <= payload < beyond:
                return payload
        elif kind in {"float", "double"}:
            if type(payload) in {int, float} or payload in {"NaN", "Infinity", "-Infinity"}:
                return float(payload)
        elif type(payload) is _TYPES.get(kind):
            return payload
        elif kind == "bytes" and type(payload) is str:
            return _base64(payload)
        raise _wrong(payload, kind)

    return convert


def _base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError as error:
        raise Misfit(f"has a payload with a text that is no Base64: {error}") from error


def _struct(schema: Mapping[str, Any]) -> tuple[Convert, Any]:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(each, dict) and "field" in each for each in fields):
        raise Misfit("has an envelope with a struct without fields")
    compiled = {str(each["field"]): _compile(each) for each in fields}

    def convert(payload: Any) -> Any:
        if type(payload) is not dict:
            raise _wrong(payload, "struct")
        return {name: member(payload.get(name)) for name, (member, _) in compiled.items()}

    return convert, pa.struct([(name, _known(arrow)) for name, (_, arrow) in compiled.items()])


def _array(item: Convert) -> Convert:
    def convert(payload: Any) -> Any:
        if type(payload) is not list:
            raise _wrong(payload, "array")
        return [item(each) for each in payload]

    return convert


def _map(schema: Mapping[str, Any]) -> tuple[Convert, Any]:
    (key, key_type), (value, value_type) = _compile(schema.get("keys")), _compile(schema.get("values"))

    def convert(payload: Any) -> Any:
        if type(payload) is dict:
            pairs = [*payload.items()]
        elif type(payload) is list and all(type(pair) is list and len(pair) == 2 for pair in payload):
            pairs = payload
        else:
            raise _wrong(payload, "map")
        return {_hashable(key(name)): value(each) for name, each in pairs}

    return convert, pa.map_(_known(key_type), _known(value_type))


def _hashable(key: Any) -> Any:
    if isinstance(key, dict | list):
        raise Misfit("has a payload with a map whose keys are no simple values")
    return key


def _logical(schema: Mapping[str, Any]) -> tuple[Convert, Any] | None:
    name = schema.get("name")
    if not isinstance(name, str) or not name.startswith(_LOGICAL):
        return None
    name = name.removeprefix(_LOGICAL)
    if name == "Decimal":
        return _decimal(schema)
    return _TIMES.get(name)


def _decimal(schema: Mapping[str, Any]) -> tuple[Convert, Any] | None:
    parameters = schema.get("parameters")
    text = parameters.get("scale", "") if isinstance(parameters, dict) else ""
    if not str(text).removeprefix("-").isdecimal():
        return None
    scale = int(text)

    def convert(payload: Any) -> Decimal:
        if type(payload) is str:
            return exact_decimal(int.from_bytes(_base64(payload), "big", signed=True), scale)
        if type(payload) in {int, Decimal}:
            return Decimal(payload)
        if type(payload) is float:
            return Decimal(repr(payload))
        raise _wrong(payload, "a decimal")

    return convert, pa.decimal128(_DECIMAL_DIGITS, scale)


def _whole(make: Convert, kind: str) -> Convert:
    def convert(payload: Any) -> Any:
        if type(payload) is not int:
            raise _wrong(payload, kind)
        try:
            return make(payload)
        except (OverflowError, ValueError) as error:
            raise Misfit(f"has a payload with {payload}, which is no {kind} that Python knows") from error

    return convert


def _time(count_ms: int) -> Any:
    if not 0 <= count_ms < DAY_SECONDS * 1000:
        raise ValueError(count_ms)
    return (EPOCH_LOCAL + timedelta(milliseconds=count_ms)).time()


_TIMES: Final[Mapping[str, tuple[Convert, Any]]] = {
    "Date": (_whole(lambda days: date.fromordinal(days + EPOCH_DAY), "date"), pa.date32()),
    "Time": (_whole(_time, "time"), pa.time32("ms")),
    "Timestamp": (_whole(lambda ms: EPOCH + timedelta(milliseconds=ms), "timestamp"), pa.timestamp("ms", "UTC")),
}
