"""Connect's envelope: schemas, payloads, and what fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.errors import ConfigError
from keyfold_sink.convert.connect_schema import Misfit, SchemaInvalid, compile_fit
from keyfold_sink.convert.json_check import EnvelopeCheck
from tests.support.columns import batch
from tests.unit.test_convert_plain import checks, passes, rejected

CLASS = "org.apache.kafka.connect.json.JsonConverter"
USER = {
    "type": "struct",
    "name": "user",
    "optional": False,
    "fields": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "name", "type": "string", "optional": True},
        {"field": "tags", "type": "array", "items": {"type": "string", "optional": False}, "optional": True},
    ],
}


def envelope(schema: Any, payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


def test_an_envelope_is_an_object_of_schema_and_payload() -> None:
    values = [
        envelope(USER, {"id": 1, "name": None}),
        b'{"payload": 1, "schema": null}',
        b'{"schema": null, "payload": null}',
        b'{"schema": null}',
        b'{"payload": 1}',
        b'{"schema": null, "payload": 1, "more": 1}',
        b'{"schema": null, "payload": 1, "payload": 2}',
        b"null",
        b"[]",
        b"",
        b"{",
        b'"schema payload"',
    ]
    assert rejected(CLASS, *values) == [
        (3, "no envelope"),
        (4, "no envelope"),
        (5, "no envelope"),
        (7, "no envelope"),
        (8, "no envelope"),
        (9, "not JSON"),
        (10, "not JSON"),
        (11, "no envelope"),
    ]


MAP = {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}}
PAIRS = {"type": "map", "keys": {"type": "int32"}, "values": {"type": "string"}}
ARRAY = {"type": "array", "items": {"type": "int8"}}
DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
DATE = {"type": "int32", "name": "org.apache.kafka.connect.data.Date"}
TIME = {"type": "int32", "name": "org.apache.kafka.connect.data.Time"}
TIMESTAMP = {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}

FITS: list[tuple[Any, Any]] = [
    (None, {"any": ["thing", 1]}),
    ({"type": "boolean"}, True),
    ({"type": "int8"}, -128),
    ({"type": "int8"}, 127),
    ({"type": "int16"}, 32767),
    ({"type": "int32"}, -(2**31)),
    ({"type": "int64"}, 2**63 - 1),
    ({"type": "int64"}, -(2**63)),
    ({"type": "int32"}, 1.0),
    ({"type": "int8"}, -128.0),
    ({"type": "int64"}, 1e18),
    ({"type": "float"}, 1),
    ({"type": "float"}, 3.4e38),
    ({"type": "double"}, 1e308),
    ({"type": "double"}, -1),
    ({"type": "double"}, "NaN"),
    ({"type": "float"}, "-Infinity"),
    ({"type": "string"}, ""),
    ({"type": "bytes"}, ""),
    ({"type": "bytes"}, "AAEC"),
    ({"type": "bytes"}, "AA=="),
    ({"type": "string", "optional": True}, None),
    ({"type": "string", "default": "x"}, None),
    ({"type": "string", "optional": True, "default": None}, None),
    (ARRAY, []),
    (ARRAY, [1, -2]),
    (MAP, {}),
    (MAP, {"a": 1}),
    (PAIRS, []),
    (PAIRS, [[1, "a"], [2, "b"]]),
    (USER, {"id": 1}),
    (USER, {"id": 1, "name": "n", "tags": ["a"], "unknown": {}}),
    (DECIMAL, "AQ=="),
    (DECIMAL, 1.25),
    (DECIMAL, 10**40),
    ({**DECIMAL, "parameters": {"scale": "-2"}}, "AQ=="),
    ({**DECIMAL, "parameters": {}}, 7),
    ({**DATE, "type": "string"}, 1),
    (DATE, -1),
    (TIME, 0),
    (TIME, 86_400_000),
    (TIMESTAMP, 2**40),
    ({"type": "string", "name": "io.debezium.data.Json", "version": 1}, "{}"),
]

MISFITS: list[tuple[Any, Any]] = [
    ({"type": "boolean"}, "true"),
    ({"type": "boolean"}, 1),
    ({"type": "int8"}, 128),
    ({"type": "int8"}, -129),
    ({"type": "int16"}, 32768),
    ({"type": "int32"}, 2**31),
    ({"type": "int64"}, 2**63),
    ({"type": "int64"}, 2**70),
    ({"type": "int64"}, -(2**63) - 1),
    ({"type": "int64"}, -(2**64)),
    ({"type": "int32"}, 1.5),
    ({"type": "int32"}, "1"),
    ({"type": "int32"}, True),
    ({"type": "float"}, 1e39),
    ({"type": "double"}, "1.0"),
    ({"type": "double"}, False),
    ({"type": "string"}, 1),
    ({"type": "string"}, {}),
    ({"type": "bytes"}, "A"),
    ({"type": "bytes"}, "???"),
    ({"type": "bytes"}, "AA EC"),
    ({"type": "bytes"}, "ä"),
    ({"type": "bytes"}, [1]),
    ({"type": "string"}, None),
    ({"type": "string", "optional": "true"}, None),
    ({"type": "string", "optional": False}, None),
    (ARRAY, {"a": 1}),
    (ARRAY, "abc"),
    (ARRAY, [None]),
    (ARRAY, [300]),
    (MAP, []),
    (MAP, {"a": None}),
    (MAP, {"a": "b"}),
    (PAIRS, {"1": "a"}),
    (PAIRS, [1]),
    (PAIRS, [[1]]),
    (PAIRS, [[1, "a", 2]]),
    (PAIRS, [["1", "a"]]),
    (USER, {}),
    (USER, []),
    (USER, {"id": "1"}),
    (USER, {"id": 1, "tags": [None]}),
    (DECIMAL, ""),
    (DECIMAL, True),
    (DECIMAL, "!"),
    ({**DECIMAL, "parameters": {}}, "AQ=="),
    ({"type": "bytes"}, "AAEC=="),
    (DATE, "2020-01-01"),
    (DATE, 1.0),
    (TIME, -1),
    (TIME, 86_400_001),
    (TIMESTAMP, 1.0),
    (TIMESTAMP, "2020-01-01T00:00:00Z"),
]

INVALID: list[Any] = [
    {},
    "string",
    1,
    [],
    {"type": "int"},
    {"type": 1},
    {"type": "array"},
    {"type": "array", "items": None},
    {"type": "array", "items": {}},
    {"type": "map", "keys": {"type": "string"}},
    {"type": "map", "values": {"type": "string"}},
    {"type": "struct"},
    {"type": "struct", "fields": {}},
    {"type": "struct", "fields": [{"type": "int32"}]},
    {"type": "struct", "fields": [{"field": 1, "type": "int32"}]},
    {"type": "struct", "fields": [{"field": "a", "type": "int32"}, {"field": "a", "type": "string"}]},
    {"type": "string", "parameters": {"a": 1}},
    {**DATE, "type": "date"},
    {"type": "int32", "default": "x"},
    {"type": "int32", "default": None},
    {"type": "struct", "fields": [], "default": {}},
]


@pytest.mark.parametrize(("schema", "payload"), FITS)
def test_what_fits(schema: Any, payload: Any) -> None:
    assert passes(CLASS, envelope(schema, payload))
    compile_fit(schema)(payload)


@pytest.mark.parametrize(("schema", "payload"), MISFITS)
def test_what_does_not_fit(schema: Any, payload: Any) -> None:
    assert rejected(CLASS, envelope(schema, payload)) == [(0, "payload does not fit")]
    with pytest.raises(Misfit):
        compile_fit(schema)(payload)


@pytest.mark.parametrize("schema", INVALID)
def test_what_is_no_schema(schema: Any) -> None:
    assert rejected(CLASS, envelope(schema, None)) == [(0, "schema invalid")]
    with pytest.raises(SchemaInvalid):
        compile_fit(schema)


def test_a_default_stands_in_for_null_only_where_that_is_asked_for() -> None:
    value = envelope({"type": "string", "default": "x"}, None)
    assert passes(CLASS, value)
    assert not passes((CLASS, {"replace.null.with.default": "false"}), value)


def test_the_message_says_where_in_the_payload() -> None:
    schema = {"type": "struct", "fields": [{**USER, "field": "user"}]}
    own = checks(value=CLASS)
    assert own is not None
    found = own.judge("t", 0, batch([envelope(schema, {"user": {"id": "seven"}})]))
    assert found[0].message == "has a payload that is not of its schema: user: id: a text where int64 belongs"


@pytest.mark.parametrize(("schema", "payload"), MISFITS)
def test_messages_do_not_quote_the_record(schema: Any, payload: Any) -> None:
    secret = "s3cret-value"
    told = {"type": "struct", "fields": [{"field": "a", "type": "int32"}, {"field": "b", "type": "string"}]}
    own = checks(value=CLASS)
    assert own is not None
    values = [envelope(schema, payload), envelope(told, {"a": secret}), envelope(told, secret), secret.encode()]
    for found in own.judge("t", 0, batch(values)):
        assert "s3cret" not in found.message


def test_schema_content_is_the_schema_of_documents_without_an_envelope() -> None:
    own = (CLASS, {"schema.content": json.dumps(USER)})
    assert rejected(own, b'{"id": 1}', b'{"id": "x"}', b"{", b"", None) == [
        (1, "payload does not fit"),
        (2, "not JSON"),
        (3, "payload does not fit"),
    ]
    with pytest.raises(ConfigError, match=r"value.converter.schema.content"):
        checks(value=(CLASS, {"schema.content": '{"type": "int"}'}))


def test_the_same_schema_again_and_again_is_still_looked_at_record_by_record() -> None:
    """The way for documents that begin alike is a short cut, and no other answer."""
    good = envelope(USER, {"id": 1}).replace(b", ", b",").replace(b": ", b":")
    assert good.startswith(b'{"schema":{"type":"struct"')
    bad = [
        good.replace(b'"id":1', b'"id":"x"'),
        good[:-1],
        good[:-1] + b',"more":1}',
        good[:-1] + b',"payload":2}',
        good + b" ",
        good + b"}",
        good[:-1] + b"]",
        good.replace(b'"payload":', b'"payload":,'),
    ]
    causes = [cause for _, cause in rejected(CLASS, good, *[v for b in bad for v in (b, good)])]
    assert causes == [
        "payload does not fit",
        "not JSON",
        "no envelope",
        # A member that is there twice counts once, with its last value: 2 is no struct.
        "payload does not fit",
        "not JSON",
        "not JSON",
        "not JSON",
    ]


def test_words_of_the_envelope_inside_the_schema_or_the_payload_do_not_mislead() -> None:
    tricky = {"type": "string", "doc": '{"schema":1,"payload":2}', "parameters": {"x": ',"payload":'}}
    compact = [
        json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()
        for schema, payload in [(tricky, "a"), (tricky, ',"payload":'), (tricky, 1), (USER, {"id": 1})]
    ]
    assert rejected(CLASS, *compact, *compact) == [(2, "payload does not fit"), (6, "payload does not fit")]


def test_schemas_that_take_turns_are_held_and_their_number_is_bounded() -> None:
    check = EnvelopeCheck(replace_null_with_default=True, cache_size=3)
    values = [
        json.dumps({"schema": {"type": "int32", "version": n % 20}, "payload": n}, separators=(",", ":")).encode()
        for n in range(200)
    ]
    assert check.failures(("t", 0, 0, 1, 1), values, ()) == []
    assert len(check._fits) <= 3
    assert len(check._prefixes) <= 8


PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
PRIMITIVE = st.sampled_from(["boolean", "int8", "int16", "int32", "int64", "float", "double", "string", "bytes"])
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.builds(lambda t, o: {"type": t, "optional": o}, PRIMITIVE, st.booleans()),
    lambda inner: st.one_of(
        inner.map(lambda s: {"type": "array", "items": s}),
        st.builds(lambda k, v: {"type": "map", "keys": k, "values": v}, inner, inner),
        st.lists(inner, max_size=3).map(
            lambda fs: {"type": "struct", "fields": [{**f, "field": "abc"[i]} for i, f in enumerate(fs)]}
        ),
    ),
    max_leaves=5,
)


@given(st.lists(st.tuples(SCHEMAS, PAYLOADS), min_size=1, max_size=4))
def test_the_short_cut_answers_as_the_long_way_does(pairs: list[tuple[Any, Any]]) -> None:
    values = []
    expected = []
    for schema, payload in pairs * 3:
        values.append(json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode())
        try:
            compile_fit(schema)(json.loads(values[-1])["payload"])
        except Misfit:
            expected.append(len(values) - 1)
    assert [index for index, _ in rejected(CLASS, *values)] == expected
