"""Avro schemas as values: a tree of types with names looked up, logical types judged and defaults still as JSON.

fastavro reads the text, and so refuses what is no Avro. A logical type that the specification does not know, or that
is on a type where it does not belong, is ignored, as the specification wants it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from keyfold.formats.schema_bounds import SchemaTooLarge, require_bounded, require_bounded_text

# What each logical type is written on.
_BASES: Final[Mapping[str, frozenset[str]]] = {
    "date": frozenset({"int"}),
    "time-millis": frozenset({"int"}),
    "time-micros": frozenset({"long"}),
    **{
        f"{local}timestamp-{unit}": frozenset({"long"})
        for local in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
    "decimal": frozenset({"bytes", "fixed"}),
    "uuid": frozenset({"string", "fixed"}),
    "duration": frozenset({"fixed"}),
}
UUID_BYTES: Final = 16
DURATION_BYTES: Final = 12
_FIXED_BYTES_MAX: Final = 2**31 - 1


class NotAvro(Exception):
    """The text is no Avro schema; the message says why."""


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type; precision and scale are a decimal's."""

    name: str
    precision: int = 0
    scale: int = 0


JSON_TEXT: Final = Logical("json")
"""Not Avro's: a string that is the JSON of a value that has no one type (`keyfold.formats.json_type`)."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """`null`, `boolean`, `int`, `long`, `float`, `double`, `bytes` or `string`."""

    kind: str
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number of bytes."""

    name: str
    size: int
    logical: Logical | None = None
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One of some symbols. `default` is what a reader takes for a symbol that it does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Array:
    """A list of one type."""

    items: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Texts to one type."""

    values: Type


@dataclass(frozen=True, slots=True)
class Union:
    """One of some types."""

    branches: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of a record. `default` is JSON, and has a meaning only where there is one."""

    name: str
    type: Type
    has_default: bool = False
    default: object = None
    aliases: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class RecordType:
    """A record. It may hold itself, so its fields are known last, and two are equal when they are the same object."""

    name: str
    aliases: frozenset[str] = frozenset()
    fields: tuple[RecordField, ...] = field(default=(), repr=False)


Type = Primitive | Fixed | Enumeration | Array | Map | Union | RecordType
Named = Fixed | Enumeration | RecordType


