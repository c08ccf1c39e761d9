"""Connect's envelope: schemas, payloads, and which payloads are valid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.errors import ConfigError
from keyfold_sink.validate.convert.connect_schema import EnvelopeMismatch, SchemaInvalid, compile_fit
from keyfold_sink.validate.convert.json_check import EnvelopeCheck
from tests.support.columns import batch
from tests.support.convert_cases import (
    CLASS,
    FITS,
    INVALID,
    MISFITS,
    USER,
    checks,
    envelope,
    passes,
    rejected,
)


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


@pytest.mark.parametrize(("schema", "payload"), FITS)
def test_valid_payloads_pass(schema: Any, payload: Any) -> None:
    assert passes(CLASS, envelope(schema, payload))
    compile_fit(schema)(payload)


@pytest.mark.parametrize(("schema", "payload"), MISFITS)
def test_invalid_payloads_fail(schema: Any, payload: Any) -> None:
    assert rejected(CLASS, envelope(schema, payload)) == [(0, "payload does not fit")]
    with pytest.raises(EnvelopeMismatch):
        compile_fit(schema)(payload)


@pytest.mark.parametrize("schema", INVALID)
def test_invalid_schemas_are_refused(schema: Any) -> None:
    assert rejected(CLASS, envelope(schema, None)) == [(0, "schema invalid")]
    with pytest.raises(SchemaInvalid):
        compile_fit(schema)


def test_a_default_replaces_null_only_if_configured() -> None:
    value = envelope({"type": "string", "default": "x"}, None)
    assert passes(CLASS, value)
    assert not passes((CLASS, {"replace.null.with.default": "false"}), value)


def test_the_message_has_the_path_in_the_payload() -> None:
    schema = {"type": "struct", "fields": [{**USER, "field": "user"}]}
    own = checks(value=CLASS)
    assert own is not None
    found = own.judge("t", 0, batch([envelope(schema, {"user": {"id": "seven"}})]))
    assert found[0].message == "has a payload that does not match its schema: user: id: a string instead of int64"


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


def test_every_record_is_checked_although_its_schema_is_cached() -> None:
    """The fast path for documents with the same beginning gives the same results."""
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


def test_envelope_keys_inside_the_schema_or_payload_are_not_mistaken() -> None:
    tricky = {"type": "string", "doc": '{"schema":1,"payload":2}', "parameters": {"x": ',"payload":'}}
    compact = [
        json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()
        for schema, payload in [(tricky, "a"), (tricky, ',"payload":'), (tricky, 1), (USER, {"id": 1})]
    ]
    assert rejected(CLASS, *compact, *compact) == [(2, "payload does not fit"), (6, "payload does not fit")]


def test_the_number_of_cached_schemas_is_bounded() -> None:
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
def test_the_fast_path_agrees_with_the_full_check(pairs: list[tuple[Any, Any]]) -> None:
    values = []
    expected = []
    for schema, payload in pairs * 3:
        values.append(json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode())
        try:
            compile_fit(schema)(json.loads(values[-1])["payload"])
        except EnvelopeMismatch:
            expected.append(len(values) - 1)
    assert [index for index, _ in rejected(CLASS, *values)] == expected
