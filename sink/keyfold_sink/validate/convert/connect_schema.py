"""Compile Connect's schemas, as its JsonConverter writes them, into checks of a payload.

    {"type": "struct", "optional": false, "fields": [{"field": "id", "type": "int64", "optional": false}, ...]}

A schema or payload that Connect refuses is refused. Besides, a payload must have the type of its schema. Connect reads
"abc" as the number 0, truncates 300 to a byte, and accepts an object for an array. Its sinks then see another value
than the record has, so such a payload is refused here. Members that a struct does not define are ignored.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

Fit = Callable[[object], None]
"""Check a payload; raise `EnvelopeMismatch` if it does not match."""

_DAY_MS: Final = 86_400_000
_FLOAT32_MAX: Final = 3.4028235677973366e38  # larger numbers round to infinity
# orjson returns integers beyond 64 bits as floats; those just below the minimum are rounded to the minimum itself.
_LEAST_ROUNDED: Final = -float(2**63)
# How Connect's own serializer writes these values.
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_LOGICAL: Final = "org.apache.kafka.connect.data."


class SchemaInvalid(Exception):
    """The JSON is not a valid Connect schema."""


class EnvelopeMismatch(Exception):
    """The payload does not match its schema."""


def compile_fit(schema: object, *, replace_null_with_default: bool = True) -> Fit:
    """Compile a schema's JSON into a check; any payload matches a null schema. Raise `SchemaInvalid`."""
    return _Compiler(replace_null_with_default).fit(schema)


class _Compiler:
    def __init__(self, replace_null_with_default: bool) -> None:  # noqa: FBT001 - private
        self._replace = replace_null_with_default

    def fit(self, schema: object) -> Fit:
        """See `compile_fit`."""
        if schema is None:
            return _anything
        if not isinstance(schema, dict) or not isinstance(kind := schema.get("type"), str):
            raise SchemaInvalid("it, or a schema within it, has no field `type`")
        parameters = _parameters(schema)
        bare = self._bare(schema, kind)
        bare = _logical(schema, parameters) or bare
        optional = schema.get("optional") is True
        if "default" in schema:
            if kind == "struct" and schema["default"] is not None:
                raise SchemaInvalid("Connect does not support a default value of a struct")
            try:
                _or_null(bare, kind, optional)(schema["default"])
            except EnvelopeMismatch as error:
                raise SchemaInvalid(f"the default value does not match its schema: {error}") from error
            optional = optional or (self._replace and schema["default"] is not None)
        return _or_null(bare, kind, optional)

    def _bare(self, schema: Mapping[str, Any], kind: str) -> Fit:
        """Return the check of a payload that is not null."""
        simple = _SIMPLE.get(kind)
        if simple is not None:
            return simple
        if kind == "array":
            if schema.get("items") is None:
                raise SchemaInvalid("an array has no `items`")
            return _array(self.fit(schema["items"]), self._types(schema["items"]))
        if kind == "map":
            for member in ("keys", "values"):
                if schema.get(member) is None:
                    raise SchemaInvalid(f"a map has no `{member}`")
            values = self.fit(schema["values"])
            keys = self.fit(schema["keys"])
            return _map(values) if schema["keys"]["type"] == "string" else _pairs(keys, values)
        if kind == "struct":
            return self._struct(schema)
        raise SchemaInvalid(f"unknown type {kind!r}")

    @staticmethod
    def _types(item: Mapping[str, Any]) -> frozenset[type]:
        """Return the Python types whose values all match an array's items; none if the type alone does not decide."""
        bare = _PLAIN.get(item["type"])
        if bare is None or "name" in item or "default" in item:
            return frozenset()
        return frozenset({bare, type(None)} if item.get("optional") is True else {bare})

    def _struct(self, schema: Mapping[str, object]) -> Fit:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise SchemaInvalid("a struct has no list of `fields`")
        fits: dict[str, Fit] = {}
        for field in fields:
            name = field.get("field") if isinstance(field, dict) else None
            if not isinstance(name, str):
                raise SchemaInvalid("a field of a struct has no name in `field`")
            if name in fits:
                raise SchemaInvalid(f"a struct has two fields named {name!r}")
            fits[name] = self.fit(field)
        return _struct(fits)


def _logical(schema: Mapping[str, object], parameters: Mapping[str, str]) -> Fit | None:
    """Return the check of a logical type, which Connect recognises by the schema's name, whatever its type."""
    name = schema.get("name")
    if not isinstance(name, str) or not name.startswith(_LOGICAL):
        return None
    if name == _LOGICAL + "Decimal" and not parameters.get("scale", "").removeprefix("-").isdecimal():
        return _decimal_number
    return _LOGICAL_TYPES.get(name.removeprefix(_LOGICAL))


def _parameters(schema: Mapping[str, object]) -> Mapping[str, str]:
    parameters = schema.get("parameters")
    if not isinstance(parameters, dict):
        return {}
    if not all(isinstance(value, str) for value in parameters.values()):
        raise SchemaInvalid("a schema has a parameter that is not a string")
    return parameters


