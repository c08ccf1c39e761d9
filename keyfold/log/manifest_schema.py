"""The schemas that a manifest may have, and a reader of their records in bounded memory.

A newer format may add fields, so a manifest is read with the schema in its own header. That schema comes from the
bucket and is not trusted: it must be keyfold's own, but fields with a default may be missing and others may be added.

    added fields    have a default, and only types whose values have at least one byte each, that are not recursive, and
                    that have at most `MAX_DEPTH` nested levels. So no count in the bytes can exceed the bytes
    all others      have the same types as in keyfold's schema

Other parts of a schema (aliases, logical types, fastavro's own marks) are removed before fastavro reads it. Top-level
arrays and maps are read a few items at a time; the caller converts or refuses them before more are read.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import fastavro

from keyfold.log.avro import read_varint
from keyfold_schemas import load_schema, schema_text

Schema = Any
Document = dict[str, Any]

MAX_DEPTH: Final = 12
_AT_ONCE: Final = 64
_NUMBERS: Final = frozenset({"boolean", "int", "long", "float", "double"})
_SCALARS: Final = _NUMBERS | {"bytes", "string"}
_NAMED: Final = frozenset({"record", "enum", "fixed"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,249}")
_NAMESPACE: Final = "keyfold"


class SchemaRefused(ValueError):
    """A manifest's schema is neither keyfold's nor a valid extension of it."""


@dataclass(frozen=True, slots=True)
class ManifestSchema:
    """An accepted schema of a manifest.

    `text` is the part that a writer keeps: empty for keyfold's own. `is_own`: the schema has no added fields.
    """

    text: str
    is_own: bool
    parts: tuple[_Part, ...]

    def read(self, body: bytes, takes: Mapping[str, Callable[[list[Any]], None]]) -> Document:
        """Read the one record of `body`.

        `takes` maps names of top-level arrays and maps to functions that receive their items, a few at a time (a map's
        as pairs); the result has the other fields. Raises `ValueError`, `EOFError`, fastavro's exceptions for malformed
        records, and the exceptions of these functions.
        """
        stream = io.BytesIO(body)
        document: Document = {}
        for part in self.parts:
            if part.item is None:
                document.update(_read(stream, part.schema))
                continue
            kept: list[Any] = []
            take = takes.get(part.name, kept.extend)
            for count in _counts(stream, body):
                for items in _batches(stream, part.item, count):
                    take(items if part.schema is None else [(i["key"], i["value"]) for i in items])
            if part.name not in takes:
                document[part.name] = kept if part.schema is None else dict(kept)
        if stream.tell() != len(body):
            raise ValueError(f"it has {len(body) - stream.tell()} bytes after the record")
        return document


@dataclass(frozen=True, slots=True)
class _Items:
    """Schemas of one item of an array or map, and of `_AT_ONCE` items in one call."""

    one: Schema
    many: Schema


@dataclass(frozen=True, slots=True)
class _Part:
    """Top-level fields that are read together: several of any type, or a single array (`schema` None) or map."""

    name: str
    schema: Schema
    item: _Items | None


@lru_cache(maxsize=16)
def manifest_schema(text: str, version: int) -> ManifestSchema:
    """Parse the schema of a manifest's header. Raises `SchemaRefused`."""
    ours = load_schema("manifest", version)
    if text == schema_text("manifest", version):
        return ManifestSchema("", True, tuple(_parts(ours)))
    try:
        theirs = _Check().known(ours, json.loads(text), 0)
        # The next version gets the missing fields; a writer only has to keep added ones.
        is_own = _is_part_of(theirs, ours)
        return ManifestSchema("" if is_own else json.dumps(theirs), is_own, tuple(_parts(theirs)))
    except SchemaRefused:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, fastavro.schema.SchemaParseException) as e:
        raise SchemaRefused(f"it is not the schema of a manifest ({type(e).__name__}: {e})") from e


