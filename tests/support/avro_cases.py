"""Avro schemas and values of them, for hypothesis."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

from fastavro import parse_schema, schemaless_writer
from hypothesis import strategies as st

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=100),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """Return a schema without unions inside unions, with a distinct name for each named type."""
    names = itertools.count()
    return draw(_schema(depth, names))


def _schema(depth: int, names: Any, *, in_union: bool = False) -> st.SearchStrategy[Any]:
    simple = st.sampled_from(sorted(_PRIMITIVES)) | st.deferred(lambda: _named(names))
    if depth == 0:
        return simple
    inner = st.deferred(lambda: _schema(depth - 1, names))
    choices = [
        simple,
        inner.map(lambda s: {"type": "array", "items": s}),
        inner.map(lambda s: {"type": "map", "values": s}),
        st.lists(inner, max_size=4).map(
            lambda types: {
                "type": "record",
                "name": f"R{next(names)}",
                "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)],
            }
        ),
    ]
    if not in_union:
        branch = st.deferred(lambda: _schema(depth - 1, names, in_union=True))
        choices.append(st.lists(branch, min_size=1, max_size=4, unique_by=_kind))
    return st.one_of(choices)


def _named(names: Any) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.integers(0, 20).map(lambda size: {"type": "fixed", "name": f"F{next(names)}", "size": size}),
        st.integers(1, 70).map(
            lambda count: {"type": "enum", "name": f"E{next(names)}", "symbols": [f"S{i}" for i in range(count)]}
        ),
    )


def _kind(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("name", schema["type"]))
    return str(schema)


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Return values of a schema, as fastavro writes them."""
    if isinstance(schema, list):
        return st.one_of([st.tuples(st.just(_kind(branch)), values(branch)) for branch in schema])
    if isinstance(schema, str):
        return _PRIMITIVES[schema]
    return _COMPLEX[schema["type"]](schema)


_COMPLEX: dict[str, Callable[[Any], st.SearchStrategy[Any]]] = {
    "array": lambda schema: st.lists(values(schema["items"]), max_size=4),
    "map": lambda schema: st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=4),
    "fixed": lambda schema: st.binary(min_size=schema["size"], max_size=schema["size"]),
    "enum": lambda schema: st.sampled_from(schema["symbols"]),
    "record": lambda schema: st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]}),
}


def takes_bytes(schema: Any) -> bool:
    """Return whether a value of the schema has any bytes."""
    if isinstance(schema, dict):
        if schema["type"] == "record":
            return any(takes_bytes(field["type"]) for field in schema["fields"])
        return bool(schema["type"] != "fixed" or schema["size"])
    return bool(schema != "null")


def has_empty_items(schema: Any) -> bool:
    """Return whether an array has items without bytes, which a damaged count makes a decoder repeat for hours."""
    if isinstance(schema, list):
        return any(map(has_empty_items, schema))
    if not isinstance(schema, dict):
        return False
    items = schema.get("items")
    inner = [items, schema.get("values"), *(field["type"] for field in schema.get("fields", ()))]
    return (items is not None and not takes_bytes(items)) or any(map(has_empty_items, inner))


def encode(schema: Any, value: Any) -> bytes:
    """Return a value in Avro's binary encoding."""
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema, _force=True), value)
    return out.getvalue()


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    """Return a value as Confluent's serializers write it."""
    return b"\x00" + schema_id.to_bytes(4) + encode(schema, value)
