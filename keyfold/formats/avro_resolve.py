"""Avro's schema resolution, done once for a pair of schemas: what to do with the bytes of a writer for a reader.

The result is a tree of actions in the order in which the writer wrote. Where the two do not agree it has a `Refuse`,
which hurts only a value that comes by: a union's branch that no value takes does no harm.

Rules are those of the specification (1.12, "Schema resolution"). Fields and named types are matched by their names
without namespace, or by the reader's aliases. As in Avro's Java, the names of two records that stand at the same place
are not compared, only those of a union's branches. Logical types are carried along: a value of one unit or scale is
turned into the reader's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, cast

from keyfold.formats.avro_schema import (
    Array,
    Enumeration,
    Fixed,
    Map,
    Named,
    Primitive,
    RecordField,
    RecordType,
    Type,
    Union,
    describe,
    short_name,
)
from keyfold.formats.confluent_framing import is_bytes_alone
from keyfold.formats.schema_bounds import without_end

_PROMOTIONS: Final = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


@dataclass(frozen=True, slots=True)
class ReadLeaf:
    """A primitive or fixed that was written as `written`, for the reader's `target`.

    With `is_rest` the value is all bytes to the end of the data: no length stands before them.
    """

    written: Primitive | Fixed
    target: Primitive | Fixed
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class ReadEnum:
    """The reader's symbol for each number of the writer; None where the reader has none."""

    symbols: tuple[str | None, ...]
    written: tuple[str, ...]
    target: Enumeration


@dataclass(frozen=True, slots=True)
class ReadArray:
    """Items, in pieces with a count before each."""

    items: Action


@dataclass(frozen=True, slots=True)
class ReadMap:
    """Keys and values, in pieces with a count before each."""

    values: Action


@dataclass(frozen=True, slots=True)
class ReadUnion:
    """A branch's number, then its value."""

    branches: tuple[Action, ...]


@dataclass(slots=True, eq=False)
class ReadRecord:
    """The writer's fields in order, each with the reader's field that it is for, or None: it is skipped.

    `defaults` are the reader's fields that were not written.
    """

    target: RecordType
    steps: tuple[tuple[Action, int | None], ...] = field(default=(), repr=False)
    defaults: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Refuse:
    """The reader's schema has no place for what was written."""

    message: str


Action = ReadLeaf | ReadEnum | ReadArray | ReadMap | ReadUnion | ReadRecord | Refuse


def resolve(writer: Type, reader: Type) -> Action:
    """What to do with a value that was written by `writer`, for `reader`."""
    return _Resolver(_endless(writer)).resolve(writer, reader)


def resolve_framed(schema: object, writer: Type, reader: Type) -> Action:
    """As `resolve`, for data in Confluent's framing. `schema` is the writer's as JSON (see `is_bytes_alone`)."""
    action = resolve(writer, reader)
    return replace(action, is_rest=True) if isinstance(action, ReadLeaf) and is_bytes_alone(schema) else action


class _Resolver:
    def __init__(self, endless: frozenset[int]) -> None:
        self._endless = endless
        self._records: dict[tuple[int, int], ReadRecord] = {}

    def resolve(self, writer: Type, reader: Type) -> Action:  # noqa: C901, PLR0911 - one line for each pair of types
        if isinstance(writer, Union):
            return ReadUnion(tuple(self.resolve(branch, reader) for branch in writer.branches))
        if isinstance(reader, Union):
            chosen = _branch(writer, reader)
            return _mismatch(writer, reader) if chosen is None else self.resolve(writer, chosen)
        match writer, reader:
            case Primitive(), Primitive():
                if writer.kind == reader.kind or reader.kind in _PROMOTIONS.get(writer.kind, ()):
                    return ReadLeaf(writer, reader)
            case Fixed(), Fixed():
                if writer.size == reader.size and _same_name(writer, reader):
                    return ReadLeaf(writer, reader)
            case Enumeration(), Enumeration():
                if _same_name(writer, reader):
                    return _enum(writer, reader)
            case Array(), Array():
                return ReadArray(self.resolve(writer.items, reader.items))
            case Map(), Map():
                return ReadMap(self.resolve(writer.values, reader.values))
            case RecordType(), RecordType() if id(writer) in self._endless:
                return Refuse(f"each value of {describe(writer)} has another one in it, and so on without end")
            case RecordType(), RecordType():
                return self._record(writer, reader)
        return _mismatch(writer, reader)

    def _record(self, writer: RecordType, reader: RecordType) -> Action:
        at = (id(writer), id(reader))
        if at in self._records:
            return self._records[at]
        action = self._records[at] = ReadRecord(reader)
        places = _places(writer, reader)
        steps = []
        for written, place in zip(writer.fields, places, strict=True):
            target = written.type if place is None else reader.fields[place].type
            steps.append((self.resolve(written.type, target), place))
        left = [place for place in range(len(reader.fields)) if place not in places]
        missing = [reader.fields[place].name for place in left if not reader.fields[place].has_default]
        action.steps, action.defaults = tuple(steps), tuple(left)
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            return Refuse(f"it was written without {names} of {reader.name}, and the reader schema has no default")
        return action