def for_writing(schema: Schema) -> Schema:
    """Return a parsed schema with defaults that fastavro can write: JSON has text for bytes."""
    return _with_written_defaults(fastavro.parse_schema(schema))


def _with_written_defaults(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_with_written_defaults(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {k: _with_written_defaults(v) if k in {"items", "values"} else v for k, v in schema.items()}
    if "fields" in schema:
        made["fields"] = [
            {**f, **_written_default(f), "type": _with_written_defaults(f["type"])} for f in schema["fields"]
        ]
    return made


def _written_default(field_: Schema) -> Schema:
    kind = field_["type"][0] if isinstance(field_["type"], list) else field_["type"]
    is_bytes = kind == "bytes" or (isinstance(kind, dict) and kind["type"] in {"bytes", "fixed"})
    is_text = isinstance(field_.get("default"), str)
    return {"default": field_["default"].encode("latin-1")} if is_bytes and is_text else {}


def _is_part_of(theirs: Schema, ours: Schema) -> bool:
    """Return whether every field of `theirs` is one of `ours`."""
    if isinstance(theirs, list):
        return all(map(_is_part_of, theirs, ours))
    if not isinstance(theirs, dict):
        return True
    if theirs["type"] == "array":
        return _is_part_of(theirs["items"], ours["items"])
    if theirs["type"] != "record":
        return True
    known = {f["name"]: f["type"] for f in ours["fields"]}
    return all(f["name"] in known and _is_part_of(f["type"], known[f["name"]]) for f in theirs["fields"])


@dataclass(slots=True)
class _Check:
    """One traversal of a schema, with the complete named types and their depths."""

    made: dict[str, Schema] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)

    def known(self, ours: Schema, theirs: Schema, depth: int) -> Schema:
        """Return `theirs` in the place of `ours`, with added fields. Raises `SchemaRefused`."""
        if isinstance(ours, list):
            if not isinstance(theirs, list) or len(theirs) != len(ours):
                raise SchemaRefused(f"{_shown(theirs)} is not {_shown(ours)}")
            return [self.known(mine, other, depth + 1) for mine, other in zip(ours, theirs, strict=True)]
        if not isinstance(ours, dict):
            if theirs != ours:
                raise SchemaRefused(f"{_shown(theirs)} is not {_shown(ours)}")
            return ours
        if not isinstance(theirs, dict) or theirs.get("type") != ours["type"]:
            raise SchemaRefused(f"{_shown(theirs)} is not {_shown(ours)}")
        if ours["type"] == "array":
            return {"type": "array", "items": self.known(ours["items"], theirs["items"], depth + 1)}
        if ours["type"] == "map":
            return {"type": "map", "values": self.known(ours["values"], theirs["values"], depth + 1)}
        return self._known_record(ours, theirs, depth)

    def _known_record(self, ours: Schema, theirs: Schema, depth: int) -> Schema:
        if theirs.get("name") != ours["name"] or theirs.get("namespace") != ours.get("namespace"):
            raise SchemaRefused(f"the record {_shown(theirs.get('name'))} is not {ours['name']}")
        mine = {f["name"]: f for f in ours["fields"]}
        fields = []
        for other in theirs["fields"]:
            known = mine.pop(other["name"], None)
            if known is None:
                fields.append(self._added_field(other, depth + 1))
            else:
                fields.append({**known, "type": self.known(known["type"], other["type"], depth + 1)})
        missing = [name for name, f in mine.items() if "default" not in f]
        if missing:
            raise SchemaRefused(f"{ours['name']} has no {missing[0]}")
        return self._complete({**ours, "fields": fields})

    def _added_field(self, other: Schema, depth: int) -> Schema:
        """Check a field that a newer format has added: a writer that does not know it writes its default."""
        made = _field(other, self.added(other["type"], depth))
        try:
            trial = for_writing(_standalone(_record("Trial_", [made]), self.made, set()))
            fastavro.schemaless_writer(io.BytesIO(), trial, {})
        except Exception as error:  # fastavro does not document its exceptions
            raise SchemaRefused(f"the added field {made['name']} has no default of its type") from error
        return made

    def added(self, schema: Schema, depth: int) -> Schema:
        """Check a type of an added field. Raises `SchemaRefused`."""
        if depth > MAX_DEPTH:
            raise SchemaRefused(f"types are nested more than {MAX_DEPTH} deep")
        if isinstance(schema, str):
            return self._by_name(schema, depth)
        if isinstance(schema, list):
            if not schema:
                raise SchemaRefused("a union has no branches")
            return [branch if branch == "null" else self.added(branch, depth + 1) for branch in schema]
        match schema["type"]:
            case "array":
                return {"type": "array", "items": self.added(schema["items"], depth + 1)}
            case "map":
                return {"type": "map", "values": self.added(schema["values"], depth + 1)}
            case "record" | "enum" | "fixed":
                return self._added_named(schema, depth)
            case str() as kind if kind in _SCALARS:
                return kind
            case kind:
                raise SchemaRefused(f"{_shown(kind)} is not a type that an added field can have")

    def _by_name(self, name: str, depth: int) -> Schema:
        if name in _SCALARS:
            return name
        found = self.depths.get(name.removeprefix(f"{_NAMESPACE}."))
        if found is None:  # also null, which has no byte, and an incomplete type, which would be recursive
            raise SchemaRefused(f"{_shown(name)} is not a type that an added field can have")
        if depth + found > MAX_DEPTH:
            raise SchemaRefused(f"types are nested more than {MAX_DEPTH} deep")
        return name

    def _added_named(self, schema: Schema, depth: int) -> Schema:
        name = schema["name"]
        if schema.get("namespace", _NAMESPACE) != _NAMESPACE or not _NAME.fullmatch(name) or name in self.depths:
            raise SchemaRefused(f"a type cannot be added with the name {_shown(name)}")
        if schema["type"] == "enum":
            made: Schema = {"type": "enum", "name": name, "symbols": list(map(str, schema["symbols"]))}
        elif schema["type"] == "fixed":
            if not (isinstance(schema["size"], int) and 0 < schema["size"] <= 2**31 - 1):
                raise SchemaRefused(f"a fixed type has {_shown(schema['size'])} bytes")
            made = {"type": "fixed", "name": name, "size": schema["size"]}
        else:
            if not schema["fields"]:
                raise SchemaRefused(f"the record {name} has no fields")
            made = {"type": "record", "name": name}
            made["fields"] = [_field(f, self.added(f["type"], depth + 1)) for f in schema["fields"]]
        return self._complete(made)

    def _complete(self, made: Schema) -> Schema:
        name = made["name"]
        if name in self.made:
            raise SchemaRefused(f"two types have the name {_shown(name)}")
        self.made[name], self.depths[name] = made, self._depth(made)
        return made

    def _depth(self, schema: Schema) -> int:
        if isinstance(schema, str):
            return self.depths.get(schema.removeprefix(f"{_NAMESPACE}."), 0)
        if isinstance(schema, list):
            return 1 + max(map(self._depth, schema))
        inner = [schema[key] for key in ("items", "values") if key in schema]
        inner += [f["type"] for f in schema.get("fields", ())]
        return 1 + max(map(self._depth, inner), default=0)


def _field(field_: Schema, kind: Schema) -> Schema:
    if not _NAME.fullmatch(field_["name"]):
        raise SchemaRefused(f"a field has the name {_shown(field_['name'])}")
    made = {"name": field_["name"], "type": kind}
    return {**made, **{key: field_[key] for key in ("default", "doc") if key in field_}}


def _shown(value: object) -> str:
    """Return a part of a schema for an error message, at most one line long."""
    return json.dumps(value, default=str)[:80]


def _parts(schema: Schema) -> Iterator[_Part]:
    """Yield the record's fields in order: each array and map alone, and runs of other types."""
    definitions = {d["name"]: d for d in _definitions(schema)}
    run: list[Schema] = []
    for number, field_ in enumerate(schema["fields"]):
        kind = field_["type"]
        container = kind["type"] if isinstance(kind, dict) else ""
        if container not in {"array", "map"}:
            run.append(field_)
            continue
        if run:
            yield _Part("", _parsed(_record(f"Run{number}", run), definitions), None)
            run = []
        if container == "array":
            yield _Part(field_["name"], None, _items(kind["items"], definitions))
        else:
            pair = [{"name": "key", "type": "string"}, {"name": "value", "type": kind["values"]}]
            yield _Part(field_["name"], kind, _items(_record("Entry_", pair), definitions))
    if run:
        yield _Part("", _parsed(_record("Run_", run), definitions), None)


def _items(item: Schema, definitions: dict[str, Schema]) -> _Items:
    one = _record("One_", [{"name": "i0", "type": item}])
    many = _record("Many_", [{"name": f"i{i}", "type": _named_or(item) if i else item} for i in range(_AT_ONCE)])
    return _Items(_parsed(one, definitions), _parsed(many, definitions))


def _named_or(item: Schema) -> Schema:
    """Return the name of a type that is already defined, because it must not be defined twice."""
    return item["name"] if isinstance(item, dict) and item["type"] in _NAMED else item


def _record(name: str, fields: Iterable[Schema]) -> Schema:
    return {"type": "record", "name": name, "namespace": _NAMESPACE, "fields": list(fields)}


def _parsed(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    return fastavro.parse_schema(_standalone(schema, definitions, set()))


def _standalone(schema: Schema, definitions: dict[str, Schema], seen: set[str]) -> Schema:
    """Return a schema that defines each type at its first use."""
    if isinstance(schema, str):
        name = schema.removeprefix(f"{_NAMESPACE}.")
        return _standalone(definitions[name], definitions, seen) if name in definitions and name not in seen else schema
    if isinstance(schema, list):
        return [_standalone(branch, definitions, seen) for branch in schema]
    if schema["type"] in _NAMED:
        if schema["name"] in seen:
            return schema["name"]
        seen.add(schema["name"])
    made = dict(schema)
    for key in ("items", "values"):
        if key in made:
            made[key] = _standalone(made[key], definitions, seen)
    if schema["type"] == "record":
        made["fields"] = [{**f, "type": _standalone(f["type"], definitions, seen)} for f in schema["fields"]]
    return made


def _definitions(schema: Schema) -> Iterator[Schema]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _definitions(branch)
    elif isinstance(schema, dict):
        if schema["type"] in _NAMED:
            yield schema
        for key in ("items", "values"):
            if key in schema:
                yield from _definitions(schema[key])
        for field_ in schema.get("fields", ()):
            yield from _definitions(field_["type"])


def _counts(stream: io.BytesIO, body: bytes) -> Iterator[int]:
    """Yield the number of items in each block of an array or map, up to its end."""
    while True:
        count, position = read_varint(body, stream.tell())
        if count < 0:
            # Avro allows a writer to add the block's bytes, for readers that skip it.
            _, position = read_varint(body, position)
            count = -count
        stream.seek(position)
        if count == 0:
            return
        if count > len(body) - position:
            raise ValueError(f"an array declares {count} items with {len(body) - position} bytes left")
        yield count


def _batches(stream: io.BytesIO, item: _Items, count: int) -> Iterator[list[Any]]:
    for _ in range(count // _AT_ONCE):
        yield list(_read(stream, item.many).values())
    if rest := count % _AT_ONCE:
        yield [_read(stream, item.one)["i0"] for _ in range(rest)]


def _read(stream: io.BytesIO, schema: Schema) -> Document:
    found: Document = fastavro.schemaless_reader(stream, schema, None)  # type: ignore[assignment]  # a record is read as a dict
    return found
