"""Keys and values: readers' decoders by format, archived writer schemas, and the sink's checks of the same bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, Final

import pyarrow as pa

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.formats.avro_schema import NotAvro, avro_type
from keyfold.formats.column_type import column_for, survey_for, surveyed_type
from keyfold.formats.column_width import in_parts
from keyfold.formats.decoder import Decoder, reader_type
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold_sink.validate.convert.avro_check import _MANY, _are_valid, _Group, _judge
from keyfold_sink.validate.convert.avro_schema import AvroSchemaInvalid
from keyfold_sink.validate.convert.connect_schema import SchemaInvalid, compile_fit
from keyfold_sink.validate.convert.json_check import NotJson, parse
from keyfold_sink.validate.convert.registry_api import AVRO, RegisteredSchema
from keyfold_sink.validate.convert.schemas import read_schema
from tests.support.avro_cases import encode
from tests.support.columns import batch
from tests.support.convert_cases import ARRAY, JSON_CASES, MAP, PAIRS, USER, checks, envelope
from tests.support.fuzz.mutate import any_bytes, json_document, pack, parts_by, text_line, unpack, varints
from tests.support.fuzz.target import Target

Json = Any
_FRAME: Final = b"\0\0\0\0\x07"


# Avro: (writer schema, reader schema, value)


def _record(*fields: tuple[str, Json]) -> Json:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


_LOGICAL: Final = (
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "fixed", "name": "D", "size": 5, "logicalType": "decimal", "precision": 10, "scale": 0},
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
)
_LINKED: Final = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


def avro_seeds() -> list[bytes]:
    """Values of each kind of type, some of them for a reader's schema of another shape."""
    user = _record(("id", "long"), ("name", ["null", "string"]), ("tags", {"type": "array", "items": "string"}))
    wider = _record(("id", "double"), ("tags", {"type": "array", "items": "bytes"}), ("more", ["null", "int"]))
    wider["fields"][2]["default"] = None
    numbers = _record(
        ("m", {"type": "map", "values": "int"}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("x", {"type": "fixed", "name": "F", "size": 4}),
        ("f", "float"),
        ("d", "double"),
        ("b", "boolean"),
    )
    cases: list[tuple[Json, Json, Json]] = [
        (user, None, {"id": 7, "name": "alice", "tags": ["a", "b"]}),
        (user, wider, {"id": 7, "name": None, "tags": ["a"]}),
        (numbers, None, {"m": {"a": 1}, "e": "B", "x": b"1234", "f": 1.5, "d": 2.5, "b": True}),
        (_LINKED, None, {"next": {"next": None}}),
        ("string", "bytes", "text"),
        ({"type": "array", "items": ["null", "long", "string"]}, None, [None, 7, "x"]),
    ]
    simple: tuple[tuple[Json, Json], ...] = (
        ("bytes", b"\x01\x02"),
        ({"type": "fixed", "name": "D", "size": 5}, b"\0\0\0\1\2"),
        ("int", 19_000),
        ("long", 10**15),
        ("string", "01234567-89ab-cdef-0123-456789abcdef"),
    )
    plain = [encode(kind, value) for kind, value in simple]
    found = [
        pack(json.dumps(writer).encode(), b"" if reader is None else json.dumps(reader).encode(),
             _FRAME + encode(writer, value))
        for writer, reader, value in cases
    ]  # fmt: skip
    alone = (("bytes", None), ("bytes", "string"), (_LOGICAL[0], None), (_LOGICAL[0], {**_LOGICAL[0], "scale": 4}))
    for writer, reader in alone:
        reader_text = b"" if reader is None else json.dumps(reader).encode()
        found.append(pack(json.dumps(writer).encode(), reader_text, _FRAME + b"\2a"))
    for schema, value in zip(_LOGICAL, plain, strict=True):
        inside = _record(("v", schema))
        found.append(pack(json.dumps(inside).encode(), b"", _FRAME + value))
    return found


def decode_avro(data: bytes) -> None:
    """A value by its writer's schema, one by one and as a column, for the reader's schema if there is one."""
    writer, reader_text, value = unpack(data, 3)
    store = MemoryStore()
    store.put("topics/_schemas/7.avsc", writer, Create())
    kept = SchemaArchive(store, "topics")
    try:
        reader = reader_type(reader_text) if reader_text else None
    except ValueError:
        return
    first = _error(
        lambda: Decoder(value_format="avro", schemas=kept, reader_schema=reader_text or None)._value.value(value, ())
    )
    second = _error(lambda: _column(Format.AVRO, value, kept, reader))
    # Columns ask for a reader's schema more often: a record inside itself, for one, has none of its own.
    assert first is not None or second is None or isinstance(second, ConfigError), f"only a column refuses it: {second}"
    if first is not None:
        raise first


def _error(call: Any) -> KeyfoldError | None:
    try:
        call()
    except KeyfoldError as error:
        return error
    return None


def _column(kind: Format, value: bytes, kept: SchemaArchive, reader: Json = None) -> None:
    array = pa.array([value, None, value], pa.binary())
    survey = survey_for(RecordPart.VALUE, kind, reader)
    if survey is not None:
        survey.add(array, None)
        reader = surveyed_type([survey], kept, RecordPart.VALUE)
    column = column_for(RecordPart.VALUE, kind, kept, reader)
    batch = pa.record_batch({"value": array})
    parts = list(in_parts(batch, lambda part: column.decode(part.column("value"), None)))
    assert sum(len(part.array) for part in parts) == len(array)
    for part in parts:
        assert part.array.type == column.type
        part.array.validate(full=True)


def check_avro(data: bytes) -> None:
    """The same schema and value as the sink checks them: a failure is said, not raised."""
    writer, _, value = unpack(data, 3)
    try:
        text = writer.decode()
    except UnicodeDecodeError:
        return  # a registry's answer is text
    _, known = read_schema(RegisteredSchema(AVRO, text))
    is_valid = not _judge(known, _Group(7, len(_FRAME), [0]), [value])
    assert _are_valid(known, len(_FRAME), [value] * _MANY) == is_valid


# A schema alone


def decode_schema(data: bytes) -> None:
    """An archived schema, as readers parse it."""
    store = MemoryStore()
    store.put("topics/_schemas/7.avsc", data, Create())
    kept = SchemaArchive(store, "topics")
    assert kept.keys() == [7]
    avro_type(kept.schema(7))
    reader_type(data)


@cache
def _schemas() -> list[bytes]:
    return sorted({unpack(seed, 3)[0] for seed in avro_seeds()})


# JSON and text


def json_seeds() -> list[bytes]:
    """Documents with and without Connect's envelope."""
    plain = [case for case, is_right in JSON_CASES if is_right and len(case) < 1000]
    user = {"id": 7, "name": "a", "tags": ["x"]}
    return [*plain, json.dumps(user).encode(), *_envelopes()]


def _envelopes() -> list[bytes]:
    user = {"id": 7, "name": "a", "tags": ["x"]}
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
    date = {"type": "int32", "name": "org.apache.kafka.connect.data.Date", "optional": True, "default": 7}
    return [envelope(USER, user), envelope(MAP, {"a": 1}), envelope(PAIRS, [[1, "a"]]), envelope(ARRAY, [1, 2]),
            envelope(decimal, "AQI="), envelope(decimal, 1.5), envelope({"type": "double"}, 1.5),
            envelope(date, None)]  # fmt: skip


def decode_json(data: bytes) -> None:
    """A value that is JSON, alone and as a column whose type its own shape says."""
    kept = SchemaArchive(MemoryStore(), "topics")
    first = _error(lambda: Decoder(value_format="json")._value.value(data, ()))
    _column(Format.JSON, data, kept)
    if first is not None:
        raise first


def decode_text(data: bytes) -> None:
    """A value that is text."""
    _column(Format.STRING, data, SchemaArchive(MemoryStore(), "topics"))
    Decoder(value_format="string")._value.value(data, ())


@cache
def _converters() -> list[Any]:
    one_schema = {"schemas.enable": "true", "schema.content": json.dumps(USER)}
    named: list[Any] = ["string", "json", ("org.apache.kafka.connect.json.JsonConverter", {}),
                        ("org.apache.kafka.connect.json.JsonConverter", one_schema),
                        "org.apache.kafka.connect.converters.LongConverter",
                        "org.apache.kafka.connect.converters.BooleanConverter"]  # fmt: skip
    return [checks(value=converter, header="string") for converter in named]


def check_values(data: bytes) -> None:
    """Values as each of the sink's converters checks them: a failure is said, not raised, and says which record."""
    columns = batch([b"", data, None, data], headers=[None, [("h", data)], None, [("h", None)]])
    for check in _converters():
        found = check.judge("t", 0, columns)
        assert {rejected.index for rejected in found} <= {0, 1, 3}
        assert all(rejected.message and rejected.cause for rejected in found)


def compile_connect(data: bytes) -> None:
    """A schema of Connect."""
    compile_fit(parse(data), replace_null_with_default=True)


def connect_seeds() -> list[bytes]:
    """The schemas of the envelopes."""
    return [json.dumps(json.loads(each)["schema"]).encode() for each in _envelopes()]


def _frame(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change a value's data more often than the id before it."""
    if random.randrange(5) == 0:
        return any_bytes(data, others, random)
    return data[:5] + random.choice((any_bytes, varints))(data[5:], [other[5:] for other in others], random)


_AVRO: Final = parts_by(json_document, json_document, _frame)

VALUE_TARGETS: Final = (
    Target("avro-value", avro_seeds, decode_avro,
           ("keyfold.formats.avro_schema", "keyfold.formats.avro_resolve", "keyfold.formats.avro_read",
            "keyfold.formats.avro_vector", "keyfold.formats.avro_leaves", "keyfold.formats.avro_default",
            "keyfold.formats.schema_bounds", "keyfold.formats.confluent_framing", "keyfold.formats.framed_columns",
            "keyfold.formats.schema_archive",
            "keyfold.formats.logical_types", "keyfold.formats.columns", "keyfold.formats.column_type"), (_AVRO,)),
    Target("avro-check", avro_seeds, check_avro,
           ("keyfold_sink.validate.convert.avro_layout", "keyfold_sink.validate.convert.avro_schema"), (_AVRO,),
            (AvroSchemaInvalid,)),
    Target("kept-schema", _schemas, decode_schema, ("keyfold.formats.schema_archive", "keyfold.formats.avro_schema"),
           (json_document, json_document, any_bytes), (KeyfoldError, NotAvro, ValueError)),
    Target("json-value", json_seeds, decode_json,
           ("keyfold.formats.values", "keyfold.formats.connect_json", "keyfold.formats.json_type",
            "keyfold.formats.json_values", "keyfold.formats.json_vector"),
           (json_document, json_document, any_bytes)),
    Target("text-value", json_seeds, decode_text, ("keyfold.formats.columns",), (any_bytes, text_line)),
    Target("converters", json_seeds, check_values,
           ("keyfold_sink.validate.convert.json_check", "keyfold_sink.validate.convert.columns",
            "keyfold_sink.validate.convert.converter_checks"),
           (json_document, json_document, any_bytes)),
    Target("connect-schema", connect_seeds, compile_connect, ("keyfold_sink.validate.convert.connect_schema",),
           (json_document, json_document, any_bytes), (SchemaInvalid, NotJson)),
)  # fmt: skip
