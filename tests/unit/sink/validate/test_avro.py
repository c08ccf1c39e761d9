"""Avro with schema ids: which records pass, and which schemas are archived."""

from __future__ import annotations

import json

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfold.formats.avro_vector import padded, pass_over
from keyfold.formats.errors import Unsuited
from keyfold.log.avro import varint
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.registry_settings import parse_registry
from keyfold_sink.validate.convert.api import ConnectStage, SchemasPending
from keyfold_sink.validate.convert.avro_check import _MANY, _Group, _judge
from keyfold_sink.validate.convert.columns import ColumnFailure
from keyfold_sink.validate.convert.registry import ConfluentRegistry
from keyfold_sink.validate.convert.registry_api import AVRO, RegisteredSchema
from keyfold_sink.validate.convert.schemas import KnownSchema, read_schema
from tests.support.avro_cases import encode, framed, schemas, values
from tests.support.avro_checks import ALICE, USER, causes, judged, names, opened, wait
from tests.support.columns import batch
from tests.support.schema_registry import StubRegistry


def test_records_of_known_schemas_pass_and_their_schemas_are_archived() -> None:
    store = MemoryStore()
    with StubRegistry(first_id=7) as registry, opened(registry.url, store=store) as checks:
        old, new = registry.register("users-value", USER), registry.register("users-value", "string")
        column = [framed(old, USER, ALICE), None, framed(new, "string", "x"), framed(old, USER, ALICE)]
        registry.hold()
        with pytest.raises(SchemasPending):
            checks.judge("users", 0, batch(column))
        assert checks.pending()
        registry.release()
        assert causes(checks, *column) == []
        assert names(store) == ["logs/_schemas/7.avsc", "logs/_schemas/8.avsc"]
        assert json.loads(store.get("logs/_schemas/7.avsc").data) == USER
        asked = len(registry.requests)
        assert causes(checks, *column) == []
        assert len(registry.requests) == asked == 2


def test_each_failure_has_its_cause() -> None:
    with StubRegistry() as registry, opened(registry.url) as checks:
        user = registry.register("users-value", USER)
        of_json = registry.register("j", '{"type": "object"}', kind="JSON")
        of_proto = registry.register("p", 'syntax = "proto3";', kind="PROTOBUF")
        lost = registry.register("l", {"type": "array", "items": "gone.Type"}, references=[("gone.Type", "gone", 1)])
        broken = registry.register("b", {"type": "array", "items": "gone.Type"})
        good = framed(user, USER, ALICE)
        column = [
            good,
            b"",
            b"{}",
            b"\x02" + good[1:],
            b"\x00\x00\x00",
            framed(999, USER, ALICE),
            framed(of_json, "string", "x"),
            framed(of_proto, "string", "x"),
            framed(lost, "string", "x"),
            framed(broken, "string", "x"),
            good[:-1],
            good[:5],
            good + b"\x00",
            good.replace(b"alice", b"\xff\xff\xff\xff\xff"),
            b"\x01" + bytes(10),
        ]
        assert causes(checks, *column) == [
            (1, "no magic byte"),
            (2, "no magic byte"),
            (3, "no magic byte"),
            (4, "no schema id"),
            (5, "unknown schema"),
            (6, "not an Avro schema"),
            (7, "not an Avro schema"),
            (8, "unknown schema"),
            (9, "unusable schema"),
            (10, "does not decode"),
            (11, "does not decode"),
            (12, "bytes left over"),
            (13, "does not decode"),
            (14, "no schema id"),
        ]
        found = judged(checks, batch(column))
        assert {(r.stage, r.converter) for r in found} == {
            (ConnectStage.VALUE_CONVERTER, "io.confluent.connect.avro.AvroConverter")
        }
        assert "schema 999" in found[4].message
        assert "PROTOBUF" in found[6].message


