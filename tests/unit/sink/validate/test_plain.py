"""Strings, numbers, JSON without schemas, headers: which bytes pass."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyfold_sink.validate.convert.api import ConnectStage, Rejected
from tests.support.columns import batch
from tests.support.convert_cases import JSON_CASES, NUMBERS, checks, passes, rejected


def test_bytes_need_no_check() -> None:
    assert checks() is None
    assert checks(key="bytes", value="ByteArrayConverter", header="SimpleHeaderConverter") is None


@pytest.mark.parametrize(
    "converter", ["string", "json", "JsonConverter", NUMBERS + "LongConverter", "BooleanConverter"]
)
def test_nulls_pass_every_check(converter: str) -> None:
    own = checks(key=converter, value=converter, header=converter)
    assert own is not None
    assert own.judge("t", 0, batch([None, None], headers=[[("h", None)], None])) == []
    assert not own.pending()
    assert own.judge("t", 0, batch([])) == ()
    own.close()


@pytest.mark.parametrize(
    ("value", "passes_check"),
    [
        (b"", True),
        (b"plain", True),
        ("grüße 🙂".encode(), True),
        (b"\x00", True),
        (b"\xef\xbb\xbfwith a mark", True),
        (b"\xff", False),
        (b"cut \xe2\x82", False),
        (b"\x80 begins in the middle", False),
        (b"\xc0\x80", False),
        (b"\xed\xa0\x80", False),
        (b"\xf5\x80\x80\x80", False),
    ],
)
def test_strings_are_utf_8(value: bytes, passes_check: bool) -> None:
    assert passes("string", value) is passes_check


def test_no_character_spans_two_records() -> None:
    assert rejected("string", b"caf\xc3", b"\xa9", "ä".encode()) == [(0, "not UTF-8"), (1, "not UTF-8")]


@given(st.lists(st.none() | st.binary(max_size=8) | st.text(max_size=4).map(str.encode), max_size=12))
def test_strings_are_valid_exactly_if_python_decodes_them(values: list[bytes | None]) -> None:
    def is_text(value: bytes) -> bool:
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
        return True

    bad = [(i, "not UTF-8") for i, value in enumerate(values) if value is not None and not is_text(value)]
    assert rejected("string", *values) == bad


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ShortConverter", 2),
        ("IntegerConverter", 4),
        ("FloatConverter", 4),
        ("LongConverter", 8),
        ("DoubleConverter", 8),
    ],
)
def test_numbers_have_the_size_of_their_type(name: str, size: int) -> None:
    values = [bytes(length) for length in range(12)]
    bad = [(length, "wrong size") for length in range(12) if length != size]
    assert rejected(NUMBERS + name, *values) == bad
    assert rejected(NUMBERS + name, bytes(size), None) == []


def test_a_boolean_is_0_or_1() -> None:
    assert rejected("BooleanConverter", b"\0", b"\1", None, b"\2", b"", b"\0\0") == [
        (3, "wrong size"),
        (4, "wrong size"),
        (5, "wrong size"),
    ]


@pytest.mark.parametrize(("value", "passes_check"), JSON_CASES, ids=[repr(value[:24]) for value, _ in JSON_CASES])
def test_json_is_exactly_one_document(value: bytes, passes_check: bool) -> None:
    assert passes("json", value) is passes_check
    # And the same in the company of others.
    assert rejected("json", b"1", value, None, b"[2]") == ([] if passes_check else [(1, "not JSON")])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_json_written_by_python_passes(document: Any, is_ascii: bool) -> None:
    try:
        text = json.dumps(document, ensure_ascii=is_ascii).encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair has no bytes
    assert passes("json", text)


@given(JSON, st.data())
@example(document={"a": [1, 2]}, data=None)
def test_damaged_json_fails_unless_it_is_still_json(document: Any, data: Any) -> None:
    text = bytearray(json.dumps(document).encode())
    if data is None:
        text[0] = 0xFF
    else:
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        json.loads(bytes(text).decode(), parse_constant=int)  # `int` refuses NaN and Infinity with a ValueError
        is_json = True
    except (ValueError, RecursionError):
        is_json = False
    assert passes("json", bytes(text)) is is_json


def test_a_record_fails_by_its_first_invalid_part() -> None:
    own = checks(key="string", value="json", header="string")
    assert own is not None
    found = own.judge(
        "t",
        0,
        batch(
            [b"{", b"{}", b"{", b"{}"],
            keys=[b"\xff", b"\xff", b"k", None],
            headers=[None, [("h", b"\xff")], None, [("a", b"ok"), ("b", b"\xff"), ("b", b"\xfe")]],
        ),
    )
    assert [(r.index, r.stage, r.converter.rpartition(".")[2]) for r in found] == [
        (0, ConnectStage.KEY_CONVERTER, "StringConverter"),
        (1, ConnectStage.KEY_CONVERTER, "StringConverter"),
        (2, ConnectStage.VALUE_CONVERTER, "JsonConverter"),
        (3, ConnectStage.HEADER_CONVERTER, "StringConverter"),
    ]
    assert "'b'" in found[3].message
    assert isinstance(found[0], Rejected)


def test_nothing_is_changed() -> None:
    values = [b"1", b"\xff", orjson.dumps({"a": 1})]
    own = checks(value="json")
    assert own is not None
    own.judge("t", 0, batch(values))
    assert values == [b"1", b"\xff", b'{"a":1}']
