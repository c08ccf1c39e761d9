"""Bounds on Avro schemas: how large a schema may be when every name in it is replaced by its definition.

A named type is written once and named often, so a short text can stand for an endless type: of forty records, each
with two fields of the next one's type, 4 KB of text make 2^40 types. Columns, decoders and checks are built type by
type. The sink's check, readers and Spark therefore refuse a schema beyond these bounds, all by this function.

The bounds are far above schemas that people write: the largest public ones (FHIR, HL7) stay below 20,000 types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

Name = TypeVar("Name", int, str)

SCHEMA_BYTES_MAX: Final = 4 * 1024 * 1024
SCHEMA_TYPES_MAX: Final = 50_000
SCHEMA_DEPTH_MAX: Final = 64

_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


class SchemaTooLarge(ValueError):
    """A schema is beyond a bound; the message says which."""


def require_bounded_text(size_bytes: int) -> None:
    """Raise `SchemaTooLarge` for a schema's text of more than `SCHEMA_BYTES_MAX` bytes."""
    if size_bytes > SCHEMA_BYTES_MAX:
        raise SchemaTooLarge(f"it has {size_bytes} bytes; the limit is {SCHEMA_BYTES_MAX}")


def require_bounded(schema: object) -> None:
    """Raise `SchemaTooLarge` for a schema, given as JSON, that is nested too deeply or stands for too many types.

    A type inside itself counts as one, and so does a name that is not defined: that is for the parser to refuse.
    """
    _Measure().size(schema, "", 0)


def without_end(parts: Mapping[Name, set[Name]]) -> frozenset[Name]:
    """The types whose values have no end, which no data can hold. `parts` are what each value of a type has in it."""
    left = dict(parts)
    while finite := [name for name, held in left.items() if not held & left.keys()]:
        for name in finite:
            del left[name]
    return frozenset(left)


class _Measure:
    """Sizes of types: how many types one stands for, and how deeply they are nested."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[int, int]] = {}

    def size(self, schema: object, namespace: str, level: int) -> tuple[int, int]:
        if level > SCHEMA_DEPTH_MAX:
            raise SchemaTooLarge(f"it has more than {SCHEMA_DEPTH_MAX} nested levels")
        if isinstance(schema, str):
            types, depth = self._of_name(schema, namespace)
            if level + depth > SCHEMA_DEPTH_MAX:
                raise SchemaTooLarge(f"it has more than {SCHEMA_DEPTH_MAX} nested levels")
            return types, depth
        if isinstance(schema, list):
            return self._together(schema, namespace, level)
        if not isinstance(schema, dict):
            return 1, 1
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _NAMED:
            return self._defined(schema, namespace, level)
        inner = {"array": "items", "map": "values"}.get(kind) if isinstance(kind, str) else "type"
        return self._together([kind if inner is None else schema.get(inner)], namespace, level)

    def _together(self, schemas: list[object], namespace: str, level: int) -> tuple[int, int]:
        types, depth = 1, 1
        for each in schemas:
            more, below = self.size(each, namespace, level + 1)
            types, depth = types + more, max(depth, below + 1)
            if types > SCHEMA_TYPES_MAX:
                raise SchemaTooLarge(f"it expands to more than {SCHEMA_TYPES_MAX} types")
        return types, depth

    def _defined(self, schema: Mapping[str, object], namespace: str, level: int) -> tuple[int, int]:
        name, own = str(schema.get("name", "")), schema.get("namespace", namespace)
        full = name if "." in name or not own else f"{own}.{name}"
        self._named[full] = 1, 1
        fields = schema.get("fields", ())
        kinds = [each.get("type") for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []
        self._named[full] = self._together(kinds, full.rpartition(".")[0], level)
        return self._named[full]

    def _of_name(self, name: str, namespace: str) -> tuple[int, int]:
        qualified = f"{namespace}.{name}" if namespace and "." not in name else name
        return self._named.get(qualified) or self._named.get(name) or (1, 1)