def test_keys_and_values_share_a_registry_and_request_schemas_together() -> None:
    with StubRegistry() as registry, opened(registry.url, key=True) as checks:
        of_key, of_value = registry.register("users-key", "string"), registry.register("users-value", USER)
        columns = batch(
            [framed(of_value, USER, ALICE), framed(of_value, USER, ALICE), None],
            keys=[framed(of_key, "string", "k"), b"k", framed(of_key, "string", "k")],
        )
        with pytest.raises(SchemasPending):
            checks.judge("users", 0, columns)
        wait(checks)
        assert len(registry.requests) == 2
        found = judged(checks, columns)
        assert [(r.index, r.stage) for r in found] == [(1, ConnectStage.KEY_CONVERTER)]


def test_a_schema_is_archived_together_with_its_references() -> None:
    store = MemoryStore()
    country = {"type": "enum", "name": "Country", "namespace": "geo", "symbols": ["CH", "DE"]}
    address = {"type": "record", "name": "geo.Address", "fields": [{"name": "country", "type": "geo.Country"}]}
    person = {"type": "record", "name": "P", "fields": [{"name": "a", "type": ["null", "geo.Address"]}]}
    with StubRegistry() as registry, opened(registry.url, store=store) as checks:
        registry.register("country", country)
        registry.register("address/of it", address, references=[("geo.Country", "country", 1)])
        number = registry.register("people-value", person, references=[("geo.Address", "address/of it", 1)])
        assert causes(checks, b"\0" + number.to_bytes(4) + b"\x02\x02", b"\0" + number.to_bytes(4) + b"\x02\x04") == [
            (1, "does not decode")
        ]
        assert names(store) == [f"logs/_schemas/{number}.avsc"]
        kept = json.loads(store.get(f"logs/_schemas/{number}.avsc").data)
        assert encode(kept, {"a": ("geo.Address", {"country": "DE"})}) == b"\x02\x02"


def test_a_schema_id_in_a_header_takes_precedence_over_the_values() -> None:
    with StubRegistry() as registry, opened(registry.url, key=True) as checks:
        number = registry.register("users-value", USER)
        guid = b"\x01" + registry.guid(number).bytes
        by_id = b"\x00" + number.to_bytes(4)
        bare = encode(USER, ALICE)
        key = by_id + bare
        cases: list[tuple[bytes | None, list[tuple[str, bytes | None]] | None, str]] = [
            (bare, [("__value_schema_id", guid)], ""),
            (bare, [("other", b"x"), ("__value_schema_id", by_id)], ""),
            (key, [("__value_schema_id", None)], ""),
            (key, [("__key_schema_id", guid)], ""),
            (key, None, ""),
            (None, [("__value_schema_id", b"nonsense")], ""),
            (guid + bare, None, ""),
            (key, [("__value_schema_id", guid)], "bytes left over"),
            (bare, [("__value_schema_id", b"nonsense")], "no magic byte"),
            (bare, [("__value_schema_id", b"")], "no magic byte"),
            (bare, [("__value_schema_id", guid + b"x")], "no schema id"),
            (bare, [("__value_schema_id", guid), ("__value_schema_id", by_id)], "two schema ids"),
            (bare, [("__value_schema_id", guid), ("__value_schema_id", guid)], ""),
            (bare, [("__value_schema_id", b"\x01" + bytes(16))], "unknown schema"),
            (bare, None, "no magic byte"),
        ]
        columns = batch(
            [value for value, _, _ in cases],
            keys=[bare if h and h[0][0] == "__key_schema_id" else None for _, h, _ in cases],
            headers=[headers for _, headers, _ in cases],
        )
        found = {r.index: r.cause for r in judged(checks, columns)}
        assert found == {index: cause for index, (_, _, cause) in enumerate(cases) if cause}


