"""JSON is parsed to the same values with orjson and without it."""

from __future__ import annotations

import json
import math
from random import Random

import pytest

from keyfold.formats import values
from keyfold.formats.values import parse_json

PIECES = (
    *('"', "\\", "{", "}", "[", "]", ":", ",", "0", "1", "9", "-", "+", ".", "e", "E", "308", "309", "400", "-400"),
    *("true", "null", "nul", "NaN", "Infinity", " ", "\t", "\n", "\x00", "\x7f", "\x0c", "é", "\ufeff", "\ud7ff", "😀"),
    *('"a"', '"b":', '{"a":1}', "[1]", "\\ud800", "\\u0041", "\\ud83d\\ude00", "9007199254740993", "0.1"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "123456789012345678", "-0", "1e5"),
)


def found(data: bytes) -> tuple[str, str]:
    """The kind of the outcome, and the value as Python writes it, which tells 1 from 1.0 and 0.0 from -0.0."""
    try:
        return "value", repr(parse_json(data))
    except (ValueError, RecursionError) as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("seed", range(20))
def test_orjson_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    texts = ["".join(random.choice(PIECES) for _ in range(random.randrange(1, 9))) for _ in range(5000)]
    data = [text.encode() for text in texts] + [random.randbytes(random.randrange(6)) for _ in range(500)]
    doubles = (random.uniform(-1, 1) * 10 ** random.randrange(-320, 308) for _ in range(500))
    data += [json.dumps({"n": number, "m": [random.getrandbits(64)]}).encode() for number in doubles]
    fast = [found(each) for each in data]
    monkeypatch.setattr(values, "orjson", None)
    assert [found(each) for each in data] == fast
    assert sum(kind == "value" for kind, _ in fast) > 500


def test_orjson_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_decode", lambda _: math.nan)
    assert parse_json(b'{"a":[1,2.5,"x"]}') == {"a": [1, 2.5, "x"]}
