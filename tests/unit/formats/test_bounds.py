"""Schemas that are short to write and endless to write out, and values that are nested without end."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import textwrap
from base64 import b64encode
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from keyfold.formats.avro_schema import NotAvro, avro_type, parse_avro
from keyfold.formats.column_type import column_for
from keyfold.formats.decoder import Decoder
from keyfold.formats.errors import FormatMismatch
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.logical_types import DECIMAL_BYTES_MAX
from keyfold.formats.schema_archive import ArchivedSchemaUnusable, SchemaArchive
from keyfold.formats.schema_bounds import (
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_TYPES_MAX,
    SchemaTooLarge,
    require_bounded,
)
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold_sink.validate.convert.avro_schema import AvroSchemaInvalid as RefusedBySink
from keyfold_sink.validate.convert.registry_api import AVRO, RegisteredSchema
from keyfold_sink.validate.convert.schemas import read_schema

Json = Any
GROWTH_BYTES = 512 * 1024 * 1024


def doubling(levels: int, leaf: Json = "float") -> Json:
    """Records nested inside each other, each with two fields of the next one's type: 2**levels leaves."""
    schema = leaf
    for level in reversed(range(levels)):
        name = f"R{level}"
        inner_name = schema if isinstance(schema, str) else schema["name"]
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": inner_name}]
        schema = {"type": "record", "name": name, "fields": fields}
    return schema


def nested(levels: int, wrap: Callable[[Json], Json]) -> Json:
    schema: Json = "int"
    for _ in range(levels):
        schema = wrap(schema)
    return schema