def test_batches_of_several_partitions_wait_side_by_side() -> None:
    with StubRegistry() as registry, opened(registry.url) as checks:
        numbers = [registry.register(f"s{n}", "int") for n in range(6)]
        columns = [batch([framed(number, "int", 5), b"x"], base_offset=n) for n, number in enumerate(numbers)]
        for partition, column in enumerate(columns):
            with pytest.raises(SchemasPending):
                checks.judge("users", partition, column)
        wait(checks)
        for partition, column in enumerate(columns):
            assert [r.index for r in checks.judge("users", partition, column)] == [1]


def test_a_batch_dropped_while_it_waited_is_forgotten() -> None:
    with StubRegistry() as registry, opened(registry.url) as checks:
        number = registry.register("s", "int")
        good, bad = framed(number, "int", 5), b"x"
        with pytest.raises(SchemasPending):
            checks.judge("users", 0, batch([bad, good]))
        wait(checks)
        assert [r.index for r in checks.judge("users", 0, batch([good, good, bad]))] == [2]


@given(st.data())
@pytest.mark.sharded
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_batch_fails_like_its_records_checked_one_by_one(data: st.DataObject) -> None:
    """The results agree for any mix of ids, headers, nulls and damage."""
    client = SchemaRegistryClient.new_client({"url": "mock://batch"})
    registry = ConfluentRegistry(parse_registry("v", {"schema.registry.url": "mock://batch"}), client)
    numbers = [
        client.register_schema(f"s{n}", Schema(json.dumps(s), "AVRO")) for n, s in enumerate(["int", USER, "null"])
    ]
    guid = b"\x01" + bytes(16)
    good = [framed(numbers[0], "int", 7), framed(numbers[1], USER, ALICE), framed(numbers[2], "null", None)]
    value = st.sampled_from([None, b"", b"x", good[0][:-1], good[1] + b"\0", guid + b"x", *good])
    header = st.sampled_from([None, b"", guid, good[0][:5], good[1][:5]]).map(lambda v: ("__value_schema_id", v))
    column = data.draw(st.lists(value, min_size=1, max_size=12))
    headers = [data.draw(st.none() | st.lists(header, max_size=2)) for _ in column]
    with opened("mock://batch", open_registry=lambda _settings: registry) as checks:
        whole = judged(checks, batch(column, headers=headers))
        single = [judged(checks, batch([v], headers=[h]), 1) for v, h in zip(column, headers, strict=True)]
    assert [(r.index, r.cause, r.message) for r in whole] == [
        (index, r.cause, r.message) for index, found in enumerate(single) for r in found
    ]


@given(st.data())
@pytest.mark.sharded
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_values_read_together_fail_as_they_do_one_by_one(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    _, known = read_schema(RegisteredSchema(AVRO, json.dumps(schema)))
    few = [encode(schema, value) for value in data.draw(st.lists(values(schema), min_size=1, max_size=4))]
    if few[0] and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(few[0]) - 1))
        few[0] = few[0][:at] + data.draw(st.binary(max_size=2)) + few[0][at + 1 :]
    column = few * _MANY
    alone = [_judge(known, _Group(1, 0, [index]), column) for index in range(len(few))]
    together = _judge(known, _Group(1, 0, range(len(column))), column)
    assert together == [
        ColumnFailure(index, failure.cause, failure.message)
        for index in range(len(column))
        for failure in alone[index % len(few)]
    ]


WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "of", "type": {"type": "map", "values": ["null", "long"]}},
        {"name": "parts", "type": {"type": "array", "items": "string"}},
    ],
}


def test_many_valid_values_are_not_read_one_by_one() -> None:
    _, known = read_schema(RegisteredSchema(AVRO, json.dumps(WIDE)))
    row = encode(WIDE, {"name": "Zoë", "of": {"ä": 70_000, "b": None}, "parts": ["x" * 500, ""]})

    def refuse(*_: object) -> int:
        raise AssertionError("a value was read by itself")

    column = [row] * _MANY * 11
    assert _judge(KnownSchema(refuse, known.action), _Group(1, 0, range(len(column))), column) == []


