"""Many JSON documents at once become the same column, and the same mismatches, as one by one."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from keyfold.formats.avro_schema import JSON_TEXT, Array, Primitive, RecordType, Type, Union, avro_type
from keyfold.formats.columns import Decoded, JsonColumn
from keyfold.formats.format import RecordPart
from keyfold.formats.handlers import JsonSurvey
from keyfold.formats.json_type import Shape
from keyfold.formats.values import JsonValues
from tests.support.avro_words import Json, decimal, logical, record

WORDS = ("", "x", "é", "😀", "NaN", "AQI=", "2022-01-08", "a" * 40, "1", "123456789012345678901234567890")
NUMBERS = (0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63), 2**70, 10**400, 0.0, -0.0, 1.0, 1.5, 1e300, 5e-324, 0.1)
LEAVES = (
    *("int", "long", "float", "double", "string", "boolean", "bytes", "null"),
    *(decimal(9, 2), logical("string", "uuid"), {"type": "fixed", "name": "F", "size": 2}),
    {"type": "enum", "name": "E", "symbols": ["x", "y"], "default": "x"},
)


def a_schema(random: Random, depth: int = 0) -> Json:
    kind = random.choice(("leaf", "leaf", "record", "record", "array", "map")) if depth < 3 else "leaf"
    if kind == "leaf":
        schema = _named(random.choice(LEAVES), random)
    elif kind == "record":
        members = {name: a_schema(random, depth + 1) for name in random.sample("abcde", random.randint(1, 4))}
        schema = record(f"R{random.getrandbits(60)}", **members)
        for field in schema["fields"]:
            _vary(field, random)
    else:
        schema = {"type": kind, "items" if kind == "array" else "values": a_schema(random, depth + 1)}
    if schema == "null" or isinstance(schema, list) or random.random() < 0.3:
        return schema
    return ["null", schema]


def _named(schema: Json, random: Random) -> Json:
    """The schema; an enum gets a name that no other has."""
    return schema | {"name": f"E{random.getrandbits(60)}"} if isinstance(schema, dict) and "name" in schema else schema


def _vary(field: dict[str, Any], random: Random) -> None:
    """Give some fields a default, or another name."""
    if random.random() < 0.2:
        field["aliases"] = random.sample("fgh", random.randint(1, 2))
    if random.random() < 0.3 and field["type"] in ("long", "string"):
        field["default"] = 7 if field["type"] == "long" else "seven"


def a_document(schema: Json, random: Random) -> Any:  # noqa: PLR0911 - one return for each kind of schema
    """Mostly of the schema."""
    if random.random() < 0.01:
        return random.choice((None, True, {}, [], "x", {"a": 1}, [None], *NUMBERS))
    if isinstance(schema, list):
        return None if random.random() < 0.1 else a_document(schema[1], random)
    if isinstance(schema, str):
        return {"null": None, "boolean": random.random() < 0.5, "string": random.choice(WORDS), "bytes": "AQI="}.get(
            schema, random.choice(NUMBERS) if random.random() < 0.1 else random.choice((1, 2, -3))
        )
    if schema["type"] == "record":
        members = {}
        for field in schema["fields"]:
            name = random.choice((field["name"], *field.get("aliases", ())))
            if random.random() < 0.98:
                members[name] = a_document(field["type"], random)
        return members | ({"more": random.choice(WORDS)} if random.random() < 0.2 else {})
    if schema["type"] == "array":
        return [a_document(schema["items"], random) for _ in range(random.randrange(4))]
    if schema["type"] == "map":
        return {random.choice(WORDS): a_document(schema["values"], random) for _ in range(random.randrange(3))}
    return "x" if schema["type"] == "enum" else random.choice((1, "1", "2022-01-08", 1.25))


def as_bytes(document: Any, random: Random) -> bytes | None:
    """The document as it may be written, and now and then something else."""
    data = json.dumps(document, ensure_ascii=random.random() < 0.5).encode()
    chance = random.random()
    if chance < 0.98:
        return data
    wrong = (b"", b" ", b"{", data + b",", b"\xef\xbb\xbf" + data, b"\xff", b'"\\ud800"', b"[" * 2000, data[:-1])
    return random.choice((None, *wrong))


def one_by_one(column: JsonColumn, data: pa.Array[Any]) -> Decoded:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column._values, "documents", lambda _: None)  # as where a value is no JSON
        return column.decode(data, None)


def comparable(found: Decoded) -> tuple[str, list[tuple[int, str]]]:
    """The values as Python writes them, which tells 0.0 from -0.0, and the mismatches."""
    found.array.validate(full=True)
    return repr(found.array.to_pylist()), [(row, mismatch.message) for row, mismatch in found.mismatches]


@pytest.mark.parametrize("seed", range(60))
def test_documents_become_the_same_column_at_once_and_one_by_one(seed: int) -> None:
    random = Random(seed)
    schema = a_schema(random)
    kind = avro_type(schema)
    for count in (1, 3, 20, 600):
        rows = [as_bytes(a_document(schema, random), random) for _ in range(count)]
        data = pa.array(rows, pa.binary())
        at_once = JsonColumn(kind).decode(data, None)
        alone = one_by_one(JsonColumn(kind), data)
        assert at_once.array.type == alone.array.type
        assert comparable(at_once) == comparable(alone)


def test_right_documents_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = record("R", a=["null", "long"], b="double", c={"type": "array", "items": record("S", d="string")})
    schema["fields"].append({"name": "e", "type": "long", "default": 5})
    rows = [json.dumps({"a": None, "b": 1, "c": [{"d": "x"}, {"d": "y"}]}).encode(), None, b'{"b":0.5,"c":[],"e":6}']
    column = JsonColumn(avro_type(schema))
    monkeypatch.setattr(column, "_value", lambda _: pytest.fail("a document was decoded alone"))
    assert column.decode(pa.array(rows, pa.binary()), None).array.to_pylist() == [
        {"a": None, "b": 1.0, "c": [{"d": "x"}, {"d": "y"}], "e": 5},
        None,
        {"a": None, "b": 0.5, "c": [], "e": 6},
    ]


def type_of(shape: Shape) -> Any:
    return written_out(shape.type(unseen=Primitive("null")))


def written_out(schema: Type) -> Any:
    """A type that can be compared."""
    match schema:
        case RecordType(fields=fields):
            return {each.name: written_out(each.type) for each in fields}
        case Union(branches):
            return [written_out(each) for each in branches]
        case Array(items):
            return "array", written_out(items)
    return schema


@pytest.mark.parametrize("seed", range(40))
def test_types_are_found_in_many_documents_as_in_each(seed: int) -> None:
    random = Random(seed)
    schema = a_schema(random)
    documents = [a_document(schema, random) for _ in range(random.choice((1, 5, 600)))]
    together, alone, apart = Shape(), Shape(), Shape()
    together.add(documents)
    for document in documents:
        alone.add([document])
        one = Shape()
        one.add([document])
        apart.merge(one)
    assert type_of(together) == type_of(alone) == type_of(apart)


def test_a_survey_takes_envelopes_among_documents() -> None:
    envelope = {"schema": {"type": "string", "optional": True}, "payload": "x"}
    survey = JsonSurvey(RecordPart.VALUE)
    survey.add(pa.array([b'"y"', json.dumps(envelope).encode(), b"{", None, b""], pa.binary()), None)
    assert survey.writer_types(None) == {None: Union((Primitive("null"), Primitive("string")))}  # type: ignore[arg-type]  # JSON needs no archive


def test_whole_numbers_beyond_64_bits_are_not_rounded() -> None:
    values = JsonValues()
    digits = ("9223372036854775807", "18446744073709551616", "-18446744073709551617", "123456789012345678901234567890")
    for text in (f"{before}{each}" for each in digits for before in ("", " ", "[0,", '{"a":', '{"a": ')):
        data = (text + {"[": "]", "{": "}"}.get(text[0], "")).encode()
        assert values.documents([b'"1"', data]) == ["1", json.loads(data)]
    fraction = b"0.00000000012345678901234567890"
    assert values.documents([fraction]) == [float(fraction)]


def test_hostile_documents_take_no_more_memory_than_a_column_may() -> None:
    wide = record("W", **{f"m{number}": ["null", "long"] for number in range(500)})
    column = JsonColumn(avro_type({"type": "array", "items": wide}))
    found = column.decode(pa.array([b"[" + b"{}," * 200_000 + b"{}]"], pa.binary()), None)
    assert found.array.to_pylist() == [None]
    assert "needs more than" in found.mismatches[0][1].message


def test_names_without_end_become_text() -> None:
    shape = Shape()
    shape.add([{f"id-{number}-{each}": 1 for each in range(3)} for number in range(500)])
    assert type_of(shape) == [Primitive("null"), Primitive("string", JSON_TEXT)]
    assert not shape._members