def _endless(writer: Type) -> frozenset[int]:
    """The ids of the records that have themselves in each of their values, which no data can hold."""
    parts: dict[int, set[int]] = {}
    pending = [writer]
    while pending:
        match kind := pending.pop():
            case RecordType() if id(kind) not in parts:
                pending += [each.type for each in kind.fields]
                parts[id(kind)] = {id(each.type) for each in kind.fields if isinstance(each.type, RecordType)}
            case Union():
                pending += kind.branches
            case Array():
                pending.append(kind.items)
            case Map():
                pending.append(kind.values)
    return without_end(parts)


def _places(writer: RecordType, reader: RecordType) -> list[int | None]:
    """For each of the writer's fields the reader's, by name first and then by alias, each once."""
    names = {each.name: place for place, each in enumerate(reader.fields)}
    places = [names.get(written.name) for written in writer.fields]
    taken = set(places)
    for number, written in enumerate(writer.fields):
        if places[number] is None:
            place = _by_alias(written, reader)
            if place is not None and place not in taken:
                places[number] = place
                taken.add(place)
    return places


def _by_alias(written: RecordField, reader: RecordType) -> int | None:
    return next((place for place, each in enumerate(reader.fields) if written.name in each.aliases), None)


def _branch(writer: Type, reader: Union) -> Type | None:
    """The reader's branch for what was written: one of the same type, else the first that it can be turned into."""
    branches = reader.branches
    for is_match in (_is_same, _is_promoted):
        found = next((branch for branch in branches if is_match(writer, branch)), None)
        if found is not None:
            return found
    records = [branch for branch in branches if isinstance(branch, RecordType)]
    return records[0] if isinstance(writer, RecordType) and len(records) == 1 else None


def _is_same(writer: Type, reader: Type) -> bool:
    if type(writer) is not type(reader):
        return False
    if isinstance(writer, Primitive) and isinstance(reader, Primitive):
        return writer.kind == reader.kind
    if isinstance(writer, Fixed | Enumeration | RecordType):
        return _same_name(writer, cast("Named", reader))
    return True


def _is_promoted(writer: Type, reader: Type) -> bool:
    both = isinstance(writer, Primitive) and isinstance(reader, Primitive)
    return both and reader.kind in _PROMOTIONS.get(writer.kind, ())  # type: ignore[union-attr]  # both are primitives


def _same_name(writer: Named, reader: Named) -> bool:
    names = {writer.name, short_name(writer.name)}
    return short_name(reader.name) in names or bool(names & reader.aliases)


def _enum(writer: Enumeration, reader: Enumeration) -> ReadEnum:
    known = frozenset(reader.symbols)
    symbols = tuple(symbol if symbol in known else reader.default for symbol in writer.symbols)
    return ReadEnum(symbols, writer.symbols, reader)


def _mismatch(writer: Type, reader: Type) -> Refuse:
    return Refuse(f"it was written as {describe(writer)}, but the reader schema says {describe(reader)}")