def _or_null(bare: Fit, kind: str, optional: bool) -> Fit:  # noqa: FBT001 - private
    if optional:

        def fit_optional(payload: object) -> None:
            if payload is not None:
                bare(payload)

        return fit_optional

    def fit(payload: object) -> None:
        if payload is None:
            raise EnvelopeMismatch(f"null instead of {kind}, which is required")
        bare(payload)

    return fit


def _anything(_payload: object) -> None:
    """Fits."""


def _wrong(payload: object, kind: str) -> EnvelopeMismatch:
    # The message does not contain the payload, as it is shown in logs and in the task's status.
    return EnvelopeMismatch(f"{_KINDS[type(payload)]} instead of {kind}")


def _out_of_range(kind: str) -> EnvelopeMismatch:
    return EnvelopeMismatch(f"a number outside the range of {kind}")


def _boolean(payload: object) -> None:
    if payload is not True and payload is not False:
        raise _wrong(payload, "boolean")


def _integer(kind: str, bits: int) -> Fit:
    least, beyond = -(1 << bits - 1), 1 << bits - 1

    def integer(payload: object) -> None:
        if type(payload) is not int:
            if type(payload) is not float or not payload.is_integer():
                raise _wrong(payload, kind)
            if payload == _LEAST_ROUNDED:
                raise _out_of_range(kind)
        if not least <= payload < beyond:
            raise _out_of_range(kind)

    return integer


def _floating(kind: str, largest: float) -> Fit:
    def floating(payload: object) -> None:
        if type(payload) is not float and type(payload) is not int:
            if payload not in _NO_NUMBERS:
                raise _wrong(payload, kind)
        elif not -largest < payload < largest:
            raise _out_of_range(kind)

    return floating


def _string(payload: object) -> None:
    if type(payload) is not str:
        raise _wrong(payload, "string")


def _bytes(payload: object) -> None:
    if type(payload) is not str:
        raise _wrong(payload, "bytes in Base64")
    try:
        if len(payload) % 4:
            raise EnvelopeMismatch("invalid Base64 for bytes: its length is not a multiple of 4")
        binascii.a2b_base64(payload.encode(), strict_mode=True)
    except ValueError as error:
        raise EnvelopeMismatch(f"invalid Base64 for bytes: {error}") from error


def _decimal(payload: object) -> None:
    if type(payload) is int or type(payload) is float:
        return
    if payload == "":
        raise EnvelopeMismatch("empty bytes instead of a decimal")
    _bytes(payload)


def _decimal_number(payload: object) -> None:
    """Check a decimal without the parameter `scale`, which must be written as a number."""
    if type(payload) is not int and type(payload) is not float:
        raise EnvelopeMismatch("a decimal in bytes, but the schema has no parameter `scale`")


def _whole(kind: str, least: int, most: int) -> Fit:
    """Return the check of a value that must be written as a whole number; 1.0 is not one."""

    def whole(payload: object) -> None:
        if type(payload) is not int:
            raise _wrong(payload, kind)
        if not least <= payload <= most:
            raise _out_of_range(kind)

    return whole


def _array(item: Fit, types: frozenset[type]) -> Fit:
    def array(payload: object) -> None:
        if type(payload) is not list:
            raise _wrong(payload, "array")
        if not types or not types.issuperset(map(type, payload)):
            for element in payload:
                item(element)

    return array


def _map(value: Fit) -> Fit:
    """Return the check of a map with string keys, which is an object."""

    def mapping(payload: object) -> None:
        if type(payload) is not dict:
            raise _wrong(payload, "map")
        for element in payload.values():
            value(element)

    return mapping


def _pairs(key: Fit, value: Fit) -> Fit:
    """Return the check of a map with other keys, which is an array of pairs."""

    def pairs(payload: object) -> None:
        if type(payload) is not list:
            raise _wrong(payload, "a map as an array of pairs")
        for pair in payload:
            if type(pair) is not list or len(pair) != 2:
                raise _wrong(pair, "a pair of a map")
            key(pair[0])
            value(pair[1])

    return pairs


def _struct(fits: Mapping[str, Fit]) -> Fit:
    in_order = tuple(fits.items())

    def struct(payload: object) -> None:
        if type(payload) is not dict:
            raise _wrong(payload, "struct")
        name = ""
        try:
            for name, fit in in_order:
                fit(payload.get(name))
        except EnvelopeMismatch as error:
            raise EnvelopeMismatch(f"{name}: {error}") from error

    return struct


_SIMPLE: Final[Mapping[str, Fit]] = {
    "boolean": _boolean,
    "int8": _integer("int8", 8),
    "int16": _integer("int16", 16),
    "int32": _integer("int32", 32),
    "int64": _integer("int64", 64),
    "float": _floating("float", _FLOAT32_MAX),
    "double": _floating("double", math.inf),
    "bytes": _bytes,
    "string": _string,
}
_KINDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
_PLAIN: Final[Mapping[str, type]] = {"string": str, "boolean": bool}
_LOGICAL_TYPES: Final[Mapping[str, Fit]] = {
    "Decimal": _decimal,
    "Date": _whole("a date in days", -(1 << 31), (1 << 31) - 1),
    "Time": _whole("a time of day in ms", 0, _DAY_MS),
    "Timestamp": _whole("a timestamp in ms", -(1 << 63), (1 << 63) - 1),
}
