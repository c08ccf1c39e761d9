"""What a converter must take and must refuse: for its own tests, and to ask Connect's originals the same."""

from __future__ import annotations

import json
from random import Random
from types import SimpleNamespace
from typing import Any

from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold_sink.validate.convert.api import Checks, ConnectStage
from keyfold_sink.validate.convert.converter_checks import checks_of
from tests.support.columns import batch

NUMBERS = "org.apache.kafka.connect.converters."


def checks(**converters: Any) -> Checks | None:
    options: dict[str, Any] = {"topics_dir": "logs"}
    for part in ("key", "value", "header"):
        name = converters.get(part, "bytes")
        options[f"{part}_converter"] = name if isinstance(name, str) else name[0]
        options[f"{part}_converter_settings"] = {} if isinstance(name, str) else name[1]
    return checks_of(SimpleNamespace(**options), store=MemoryStore(), clock=ManualClock(), random=Random(1))


def rejected(converter: Any, *values: bytes | None) -> list[tuple[int, str]]:
    own = checks(value=converter)
    assert own is not None
    found = own.judge("t", 0, batch(values))
    assert all(r.stage is ConnectStage.VALUE_CONVERTER and r.message for r in found)
    return [(r.index, r.cause) for r in found]


def passes(converter: Any, value: bytes) -> bool:
    return not rejected(converter, value)


JSON_CASES: list[tuple[bytes, bool]] = [
    (b"{}", True),
    (b' [1, 2.5e3, true, null, "a"]\n', True),
    (b'"text"', True),
    (b"null", True),
    (b"", True),  # Connect takes nothing at all for null
    (b"-0", True),
    (b"12345678901234567890123456789012345678901234567890", True),
    (b"1" * 400, True),
    (b"1e400", True),
    (b"1e-400", True),
    (b'{"a": 1, "a": 2}', True),
    (b"\xef\xbb\xbf{}", True),
    (b'"\\ud83d\\ude00"', True),
    (b'"\\ud800"', True),
    (b'"\\u0000"', True),
    (b"[" * 900 + b"]" * 900, True),
    (b"NaN", False),
    (b'{"Infinity": "NaN"}', True),
    (b"[Infinity]", False),
    (b"-Infinity", False),
    (b"{} {}", False),
    (b'{"a": 1} trailing', False),
    (b"007", False),
    (b"+1", False),
    (b".5", False),
    (b"1.", False),
    (b"'a'", False),
    (b"{a: 1}", False),
    (b"[1,]", False),
    (b"/* */ 1", False),
    (b'"\x01"', False),
    (b'"\xff"', False),
    (b'"\xc0\x80"', False),
    (b'"\xed\xa0\x80"', False),
    ("{}".encode("utf-16"), False),
    (b"\x00\x00\x00\x00\x01", False),
    (b" \r\n\t", True),
    (b"\x0b", False),
    (b"[" * 100_000, False),
    (b"tru", False),
]


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


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


FIXED = {"type": "fixed", "name": "F", "size": 4}


INTS = {"type": "array", "items": "int"}


LIST = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}


GOOD: list[tuple[Any, bytes]] = [
    ("null", b""),
    ("boolean", b"\x01"),
    ("int", b"\xff\xff\xff\xff\x0f"),
    ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ("int", b"\x80\x80\x80\x80\x00"),  # longer than it need be, as Java reads it too
    ("string", b"\x00"),
    ("string", b"\x04\xc3\xa9"),
    ("string", b"\x80\x01" + b"x" * 64),
    (ENUM, b"\x02"),
    (FIXED, b"abcd"),
    (INTS, b"\x00"),
    (INTS, b"\x04\x02\x04\x00"),
    (INTS, b"\x03\x04\x02\x04\x00"),  # a block that says its size in bytes
    (INTS, b"\x02\x02\x02\x04\x00"),  # two blocks
    (["null", "string"], b"\x02\x02a"),
    ({"type": "map", "values": "int"}, b"\x02\x02a\x06\x00"),
    (LIST, b"\x02\x02\x00"),
    ({"type": "long", "logicalType": "timestamp-millis"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ({"type": "string", "logicalType": "uuid"}, b"\x06abc"),  # readers that do not know it take the text
    ({"type": {"type": "string"}}, b"\x02a"),
    ("bytes", b"anything, as it is"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4}, b""),
    # Items that take no bytes: as many as the data says, at no cost.
    ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"),
]


BAD: list[tuple[Any, bytes]] = [
    ("null", b"\x00"),
    ("boolean", b""),
    ("boolean", b"\x02"),
    ("int", b"\xff\xff\xff\xff\xff\x01"),
    ("long", b"\xff" * 10 + b"\x01"),
    ("long", b"\x80"),
    ("float", b"\x00\x00\x00"),
    ("double", b"\x00" * 9),
    ("string", b"\x02"),
    ("string", b"\x01"),
    ("string", b"\x02\xff"),
    ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    (ENUM, b"\x04"),
    (ENUM, b"\x01"),
    (FIXED, b"abc"),
    (INTS, b"\x04\x02\x04"),
    (INTS, b"\xfe\xff\xff\xff\x0f\x02"),
    (["null", "string"], b"\x01"),
    (["null", "string"], b"\x04"),
    (["null", "string"], b""),
    ([], b"\x00"),
    (LIST, b"\x02\x02"),
    ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}, b"\x00"),
]