BOMB = doubling(40)
LINKED = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
TOO_LARGE = {
    "forty doublings": BOMB,
    "in a namespace": {**doubling(30), "namespace": "a.b"},
    "with recursive names": doubling(
        20, {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
    ),
    "a union of doublings": ["null", doubling(25)],
    "arrays in arrays": nested(SCHEMA_DEPTH_MAX + 1, lambda inner: {"type": "array", "items": inner}),
    "maps in maps": nested(SCHEMA_DEPTH_MAX + 1, lambda inner: {"type": "map", "values": inner}),
    "types in types": nested(300, lambda inner: {"type": inner}),
    "as many fields": {
        "type": "record",
        "name": "Wide",
        "fields": [{"name": f"f{number}", "type": "int"} for number in range(SCHEMA_TYPES_MAX)],
    },
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_sink_and_readers_refuse_the_same_schemas(name: str) -> None:
    schema = TOO_LARGE[name]
    with pytest.raises(SchemaTooLarge):
        require_bounded(schema)
    with pytest.raises(NotAvro):
        avro_type(schema)
    with pytest.raises(RefusedBySink):
        read_schema(RegisteredSchema(AVRO, json.dumps(schema)))


def test_a_schema_at_the_bounds_is_read_by_both() -> None:
    fields = [{"name": f"f{number}", "type": ["null", "int"]} for number in range(SCHEMA_TYPES_MAX // 3 - 1)]
    deep = nested(SCHEMA_DEPTH_MAX - 4, lambda inner: {"type": "array", "items": inner})
    for schema in ({"type": "record", "name": "Wide", "fields": fields}, deep, doubling(14)):
        avro_type(schema)
        read_schema(RegisteredSchema(AVRO, json.dumps(schema)))


@pytest.mark.parametrize("text", ["[" * 200_000, '{"type":' * 200_000, '"' + "x" * SCHEMA_BYTES_MAX + '"'])
def test_a_schema_text_that_is_too_deep_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(NotAvro):
        parse_avro(text)
    with pytest.raises(RefusedBySink):
        read_schema(RegisteredSchema(AVRO, text))
    store = MemoryStore()
    store.put("topics/_schemas/7.avsc", text.encode(), Create())
    kept = SchemaArchive(store, "topics")
    decoder = Decoder(value_format="avro", schemas=kept)
    with pytest.raises((FormatMismatch, ArchivedSchemaUnusable), match="7"):
        decoder._value.value(b"\0\0\0\0\x07\x02", ())


def test_a_value_of_a_record_that_is_always_inside_itself_is_refused_without_being_followed() -> None:
    endless = {"type": "record", "name": "E", "fields": [{"name": "e", "type": "E"}]}
    store = MemoryStore()
    for number, schema in ((7, endless), (8, ["null", endless])):
        store.put(f"topics/_schemas/{number}.avsc", json.dumps(schema).encode(), Create())
    decoder = Decoder(value_format="avro", schemas=SchemaArchive(store, "topics"))
    for data in (b"\0\0\0\0\x07", b"\0\0\0\0\x08\x02"):
        with pytest.raises(FormatMismatch, match="without end"):
            decoder._value.value(data, ())
    assert decoder._value.value(b"\0\0\0\0\x08\x00", ()) is None


@pytest.mark.parametrize("depth", [100, 300, 480, 900, 5_000])
def test_an_envelope_and_a_document_of_any_depth_are_read_or_refused(depth: int) -> None:
    schema: Json = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    schema_text = '{"type":"array","items":' * depth + '{"type":"string"}' + "}" * depth
    payload = "[" * depth + "]" * depth
    decoder = Decoder(value_format="json")
    for text in (f'{{"schema":{schema_text},"payload":{payload}}}', payload):
        with contextlib.suppress(FormatMismatch):
            decoder._value.value(text.encode(), ())


def decimal_decoders() -> dict[str, Callable[[bytes], Any]]:
    """What reads an unscaled value with two digits behind the point, by the format that carries it."""
    store = MemoryStore()
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    store.put("topics/_schemas/7.avsc", json.dumps(schema).encode(), Create())
    avro = Decoder(value_format="avro", schemas=SchemaArchive(store, "topics"))
    connect = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}

    def avro_value(unscaled: bytes) -> Any:
        return avro._value.value(b"\0\0\0\0\x07" + unscaled, ())

    def json_value(unscaled: bytes) -> Any:
        document = {"schema": connect, "payload": b64encode(unscaled).decode()}
        return Decoder(value_format="json")._value.value(json.dumps(document).encode(), ())

    return {"avro": avro_value, "json": json_value}


@pytest.mark.parametrize("form", ["avro", "json"])
def test_a_decimal_is_read_exactly_or_refused_by_its_length(form: str) -> None:
    decode = decimal_decoders()[form]
    longest = b"\x80" + bytes(DECIMAL_BYTES_MAX - 1)
    value = decode(longest)
    assert value.as_tuple().exponent == -2
    assert value.scaleb(2, Context(prec=5_000)) == -(2 ** (DECIMAL_BYTES_MAX * 8 - 1))
    with pytest.raises(FormatMismatch, match=f"a decimal of {DECIMAL_BYTES_MAX + 1} bytes"):
        decode(longest + b"\0")


DIGITS = "1234567890" * 40
NUMBERS = {
    "a long integer as a double": ("double", DIGITS, math.inf),
    "a long negative integer as a float": ("float", "-" + DIGITS, -math.inf),
    "a decimal with more digits than a float": ("decimal", "0." + DIGITS, Decimal("0." + DIGITS)),
    "a decimal beyond every float": ("decimal", "1e400", Decimal("1e400")),
    "an exponent beyond every decimal": ("decimal", "1e9999999999999999999", None),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_an_envelopes_number_is_exact_or_as_in_java_or_refused(name: str) -> None:
    kind, text, wanted = NUMBERS[name]
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    schema = json.dumps(decimal if kind == "decimal" else {"type": kind})
    decoder = Decoder(value_format="json")
    for _ in range(2):  # the second time the envelope is known
        with pytest.raises(FormatMismatch) if wanted is None else contextlib.nullcontext():
            found = decoder._value.value(f'{{"schema":{schema},"payload":{text}}}'.encode(), ())
            assert found == wanted


@pytest.mark.parametrize("schema", ["double", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}])
@pytest.mark.parametrize("text", [DIGITS, "1e9999999999999999999", "1e-9999999999999999999"])
def test_a_column_is_built_despite_any_number(schema: Json, text: str) -> None:
    column = column_for(RecordPart.VALUE, Format.JSON, SchemaArchive(MemoryStore(), "topics"), avro_type(schema))
    decoded = column.decode(pa.array([b"1", text.encode()], pa.binary()), None)
    assert decoded.array[0].as_py() == 1
    assert decoded.mismatches or schema == "double"


_IN_A_SMALL_PROCESS = textwrap.dedent(
    """
    import json, resource, sys
    from tests.unit.formats.test_bounds import BOMB, GROWTH_BYTES
    from keyfold.store.api import Create
    from keyfold.store.memory import MemoryStore
    from keyfold.formats.decoder import Decoder
    from keyfold.formats.schema_archive import SchemaArchive
    from keyfold.formats.column_type import column_for
    from keyfold.formats.format import Format, RecordPart
    from keyfold_sink.validate.convert.registry_api import AVRO, RegisteredSchema
    from keyfold_sink.validate.convert.schemas import read_schema

    used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + GROWTH_BYTES,) * 2)
    store = MemoryStore()
    store.put("topics/_schemas/7.avsc", json.dumps(BOMB).encode(), Create())
    kept = SchemaArchive(store, "topics")
    def decode():
        Decoder(value_format="avro", schemas=kept)._value.value(b"\\0\\0\\0\\0\\x07\\x02", ())
    def choose():
        from keyfold.formats.column_type import surveyed_type
        from keyfold.formats.handlers import AvroSurvey
        survey = AvroSurvey(RecordPart.VALUE)
        survey.keys = {7}
        column_for(RecordPart.VALUE, Format.AVRO, kept, surveyed_type([survey], kept, RecordPart.VALUE))
    def check():
        read_schema(RegisteredSchema(AVRO, json.dumps(BOMB)))[1].check(b"", 0)
    try:
        {"decode": decode, "choose": choose, "check": check}[sys.argv[1]]()
    except Exception as error:
        print(type(error).__name__, str(error)[:300])
    """
)


@pytest.mark.parametrize("how", ["decode", "choose", "check"])
def test_a_schema_of_four_kilobytes_takes_neither_memory_nor_time(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_SMALL_PROCESS, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "it expands to more than 50000 types" in done.stdout, done.stdout + done.stderr