def parse_avro(text: str | bytes) -> Type:
    """Read a schema's text. Raises `NotAvro`."""
    try:
        require_bounded_text(len(text))
        schema = json.loads(text)
    except SchemaTooLarge as error:
        raise NotAvro(str(error)) from error
    except ValueError as error:
        raise NotAvro(f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise NotAvro("it is nested too deeply") from error
    return avro_type(schema)


def avro_type(schema: object, *, defaults: bool = True) -> Type:
    """Read a schema's JSON. A writer's needs no `defaults`, and may have wrong ones. Raises `NotAvro`."""
    if not isinstance(schema, str | list | dict):
        raise NotAvro(f"{schema!r} is not a schema")
    try:
        require_bounded(schema)
        return _Parser().type(fastavro.parse_schema(_flat(schema, defaults=defaults)))
    except RecursionError as error:
        raise NotAvro("it is nested too deeply") from error
    except UnknownType as error:
        raise NotAvro(f"the type {error.name!r} is not defined") from error
    except (SchemaParseException, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NotAvro(str(error) or type(error).__name__) from error


def _flat(schema: object, *, defaults: bool) -> Any:
    """A copy in which no type is written as the `type` of another without need; fastavro takes no such thing."""
    if isinstance(schema, list):
        return [_flat(branch, defaults=defaults) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema["type"], dict | list):
        return _flat(schema["type"], defaults=defaults)
    copy = dict(schema)
    for member in ("items", "values"):
        if member in schema:
            copy[member] = _flat(schema[member], defaults=defaults)
    # A wrong precision makes fastavro refuse the schema; the specification has the logical type ignored.
    if copy.get("logicalType") == "decimal" and _logical(schema) is None:
        del copy["logicalType"]
    if "fields" in schema:
        copy["fields"] = [{**each, "type": _flat(each["type"], defaults=defaults)} for each in schema["fields"]]
        for each in () if defaults else copy["fields"]:
            each.pop("default", None)
    return copy


class _Parser:
    """From fastavro's form, in which every name is a full one."""

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}

    def type(self, schema: Any) -> Type:  # noqa: PLR0911 - one for each kind of type
        if isinstance(schema, str):
            return self._named[schema] if schema in self._named else Primitive(schema)
        if isinstance(schema, list):
            return Union(tuple(self.type(branch) for branch in schema))
        kind = schema["type"]
        if kind == "array":
            return Array(self.type(schema["items"]))
        if kind == "map":
            return Map(self.type(schema["values"]))
        if kind in {"record", "error"}:
            return self._record(schema)
        if kind in {"enum", "fixed"}:
            made = self._simple(schema, kind)
            self._named[made.name] = made
            return made
        return self._named[kind] if kind in self._named else Primitive(kind, _logical(schema))

    @staticmethod
    def _simple(schema: Mapping[str, Any], kind: str) -> Fixed | Enumeration:
        name, aliases = schema["name"], _aliases(schema)
        if kind == "fixed":
            size = schema["size"]
            if type(size) is not int or not 0 <= size <= _FIXED_BYTES_MAX:
                raise NotAvro(f"{size!r} is not the size of a fixed type")
            return Fixed(name, size, _logical(schema), aliases)
        return Enumeration(name, tuple(map(_text, schema["symbols"])), schema.get("default"), aliases)

    def _record(self, schema: Mapping[str, Any]) -> RecordType:
        record = self._named[schema["name"]] = RecordType(schema["name"], _aliases(schema))
        record.fields = tuple(
            RecordField(
                _text(each["name"]),
                self.type(each["type"]),
                "default" in each,
                each.get("default"),
                _aliases(each),
            )
            for each in schema["fields"]
        )
        return record


def _text(value: object) -> str:
    """A name. fastavro lets anything be the name of a field. Raises `NotAvro`."""
    if not isinstance(value, str):
        raise NotAvro(f"{value!r} is not a name")
    value.encode()  # half of a surrogate pair is a `ValueError`, which the caller of the parser expects
    return value


def _aliases(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(map(_text, schema.get("aliases", ())))


def _logical(schema: Mapping[str, Any]) -> Logical | None:
    name, kind = schema.get("logicalType"), schema["type"]
    if not isinstance(name, str) or kind not in _BASES.get(name, ()):
        return None
    if name == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            return None
        return Logical(name, precision, scale)
    if kind == "fixed" and schema.get("size") != (UUID_BYTES if name == "uuid" else DURATION_BYTES):
        return None
    return Logical(name)


def nodes(schema: Type) -> Iterator[Type]:
    """Every type that a schema is made of, itself included; a record once."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case Union(branches):
                waiting += branches
            case Array(inner) | Map(inner):
                waiting.append(inner)
            case RecordType() if id(node) not in seen:
                seen.add(id(node))
                waiting += [each.type for each in node.fields]


def has_decimals(schema: Type) -> bool:
    """Whether a decimal is in a schema."""
    return any(
        isinstance(node, Primitive | Fixed) and node.logical is not None and node.logical.name == "decimal"
        for node in nodes(schema)
    )


def short_name(name: str) -> str:
    """A full name without its namespace."""
    return name.rpartition(".")[2]


def describe(schema: Type) -> str:  # noqa: PLR0911 - one for each kind of type
    """A type in a few words, for messages."""
    match schema:
        case Primitive(kind, logical):
            return kind if logical is None else f"{logical.name} ({kind})"
        case Fixed(name, size):
            return f"fixed {name} of {size} bytes"
        case Enumeration(name):
            return f"enum {name}"
        case Array(items):
            return f"array of {describe(items)}"
        case Map(values):
            return f"map of {describe(values)}"
        case Union(branches):
            return f"union of {', '.join(describe(branch) for branch in branches)}"
    return f"record {schema.name}"