@pytest.mark.parametrize("text", [b"name", b"key", b"part"])
def test_text_that_is_not_utf8_fails_among_many(text: bytes) -> None:
    _, known = read_schema(RegisteredSchema(AVRO, json.dumps(WIDE)))
    row = encode(WIDE, {"name": "name", "of": {"key": 1}, "parts": ["part"]})
    column = [row] * 500
    column[321] = row.replace(text, b"\xff" * len(text))
    assert [f.index for f in _judge(known, _Group(1, 0, range(500)), column)] == [321]


def test_items_without_bytes_are_not_read_in_rounds() -> None:
    """Each value claims 60,000 nulls in four bytes. A round for each of them would delay all partitions of a task."""
    _, known = read_schema(RegisteredSchema(AVRO, json.dumps({"type": "array", "items": "null"})))
    value = varint(60_000) + b"\0"
    column = [value] * 1000
    assert known.action is not None
    ends = np.arange(1, 1001) * len(value)
    with pytest.raises(Unsuited):
        pass_over(known.action, padded(b"".join(column)), ends - len(value), ends)
    assert _judge(known, _Group(1, 0, range(1000)), column) == []


def test_mock_registries_work() -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://here"})
    number = client.register_schema("users-value", Schema(json.dumps(USER), "AVRO"))
    own: dict[str, str] = {"schema.registry.url": "mock://here"}
    registry = ConfluentRegistry(parse_registry("value.converter", own), client)
    with opened("mock://here", open_registry=lambda _settings: registry) as checks:
        assert causes(checks, framed(number, USER, ALICE), framed(number + 1, USER, ALICE)) == [(1, "unknown schema")]


def test_deeply_nested_values_pass_and_unbounded_ones_do_not() -> None:
    nested = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    with StubRegistry() as registry, opened(registry.url) as checks:
        head = b"\0" + registry.register("n", nested).to_bytes(4)
        column = [head + b"\x02" * 2000 + b"\x00", head + b"\x02" * 1_000_000 + b"\x00", head + b"\x02\x00"]
        assert causes(checks, *column) == [(1, "does not decode")]


@given(st.data())
@pytest.mark.sharded
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_values_that_confluents_deserializer_accepts_are_accepted(data: st.DataObject) -> None:
    """Values that it refuses are refused, except for those that docs/converters.md lists."""
    client = SchemaRegistryClient.new_client({"url": "mock://diff"})
    schema = data.draw(schemas())
    number = client.register_schema("t-value", Schema(json.dumps(schema), "AVRO"))
    deserialize = AvroDeserializer(client)
    context = SerializationContext("t", MessageField.VALUE)
    encoded = framed(number, schema, data.draw(values(schema)))
    end = data.draw(st.integers(0, len(encoded)))
    column = [encoded, encoded[:end], b"\x05" + encoded[1:]]
    registry = ConfluentRegistry(parse_registry("v", {"schema.registry.url": "mock://diff"}), client)
    with opened("mock://diff", open_registry=lambda _settings: registry) as checks:
        failed = {r.index for r in judged(checks, batch(column))}
    for index, value in enumerate(column):
        try:
            deserialize(value, context)
            takes = True
        except Exception:  # noqa: BLE001 - its errors are of many kinds
            takes = False
        if takes and index not in failed:
            continue
        if takes:
            raise AssertionError(f"Confluent's takes {value!r} of {schema}")
        # Confluent's Python client takes no value without data; its Java client does.
        assert index in failed or len(value) == 5


def test_values_of_confluents_serializer_pass() -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://serialize"})
    serialize = AvroSerializer(client, json.dumps(USER))
    context = SerializationContext("users", MessageField.VALUE)
    column = [serialize({"id": n, "mail": None}, context) for n in range(5)]
    registry = ConfluentRegistry(parse_registry("v", {"schema.registry.url": "mock://serialize"}), client)
    with opened("mock://serialize", open_registry=lambda _settings: registry) as checks:
        assert causes(checks, *column) == []
