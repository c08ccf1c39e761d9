"""Avro schemas as JSON: resolve names, and combine a schema with those that it references.

A registry stores a schema's references separately: the schema names types that other subjects define. A reader that has
only the log needs one complete schema. So each referenced type is written out where it is first named, with its
namespace; later references use its name. A schema without references keeps the registry's text.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, Final

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


class AvroSchemaInvalid(Exception):
    """The schema is not a valid Avro schema, or names an undefined type."""


def full_name(definition: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a record, enum or fixed inside `namespace`."""
    name = definition.get("name")
    if not isinstance(name, str) or not name:
        raise AvroSchemaInvalid(f"a type {definition.get('type')!r} has no name")
    if "." in name:
        return name
    own = definition.get("namespace", namespace)
    return f"{own}.{name}" if own else name


def resolve(name: str, namespace: str, known: Mapping[str, object]) -> str:
    """Return the full name of `name` inside `namespace`. Raise `AvroSchemaInvalid` if no such type is known."""
    qualified = f"{namespace}.{name}" if namespace and "." not in name else name
    for candidate in (qualified, name):
        if candidate in known:
            return candidate
    raise AvroSchemaInvalid(f"the type {qualified!r} is not defined")


def namespace_of(name: str) -> str:
    """Return the part before a full name's last dot."""
    return name.rpartition(".")[0]


def stand_alone(schema: object, referenced: Sequence[object]) -> object:
    """Return the schema with all types of `referenced` that it needs written into it. Raise `AvroSchemaInvalid`."""
    known: dict[str, tuple[Mapping[str, Any], str]] = {}
    for other in referenced:
        _collect(other, "", known)
    return _Writer(known).write(schema, "")


def _collect(schema: object, namespace: str, known: dict[str, tuple[Mapping[str, Any], str]]) -> None:
    """Collect every named type that `schema` defines, with its enclosing namespace."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, namespace, known)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if isinstance(kind, str) and kind in NAMED:
            name = full_name(schema, namespace)
            known.setdefault(name, (schema, namespace))
            for field in _fields(schema):
                _collect(field["type"], namespace_of(name), known)
        elif kind == "array":
            _collect(schema.get("items"), namespace, known)
        elif kind == "map":
            _collect(schema.get("values"), namespace, known)
        else:
            _collect(kind, namespace, known)


def _fields(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    fields = schema.get("fields", ())
    if not all(isinstance(field, dict) and "type" in field for field in fields):
        raise AvroSchemaInvalid(f"a field of {schema.get('name')!r} has no type")
    return fields  # type: ignore[no-any-return]  # checked above


class _Writer:
    def __init__(self, known: Mapping[str, tuple[Mapping[str, Any], str]]) -> None:
        self._known = known
        self._written: dict[str, None] = {}
        self._all = ChainMap[str, object](self._written, self._known)  # type: ignore[arg-type]  # read-only

    def write(self, schema: object, namespace: str) -> object:
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES else self._named(schema, namespace)
        if isinstance(schema, list):
            return [self.write(branch, namespace) for branch in schema]
        if not isinstance(schema, dict) or "type" not in schema:
            raise AvroSchemaInvalid("a type must be a name or an object with a type")
        kind = schema["type"]
        if isinstance(kind, str):
            if kind in NAMED:
                return self._defined(schema, namespace)
            if kind == "array":
                return {**schema, "items": self.write(schema.get("items"), namespace)}
            if kind == "map":
                return {**schema, "values": self.write(schema.get("values"), namespace)}
        return {**schema, "type": self.write(kind, namespace)}

    def _named(self, name: str, namespace: str) -> object:
        full = resolve(name, namespace, self._all)
        return self._defined(*self._known[full]) if full in self._known else full

    def _defined(self, schema: Mapping[str, Any], namespace: str) -> object:
        full = full_name(schema, namespace)
        if full in self._written:
            return full
        self._written[full] = None
        own = namespace_of(full)
        written = {**schema, "name": full.rpartition(".")[2], "namespace": own}
        if "fields" in schema:
            written["fields"] = [{**field, "type": self.write(field["type"], own)} for field in _fields(schema)]
        return written
