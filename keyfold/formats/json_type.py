"""The type of JSON values without a schema: the type that all values of a survey have in common.

    all of one kind                                     that kind: boolean, long, double, string
    whole numbers and others                            double
    objects                                             a record with every member that any of them has
    arrays                                              an array of what their items have in common
    kinds that differ, whole numbers beyond 64 bits,    their JSON as text
    objects without any member, or with more than
    MEMBERS_MAX different ones, and what is nested
    deeper than DEPTH_MAX

Everything may be null; what was never anything else is text. Values in Connect's envelope are of their schema's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from keyfold.formats.avro_schema import JSON_TEXT, Array, Map, Primitive, RecordField, RecordType, Type, Union

MEMBERS_MAX: Final = 1000
DEPTH_MAX: Final = 50

_TEXT: Final = Primitive("string", JSON_TEXT)
_NULL: Final = Primitive("null")
_STRING: Final = Primitive("string")
_TAKEN_MAX: Final = 64
_LEAST, _BEYOND = -(2**63), 2**63


class Shape:
    """What was seen at one place of the values."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._kinds: set[str] = set()
        self._members: dict[str, Shape] = {}
        self._items: Shape | None = None
        self._type: Type | None = None
        self._taken: dict[int, Type] = {}

    def add(self, values: Sequence[Any]) -> None:
        """Look at values, those of one kind together."""
        kinds = set(map(type, values))
        for kind in kinds:
            self._add(kind, values if len(kinds) == 1 else [each for each in values if type(each) is kind])

    def _add(self, kind: type, values: Sequence[Any]) -> None:
        if kind in {dict, list} and self._depth >= DEPTH_MAX:
            self._kinds.add("beyond")
        elif kind is dict:
            self._kinds.add("record")
            self._add_members(values)
        elif kind is list:
            self._kinds.add("array")
            self._all_items().add(list(chain.from_iterable(values)))
        elif kind is int:
            self._kinds.add("long" if min(values) >= _LEAST and max(values) < _BEYOND else "beyond")
        elif kind is not type(None):
            self._kinds.add(_SIMPLE.get(kind, "double"))

    def _add_members(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Look at the members of each name together, if there are not too many names."""
        names = dict.fromkeys(chain.from_iterable(records))
        if len(names) > MEMBERS_MAX:
            self._kinds.add("map")
        if "map" not in self._kinds:
            for name, column in _columns(names, records).items():
                self._member(name).add(column)
        self._bound()

    def add_type(self, schema: Type) -> None:
        """Take a type that an envelope has said."""
        if id(schema) in self._taken:
            return
        self._type = schema if self._type is None else common(self._type, schema)
        if len(self._taken) >= _TAKEN_MAX:
            self._taken.clear()
        self._taken[id(schema)] = schema

    def _member(self, name: str) -> Shape:
        """What was seen in the member `name` of objects."""
        found = self._members.get(name)
        if found is None:
            found = self._members[name] = Shape(self._depth + 1)
        return found

    def _bound(self) -> None:
        """Let the members go where there are too many of them: each object has its own, and memory has an end."""
        if len(self._members) > MEMBERS_MAX or "map" in self._kinds:
            self._kinds.add("map")
            self._members.clear()

    def _all_items(self) -> Shape:
        """What was seen in arrays."""
        if self._items is None:
            self._items = Shape(self._depth + 1)
        return self._items

    def merge(self, other: Shape) -> None:
        """Take what another has seen."""
        self._kinds |= other._kinds
        for name, each in other._members.items():
            self._member(name).merge(each)
        self._bound()
        if other._items is not None:
            self._all_items().merge(other._items)
        if other._type is not None:
            self.add_type(other._type)

    def type(self, name: str = "value", *, unseen: Type = _STRING) -> Type:
        """The type of all that was seen; `unseen` where nothing but null was."""
        seen = self._seen(name, unseen)
        if self._type is None:
            return Union((_NULL, seen if seen is not None else unseen))
        return self._type if seen is None else common(self._type, Union((_NULL, seen)))

    def _seen(self, name: str, unseen: Type) -> Type | None:
        kinds = self._kinds
        if not kinds:
            return None
        if kinds == {"record"}:
            return self._record(name, unseen)
        if kinds == {"array"}:
            return Array(self._all_items().type(name, unseen=unseen))
        if kinds <= {"long", "double"}:
            return Primitive("double" if "double" in kinds else "long")
        return Primitive(next(iter(kinds))) if kinds in ({"string"}, {"boolean"}) else _TEXT

    def _record(self, name: str, unseen: Type) -> Type:
        if not self._members or not all(map(_is_text, self._members)):
            return _TEXT
        fields = tuple(RecordField(each, shape.type(each, unseen=unseen)) for each, shape in self._members.items())
        return RecordType(name, fields=fields)


def _columns(names: Iterable[str], records: Sequence[Mapping[str, Any]]) -> Mapping[str, list[Any]]:
    """The members of each name. A missing member is left out, or null: a null adds nothing to a type."""
    names = list(names)
    if len(names) * len(records) <= 2 * sum(map(len, records)):
        return {name: [record.get(name) for record in records] for name in names}
    found: dict[str, list[Any]] = {name: [] for name in names}
    for record in records:
        for name, each in record.items():
            found[name].append(each)
    return found


def _is_text(name: str) -> bool:
    """Whether a name can be written: JSON's escapes may make halves of surrogate pairs."""
    return name.isascii() or not any(0xD800 <= ord(sign) < 0xE000 for sign in name)


_SIMPLE: Final = {str: "string", bool: "boolean"}


def common(one: Type, other: Type) -> Type:
    """The type that values of both have, every part of it nullable; JSON as text if there is none."""
    one, other = _bare(one), _bare(other)
    return Union((_NULL, _common(one, other)))


def _bare(schema: Type) -> Type:
    if isinstance(schema, Union):
        rest = [branch for branch in schema.branches if branch != _NULL]
        return rest[0] if len(rest) == 1 else _TEXT
    return schema


def _common(one: Type, other: Type) -> Type:
    match one, other:
        case RecordType(), RecordType():
            fields = {each.name: each.type for each in one.fields}
            for each in other.fields:
                fields[each.name] = common(fields[each.name], each.type) if each.name in fields else each.type
            return RecordType(one.name, fields=tuple(RecordField(name, kind) for name, kind in fields.items()))
        case Array(), Array():
            return Array(common(one.items, other.items))
        case Map(), Map():
            return Map(common(one.values, other.values))
        case Primitive(), Primitive():
            kinds = {one.kind, other.kind}
            if one == other:
                return one
            if one.logical is None and other.logical is None:
                for wide, narrow in (("long", {"int", "long"}), ("double", {"int", "long", "float", "double"})):
                    if kinds <= narrow:
                        return Primitive(wide)
    return _TEXT
