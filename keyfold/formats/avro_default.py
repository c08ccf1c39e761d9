"""Defaults of a schema's fields: from JSON to the values that stand for them.

A union's default may be of any of its branches, as Avro 1.12 has it; the first that it fits is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyfold.formats.avro_schema import (
    Array,
    Enumeration,
    Fixed,
    Map,
    NotAvro,
    Primitive,
    RecordType,
    Type,
    Union,
    describe,
    nodes,
)
from keyfold.formats.logical_types import conversion


def default_value(schema: Type, default: Any, *, raw: bool) -> object:
    """The value that a field's default stands for. Raises `NotAvro` where the default is not of the type."""
    match schema:
        case Union(branches):
            for branch in branches:
                try:
                    return default_value(branch, default, raw=raw)
                except NotAvro:
                    continue
        case Primitive() | Fixed():
            value = _bare_default(schema, default)
            convert = conversion(schema, schema, raw=raw)
            return value if convert is None else convert(value)
        case Enumeration(_, symbols) if default in symbols:
            return default
        case Array(items) if isinstance(default, list):
            return [default_value(items, each, raw=raw) for each in default]
        case Map(values) if isinstance(default, dict):
            pairs = [(key, default_value(values, each, raw=raw)) for key, each in default.items()]
            return pairs if raw else dict(pairs)
        case RecordType() if isinstance(default, dict):
            return _default_record(schema, default, raw=raw)
    raise NotAvro(f"the default {default!r} does not fit {describe(schema)}")


def _default_record(schema: RecordType, default: Mapping[str, object], *, raw: bool) -> object:
    pairs = []
    for each in schema.fields:
        if each.name not in default and not each.has_default:
            raise NotAvro(f"a default of record {schema.name} lacks `{each.name}`")
        pairs.append((each.name, default_value(each.type, default.get(each.name, each.default), raw=raw)))
    return tuple(value for _, value in pairs) if raw else dict(pairs)


def _bare_default(schema: Primitive | Fixed, default: Any) -> object:
    kind = "fixed" if isinstance(schema, Fixed) else schema.kind
    fits = {
        "null": default is None,
        "boolean": isinstance(default, bool),
        "int": type(default) is int and -(2**31) <= default < 2**31,
        "long": type(default) is int and -(2**63) <= default < 2**63,
        "float": type(default) in {int, float},
        "double": type(default) in {int, float},
        "string": isinstance(default, str),
        "bytes": isinstance(default, str) and all(ord(sign) < 256 for sign in default),
        "fixed": isinstance(default, str) and all(ord(sign) < 256 for sign in default),
    }
    if not fits[kind] or (isinstance(schema, Fixed) and len(default) != schema.size):
        raise NotAvro(f"the default {default!r} does not fit {describe(schema)}")
    if kind in {"bytes", "fixed"}:
        return default.encode("latin-1")
    return float(default) if kind in {"float", "double"} else default


def check_defaults(schema: Type) -> None:
    """Raise `NotAvro` where a default of a schema is not of its type."""
    for node in nodes(schema):
        for each in node.fields if isinstance(node, RecordType) else ():
            if each.has_default:
                default_value(each.type, each.default, raw=False)
