"""Schemas with references, resolved into one schema."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader

from keyfold_sink.validate.convert.avro_layout import compile_check
from keyfold_sink.validate.convert.avro_schema import AvroSchemaInvalid, stand_alone
from keyfold_sink.validate.convert.registry_api import RegisteredSchema
from keyfold_sink.validate.convert.schemas import read_schema
from tests.support.untyped import untyped

ADDRESS = {
    "type": "record",
    "namespace": "com.geo",
    "name": "Address",
    "fields": [
        {"name": "street", "type": "string"},
        {"name": "country", "type": {"type": "enum", "name": "Country", "symbols": ["CH", "DE"]}},
    ],
}
PERSON = {
    "type": "record",
    "namespace": "com.people",
    "name": "Person",
    "fields": [
        {"name": "home", "type": "com.geo.Address"},
        {"name": "work", "type": ["null", "com.geo.Address"], "default": None},
        {"name": "born_in", "type": "com.geo.Country"},
        {"name": "boss", "type": ["null", "Person"]},
    ],
}


def decodes(schema: Any, data: bytes) -> Any:
    """Encode by fastavro, and check the layout without a registry."""
    assert compile_check(schema)(data, 0) == len(data)
    return schemaless_reader(io.BytesIO(data), parse_schema(schema), None)


def test_a_referenced_type_is_written_out_at_its_first_use_only() -> None:
    whole = stand_alone(PERSON, [ADDRESS])
    text = json.dumps(whole)
    assert text.count('"street"') == 1
    assert text.count('"symbols"') == 1
    found = decodes(whole, b"\x02a\x00" + b"\x02\x02b\x02" + b"\x02" + b"\x00")
    assert found["work"] == {"street": "b", "country": "DE"}
    assert found["born_in"] == "DE"


def test_referenced_types_keep_their_namespaces_inside_others() -> None:
    other = {
        "type": "record",
        "name": "Outer",
        "namespace": "x.y",
        "fields": [{"name": "p", "type": "com.people.Person"}],
    }
    decodes(stand_alone(other, [ADDRESS, PERSON]), b"\x02a\x00" + b"\x00" + b"\x00" + b"\x00")


def test_a_diamond_of_references_defines_nothing_twice() -> None:
    left = {"type": "record", "name": "Left", "fields": [{"name": "a", "type": "com.geo.Address"}]}
    right = {"type": "record", "name": "Right", "fields": [{"name": "a", "type": "com.geo.Address"}]}
    top = {"type": "record", "name": "Top", "fields": [{"name": "l", "type": "Left"}, {"name": "r", "type": "Right"}]}
    for order in ([ADDRESS, left, right], [right, left, ADDRESS]):
        assert decodes(stand_alone(top, order), b"\x02a\x00\x02b\x02")["r"] == {"a": {"street": "b", "country": "DE"}}


def test_a_nested_type_may_be_named_before_the_one_that_defines_it() -> None:
    top = {
        "type": "record",
        "name": "Top",
        "fields": [{"name": "c", "type": "com.geo.Country"}, {"name": "a", "type": "com.geo.Address"}],
    }
    assert decodes(stand_alone(top, [ADDRESS]), b"\x02\x02a\x00")["a"]["country"] == "CH"


def test_a_union_of_references_is_a_schema() -> None:
    assert decodes(stand_alone(["null", "com.geo.Address", "com.people.Person"], [ADDRESS, PERSON]), b"\x02\x02a\x00")


def test_types_without_a_namespace_stay_without() -> None:
    plain = {"type": "fixed", "name": "Id", "size": 2}
    for namespace in ("", "some.where"):
        top = {"type": "record", "name": "Top", "namespace": namespace, "fields": [{"name": "id", "type": "Id"}]}
        whole = stand_alone(top, [plain])
        assert compile_check(whole)(b"ab", 0) == 2
        assert untyped(whole)["fields"][0]["type"]["namespace"] == ""


def test_docs_defaults_and_logical_types_are_preserved() -> None:
    when = {
        "type": "record",
        "name": "When",
        "doc": "d",
        "aliases": ["W"],
        "fields": [
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0, "order": "ignore"}
        ],
    }
    top = {"type": "map", "values": "When"}
    assert stand_alone(top, [when]) == {"type": "map", "values": {**when, "namespace": ""}}


@pytest.mark.parametrize(
    ("schema", "referenced"),
    [
        (PERSON, []),
        ({"type": "array", "items": "gone"}, [ADDRESS]),
        (["null", 1], []),
        ({"name": "x"}, []),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, []),
        ("Address", [ADDRESS]),
    ],
)
def test_undefined_names_are_refused(schema: Any, referenced: list[Any]) -> None:
    with pytest.raises(AvroSchemaInvalid):
        stand_alone(schema, referenced)


def test_a_schema_without_references_is_archived_unchanged() -> None:
    text = '{ "type" : "record",\n "name":"R", "fields":[ ] }'
    assert read_schema(RegisteredSchema("AVRO", text))[0] == text


@pytest.mark.parametrize("text", ["string", ' "string" ', '{"type":"string"}', "  long  "])
def test_the_bare_name_of_a_primitive_is_archived_as_json(text: str) -> None:
    kept, _ = read_schema(RegisteredSchema("AVRO", text))
    assert parse_schema(json.loads(kept))


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null and void", '{"type":"enum","name":"E","symbols":3}', "[" * 5000]
)
def test_an_invalid_schema_is_unusable(text: str) -> None:
    with pytest.raises(AvroSchemaInvalid):
        read_schema(RegisteredSchema("AVRO", text))
