"""JSON as columns: by a schema, by what all values have in common, out of Connect's envelope."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyfold.errors import ConfigError
from keyfold.formats.arrow_types import NoArrowType
from keyfold.formats.avro_schema import JSON_TEXT, Primitive, Union, avro_type
from keyfold.formats.column_type import column_for, survey_for, surveyed_type
from keyfold.formats.columns import Decoded, JsonColumn
from keyfold.formats.errors import FormatMismatch
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.handlers import AvroSurvey, JsonSurvey
from keyfold.formats.json_type import Shape
from keyfold.formats.values import JsonValues
from keyfold.runtime.arrow_types import values_of
from tests.support.avro_words import Json, decimal, kept, logical, record
from tests.support.untyped import untyped


def as_json(schema: Json, *documents: Any) -> Decoded:
    data = [each if isinstance(each, bytes | None) else json.dumps(each).encode() for each in documents]
    return JsonColumn(avro_type(schema)).decode(pa.array(data, pa.binary()), None)


@pytest.mark.parametrize(
    ("schema", "document", "value"),
    [
        ("int", 1.0, 1),
        ("double", 1, 1.0),
        ("double", "NaN", None),
        ("float", 0.5, 0.5),
        ("bytes", "AQI=", b"\1\2"),
        ("string", "x", "x"),
        (["null", "string"], None, None),
        (["null", "long"], 3, 3),
        (logical("int", "date"), "2022-01-08", date(2022, 1, 8)),
        (logical("int", "date"), 19_000, date(2022, 1, 8)),
        (logical("int", "time-millis"), "01:02:03.004", time(1, 2, 3, 4000)),
        (logical("long", "timestamp-millis"), "2022-01-08T00:00:00Z", datetime(2022, 1, 8, tzinfo=UTC)),
        (logical("long", "timestamp-micros"), "2022-01-08T01:00:00.000001+01:00",
         datetime(2022, 1, 8, 0, 0, 0, 1, UTC)),
        (logical("long", "timestamp-millis"), 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (logical("bytes", "decimal", precision=20, scale=2), b"12345678901234567.89", Decimal("12345678901234567.89")),
        (logical("bytes", "decimal", precision=5, scale=2), "1.5", Decimal("1.50")),
        (logical("string", "uuid"), str(UUID(int=1)), str(UUID(int=1))),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}, "C", "A"),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        ({"type": "array", "items": record("R", a="int")}, [{"a": 1, "more": []}], [{"a": 1}]),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": 5}]}, {}, {"a": 5}),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": ["b"]}]}, {"b": 1},
         {"a": 1}),
        (record("R", a=["null", "int"]), {}, {"a": None}),
        (record("R", a="int"), b" \n", None),
        (record("R", a="int"), b"null", None),
    ],
)  # fmt: skip
def test_json_is_decoded_with_a_given_schema(schema: Json, document: Any, value: Any) -> None:
    found = as_json(schema, document)
    assert found.mismatches == []
    if document != "NaN":
        assert found.array.to_pylist() == [value]


@pytest.mark.parametrize(
    ("schema", "document", "what"),
    [
        ("int", 2**31, "is a number, but the schema says int"),
        ("int", 1.5, "is a number, but the schema says int"),
        ("long", True, "is true or false, but the schema says long"),
        ("string", 1, "is a number, but the schema says string"),
        ("bytes", "A", "is a text, but the schema says bytes"),
        ("boolean", 1, "is a number, but the schema says boolean"),
        (logical("int", "date"), "yesterday", "is a text, but the schema says date (int)"),
        (logical("bytes", "decimal", precision=3, scale=2), "x", "is a text, but the schema says decimal (bytes)"),
        (logical("bytes", "decimal", precision=3, scale=2), 1234, "does not fit into the columns"),
        ({"type": "fixed", "name": "F", "size": 2}, "AQ==", "has 1 bytes, but the schema says fixed F of 2 bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "is a text, but the schema says enum E"),
        (record("R", a="int"), [], "is an array, but the schema says record R"),
        (record("R", a="int"), {}, "has at `.a` nothing, and the schema has no default for it"),
        (
            record("R", a={"type": "array", "items": "int"}),
            {"a": [1, "x"]},
            "has at `.a[1]` a text, but the schema says int",
        ),
        (
            record("R", a={"type": "map", "values": "int"}),
            {"a": {"k": None}},
            "has at `.a.k` null, but the schema says int",
        ),
        (["string", "int"], [], ""),
        ("int", b"{", "is not JSON"),
        ("int", b"\xff", "is not UTF-8"),
        ("int", b"NaN", "is not JSON: NaN is not JSON"),
        ("int", b"1 2", "is not JSON: Extra data"),
        ("int", b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_json_that_does_not_fit_is_a_mismatch(schema: Json, document: Any, what: str) -> None:
    if schema == ["string", "int"]:
        with pytest.raises(NoArrowType):
            as_json(schema, document)
        return
    found = as_json(schema, None, document)
    ((row, mismatch),) = found.mismatches
    assert row == 1
    assert mismatch.message.startswith(what)
    assert found.array.to_pylist() == [None, None]


def surveyed(*documents: Any) -> Any:
    survey = JsonSurvey(RecordPart.VALUE)
    data = [each if isinstance(each, bytes | None) else json.dumps(each).encode() for each in documents]
    array = pa.array(data, pa.binary())
    survey.add(array, None)
    column = column_for(RecordPart.VALUE, Format.JSON, kept(), surveyed_type([survey], kept(), RecordPart.VALUE))
    found = column.decode(array, None)
    return column.type, found.array.to_pylist(), len(found.mismatches)


@pytest.mark.parametrize(
    ("documents", "kind", "values"),
    [
        ([1, 2], pa.int64(), [1, 2]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([True, None], pa.bool_(), [True, None]),
        (["a", 1], pa.string(), ['"a"', "1"]),
        (["a", "b"], pa.string(), ["a", "b"]),
        ([2**63], pa.string(), [str(2**63)]),
        ([None], pa.string(), [None]),
        ([{}], pa.string(), ["{}"]),
        ([[]], pa.list_(pa.string()), [[]]),
        ([[1], ["x"]], pa.list_(pa.string()), [["1"], ['"x"']]),
        ([{"a": 1}, {"b": {"c": [None, 1]}}],
         pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.list_(pa.int64()))]))]),
         [{"a": 1, "b": None}, {"a": None, "b": {"c": [None, 1]}}]),
        ([{"a": 1}, 5], pa.string(), ['{"a":1}', "5"]),
        ([{str(n): n for n in range(1001)}], pa.string(), None),
    ],
)  # fmt: skip
def test_json_is_decoded_with_the_common_type(documents: list[Any], kind: pa.DataType, values: Any) -> None:
    found = surveyed(*documents)
    assert found[0] == kind
    assert found[2] == 0
    assert values is None or found[1] == values


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(ANY_JSON, max_size=6))
@example([[[]], [{}]])
@example([{"schema": None, "payload": 1}])
def test_a_surveyed_type_fits_everything_surveyed(documents: list[Any]) -> None:
    assert surveyed(*documents)[2] == 0


def envelope(schema: Json, payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


FIELDS: list[Json] = [
    {"field": "id", "type": "int32"},
    {"field": "raw", "type": "bytes", "optional": True},
    {
        "field": "sum",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
    },
    {"field": "day", "type": "int32", "name": "org.apache.kafka.connect.data.Date"},
    {"field": "at", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "optional": True},
    {"field": "tags", "type": "array", "items": {"type": "string"}, "optional": True},
    {"field": "by", "type": "map", "keys": {"type": "int32"}, "values": {"type": "string"}, "optional": True},
    {"field": "named", "type": "map", "keys": {"type": "string"}, "values": {"type": "double"}, "optional": True},
    {"field": "n", "type": "int8", "default": 7},
]
CONNECT = {"type": "struct", "optional": False, "fields": FIELDS}


def test_connects_json_envelope_is_unwrapped() -> None:
    payload = {
        "id": 1,
        "raw": "AQI=",
        "sum": "AQA=",
        "day": 19_000,
        "at": 1,
        "tags": ["x"],
        "by": [[1, "a"]],
        "named": {"a": 1},
    }
    more = {**CONNECT, "fields": [*FIELDS, {"field": "new", "type": "string", "optional": True}]}
    kind, rows, mismatches = surveyed(
        envelope(CONNECT, payload), envelope(more, {**payload, "new": "n"}), envelope(None, None)
    )
    assert mismatches == 0
    assert rows[0] == {
        "id": 1, "raw": b"\1\2", "sum": Decimal("2.56"), "day": date(2022, 1, 8),
        "at": datetime(1970, 1, 1, 0, 0, 0, 1000, UTC), "tags": ["x"], "by": [{"key": 1, "value": "a"}],
        "named": [("a", 1.0)], "n": 7, "new": None,
    }  # fmt: skip
    assert rows[1]["new"] == "n"
    assert rows[2] is None
    assert kind.field("sum").type == pa.decimal128(38, 2)
    assert kind.field("at").type == pa.timestamp("ms", "UTC")


@pytest.mark.parametrize(
    ("schema", "payload", "what"),
    [
        ({"type": "int8"}, 300, "has a payload with a int, but its schema says int8"),
        ({"type": "string"}, None, "has a payload with null, but its schema requires string"),
        ({"type": "wat"}, 1, "has an envelope with a schema of the unknown type 'wat'"),
        ({"type": "struct"}, {}, "has an envelope with a struct without fields"),
        ({"type": "bytes"}, "A", "has a payload with a text that is not Base64"),
        (
            {"type": "int32", "name": "org.apache.kafka.connect.data.Date"},
            2**40,
            "which is not a date that Python can represent",
        ),
    ],
)
def test_an_envelope_that_does_not_fit_is_a_mismatch(schema: Json, payload: Any, what: str) -> None:
    found = JsonColumn(avro_type("string")).decode(pa.array([envelope(schema, payload)], pa.binary()), None)
    assert what in found.mismatches[0][1].message


def test_the_survey_finds_the_common_type() -> None:
    assert survey_for(RecordPart.VALUE, Format.BYTES, None) is None
    assert survey_for(RecordPart.VALUE, Format.STRING, None) is None
    assert survey_for(RecordPart.VALUE, Format.AVRO, avro_type("string")) is None
    survey = survey_for(RecordPart.VALUE, Format.AVRO, None)
    assert isinstance(survey, AvroSurvey)
    survey.add(pa.array([b"\0\0\0\0\2x", None, b"\0\0\0\0\1x", b"{"], pa.binary()), None)
    assert survey.keys == {1, 2}
    assert surveyed_type([survey], kept("string", "long"), RecordPart.VALUE) == avro_type("long")
    guids = AvroSurvey(RecordPart.KEY)
    guids.keys = {1, str(UUID(int=5))}
    with pytest.raises(ConfigError, match="keys were written with several schemas, and GUIDs do not show"):
        surveyed_type([guids], kept("string"), RecordPart.KEY)
    missing = AvroSurvey(RecordPart.VALUE)
    missing.keys = {9}
    with pytest.raises(ConfigError, match="the newest schema of the values, 9, cannot be used"):
        surveyed_type([missing], kept("string"), RecordPart.VALUE)


def test_a_map_with_unbounded_keys_becomes_text_without_being_held() -> None:
    shape = Shape()
    for number in range(5000):
        shape.add([{f"id-{number}": {"x": number}, "id-0": 1}])
    other = Shape()
    other.add([{"a": 1}])
    other.merge(shape)
    for each in (shape, other):
        assert each.type() == Union((Primitive("null"), Primitive("string", JSON_TEXT)))
        assert not each._members


def test_members_are_counted_over_all_partitions() -> None:
    one, two = Shape(), Shape()
    one.add([{str(n): n for n in range(600)}])
    two.add([{str(-n): n for n in range(600)}])
    one.merge(two)
    assert one.type() == Union((Primitive("null"), Primitive("string", JSON_TEXT)))


def test_very_deep_nesting_is_handled() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = {"a": [deep]}
    kind, rows, mismatches = surveyed(deep, {"a": []})
    assert mismatches == 0
    assert len(rows) == 2
    assert str(kind).count("struct") == 25
    found = as_json(["null", "string"], b"[" * 900 + b"]" * 900)
    assert len(found.mismatches) == 1


@pytest.mark.parametrize("name", ["", "a.b", "é", "a b", "`"])
def test_any_member_name_is_allowed(name: str) -> None:
    assert surveyed({name: 1})[1] == [{name: 1}]


def test_lone_surrogates_are_handled() -> None:
    assert surveyed(b'{"\\ud800": 1}', b'{"a": 1}')[1] == ['{"\\ud800":1}', '{"a":1}']
    kind, rows, mismatches = surveyed(b'{"a": "\\ud800"}', b'{"a": "b"}')
    assert (rows, mismatches) == ([None, {"a": "b"}], 1)
    assert kind == pa.struct([("a", pa.string())])


def test_connects_struct_without_fields_is_text() -> None:
    _, rows, mismatches = surveyed(envelope({"type": "struct", "fields": []}, {}))
    assert (rows, mismatches) == (["{}"], 0)


def test_the_envelope_cache_changes_no_result() -> None:
    schema = {
        "type": "struct",
        "fields": [{"field": ',"payload":', "type": "int32"}, {"field": "b", "type": "double", "default": 0.5}],
    }
    other = {"type": "struct", "fields": [{"field": "b", "type": "string"}]}
    head = b'{"schema":' + json.dumps(other, separators=(",", ":")).encode() + b',"payload":'
    rows = [
        (head + b'{"b":"x"}}', {"b": "x"}),
        (head + b' {"b":"y"} }', {"b": "y"}),
        (head + b'{"b":"z"}} ', {"b": "z"}),
        (head + b'{"b":"z"},"more":1}', None),
        (head + b'{"b":"z"},"payload":{"b":"last"}}', {"b": "last"}),
        (head + b'{"b":"z"}}}', None),
        (head + b'{"b":1}}', None),
        (head + b'{"b":"\xff"}}', None),
        (head + b"}", None),
        (
            b'{"schema":' + json.dumps(schema, separators=(",", ":")).encode() + b',"payload":{",\\"payload\\":":1}}',
            {"b": 0.5},
        ),
        (b'{"payload":{"b":"x"},"schema":' + json.dumps(other).encode() + b"}", {"b": "x"}),
    ]
    for exact in (False, True):
        together = JsonValues(exact=exact)
        for _ in range(2):
            for data, expected in rows:
                alone = JsonValues(exact=exact)
                results = []
                for values in (alone, together):
                    try:
                        results.append(values.value(data, ()))
                    except FormatMismatch as mismatch:
                        results.append(mismatch.message)
                assert results[0] == results[1], data
                if expected is None:
                    assert results[0] == {"more": 1} or not isinstance(results[0], dict) or "payload" in results[0]
                else:
                    assert {**untyped(results[0]), **expected} == results[0]


@pytest.mark.parametrize("exact", [False, True])
def test_numbers_with_huge_exponents_are_refused_cheaply(exact: bool) -> None:
    more = {"sum": decimal(9, 2)} if exact else {}
    schema = {"type": "record", "name": "R", "fields": [
        {"name": name, "type": ["null", kind]} for name, kind in {"a": "long", "b": "double", **more}.items()
    ]}  # fmt: skip
    for number in (b"1e1000000000", b"-1e1000000000", b"1e30"):
        found = as_json(
            schema, b'{"a":' + number + b"}", b'{"b":' + number + b"}", b'{"sum":' + number + b"}", b'{"a":1e3}'
        )
        assert [row for row, _ in found.mismatches] == ([0, 2] if exact else [0])
        assert values_of(found.array)[3]["a"] == 1000
        long = {"schema": {"type": "int64"}, "payload": 0}
        data = json.dumps(long).encode().replace(b"0}", number + b"}")
        with pytest.raises(FormatMismatch, match="but its schema says int64"):
            JsonValues(exact=exact).value(data, ())


def test_what_two_surveys_have_seen_is_what_one_would_have_seen() -> None:
    documents: list[Any] = [{"a": 1, "b": [1]}, {"a": 2.5, "b": ["x"], "c": None}]
    one, left, right = Shape(), Shape(), Shape()
    for shape, seen in ((one, documents), (left, documents[:1]), (right, documents[1:])):
        shape.add(seen)
    left.merge(right)
    merged, whole = (JsonColumn(shape.type()) for shape in (left, one))
    assert merged.type == whole.type
