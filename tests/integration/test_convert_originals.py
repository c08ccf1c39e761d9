"""The converters compared with the originals: Connect's JsonConverter and Avro's Java decoder get the same values."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keyfold_sink.validate.convert.avro_layout import AvroDataInvalid, compile_check
from tests.support.avro_cases import encode, has_empty_items, schemas, values
from tests.support.columns import batch
from tests.support.connect_judge import ask, avro_question, json_question
from tests.support.convert_cases import BAD, CLASS, FITS, GOOD, INVALID, JSON_CASES, MISFITS, checks, envelope, passes

# What Connect takes and readers of JSON do not: see docs/converters.md.
LENIENT = [
    b"{} {}",
    b'{"a": 1} trailing',
    b"007",
    b'"\xc0\x80"',
    "{}".encode("utf-16"),
    "{}".encode("utf-32-be"),
]


def test_json_without_schemas() -> None:
    cases = [value for value, _ in JSON_CASES] + LENIENT
    answers = ask([json_question(value, schemas_enable="false") for value in cases])
    for value, (is_taken, said) in zip(cases, answers, strict=True):
        expected = is_taken and value not in LENIENT
        assert passes("json", value) is expected, (value[:80], said)


def test_envelopes_of_the_tables_of_cases() -> None:
    payloads: list[Any] = [None, 1, "a", {}, []]
    pairs = FITS + MISFITS + [(schema, payload) for schema in INVALID for payload in payloads]
    check_envelopes([envelope(schema, payload) for schema, payload in pairs])


def test_invalid_envelopes() -> None:
    check_envelopes(
        [
            b"null",
            b"[]",
            b"1",
            b"",
            b"{}",
            b'{"schema": null}',
            b'{"payload": 1}',
            b'{"schema": null, "payload": 1}',
            b'{"schema": null, "payload": null}',
            b'{"schema": null, "payload": 1, "x": 1}',
            b'{"schema": null, "payload": 1, "payload": 2}',
            b'\xef\xbb\xbf{"schema": {"type": "int8"}, "payload": 1}',
            b'{"schema": {"type": "int32"}, "payload": 1e2}',
            b'{"schema": {"type": "double"}, "payload": 1e400}',
            b'{"schema": {"type": "int64"}, "payload": 9223372036854775808}',
            b'{"schema": {"type": "int64"}, "payload": 18446744073709551616}',
            b'{"schema": {"type": "bytes"}, "payload": "AA EC"}',
            b'{"schema": {"type": "bytes"}, "payload": "AAE"}',
            b'{"schema": {"type": "bytes"}, "payload": "AAEC=="}',
        ]
    )


def test_random_envelopes() -> None:
    random = Random(5)
    check_envelopes([envelope(_schema(random, 2), _payload(random, 3)) for _ in range(3000)])
    pairs = [_pair(random, 3) for _ in range(2000)]
    check_envelopes([envelope(schema, payload) for schema, payload in pairs])


def test_nulls_without_replacement_by_defaults() -> None:
    random = Random(6)
    cases = [envelope(_schema(random, 1), _payload(random, 1)) for _ in range(1000)]
    check_envelopes(cases, replace_null_with_default="false")


def check_envelopes(cases: list[bytes], **more: str) -> None:
    """Assert that both accept the same values, except for those that Connect changes and for wrong defaults."""
    own = checks(value=(CLASS, {name.replace("_", "."): text for name, text in more.items()}))
    assert own is not None
    failed = {found.index: found.message for found in own.judge("t", 0, batch(cases))}
    assert len(failed) < len(cases), "a comparison of nothing"
    answers = ask([json_question(value, schemas_enable="true", **more) for value in cases])
    wrong: list[tuple[bytes, str]] = []
    for index, (value, (is_taken, said)) in enumerate(zip(cases, answers, strict=True)):
        if index not in failed:
            if not is_taken:
                wrong.append((value, said))
        elif (
            is_taken and not said.startswith("!") and "the default value does not match its schema" not in failed[index]
        ):
            made = json.loads(bytes.fromhex(said))["payload"] if said else None
            if same(made, json.loads(value)["payload"]):
                wrong.append((value, failed[index]))
    assert not wrong


def same(made: Any, payload: Any) -> bool:
    """Return whether Connect's result has all of a payload."""
    if isinstance(payload, dict) and isinstance(made, dict):
        return all(key not in made or same(made[key], payload[key]) for key in payload)
    if isinstance(payload, list) and isinstance(made, list):
        return len(made) == len(payload) and all(map(same, made, payload))
    return isinstance(made, bool) == isinstance(payload, bool) and bool(made == payload)


_TYPES = ["boolean", "int8", "int16", "int32", "int64", "float", "double", "string", "bytes"]
_SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    127,
    128,
    40000,
    2**31,
    2**63,
    1.0,
    0.5,
    1e300,
    "",
    "a",
    "AAEC",
    "NaN",
]
_LOGICAL = [("Date", "int32"), ("Time", "int32"), ("Timestamp", "int64"), ("Decimal", "bytes")]


def _schema(random: Random, depth: int) -> Any:
    kind = random.choice(["scalar", "scalar", "logical", "array", "map", "struct"] if depth else ["scalar", "logical"])
    schema: dict[str, Any]
    if kind == "scalar":
        schema = {"type": random.choice(_TYPES)}
    elif kind == "logical":
        name, bare = random.choice(_LOGICAL)
        schema = {"type": bare, "name": f"org.apache.kafka.connect.data.{name}", "parameters": {"scale": "2"}}
    elif kind == "array":
        schema = {"type": "array", "items": _schema(random, depth - 1)}
    elif kind == "map":
        schema = {"type": "map", "keys": _schema(random, 0), "values": _schema(random, depth - 1)}
    else:
        fields = [{**_schema(random, depth - 1), "field": name} for name in "abc"[: random.randrange(4)]]
        schema = {"type": "struct", "fields": fields}
    if random.random() < 0.4:
        schema["optional"] = random.random() < 0.7
    if random.random() < 0.15:
        schema["default"] = _payload(random, 1)
    return schema


def _payload(random: Random, depth: int) -> Any:
    kind = random.choice(["scalar", "list", "object"]) if depth else "scalar"
    if kind == "list":
        return [_payload(random, depth - 1) for _ in range(random.randrange(3))]
    if kind == "object":
        return {name: _payload(random, depth - 1) for name in "abc"[: random.randrange(4)]}
    return random.choice(_SCALARS)


def _pair(random: Random, depth: int) -> tuple[Any, Any]:
    """Return a schema and a payload that mostly fits it."""
    schema = _schema(random, depth)
    return schema, _fitting(random, schema)


def _fitting(random: Random, schema: Any) -> Any:
    if random.random() < 0.05:
        return _payload(random, 1)
    kind = schema["type"]
    if kind == "struct":
        return {field["field"]: _fitting(random, field) for field in schema["fields"]}
    if kind == "array":
        return [_fitting(random, schema["items"]) for _ in range(random.randrange(3))]
    if kind == "map":
        if schema["keys"]["type"] == "string":
            return {key: _fitting(random, schema["values"]) for key in "xy"}
        return [(_fitting(random, schema["keys"]), _fitting(random, schema["values"])) for _ in range(2)]
    return {"boolean": True, "string": "AAEC", "bytes": "AAEC"}.get(kind, random.randrange(100))


def accepts(schema: Any, data: bytes) -> tuple[bool, str]:
    try:
        end = compile_check(schema)(data, 0)
    except UnicodeDecodeError:
        return False, "text"
    except AvroDataInvalid as error:
        return False, "boolean" if "boolean" in str(error) else "data"
    except (IndexError, RecursionError):
        return False, "data"
    return end == len(data), "data"


def check_avro(cases: list[tuple[Any, bytes]]) -> None:
    answers = ask([avro_question(json.dumps(schema), data) for schema, data in cases])
    for (schema, data), (is_read, said) in zip(cases, answers, strict=True):
        taken, why = accepts(schema, data)
        is_whole = is_read and said == "0"
        # Java hands on text that is not UTF-8, and takes any byte but 1 for false.
        assert taken == is_whole or (is_whole and why in {"text", "boolean"}), (schema, data, said)


def test_avro_values_of_the_tables_of_cases() -> None:
    others = [{"type": {"type": "string"}}, []]  # schemas that some releases of Avro take
    check_avro(
        [
            (schema, data)
            for schema, data in GOOD + BAD
            if not _is_bytes(schema) and not has_empty_items(schema) and schema not in others
        ]
    )


def test_random_avro_values() -> None:
    cases: list[tuple[Any, bytes]] = []

    @given(st.data())
    @settings(
        max_examples=4,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    def collect(data: st.DataObject) -> None:
        cases.extend(_at_random(data))

    collect()
    check_avro(cases)  # once: each call starts a JVM


def _at_random(data: st.DataObject) -> list[tuple[Any, bytes]]:
    """Return valid, cut, lengthened and damaged encodings of a dozen schemas."""
    cases: list[tuple[Any, bytes]] = []
    random = Random(data.draw(st.integers(0, 1000)))
    for _ in range(12):
        schema = data.draw(schemas(2).filter(lambda s: not has_empty_items(s) and not _is_bytes(s)))
        encoded = encode(schema, data.draw(values(schema)))
        cases += [(schema, encoded), (schema, encoded[: random.randrange(len(encoded) + 1)]), (schema, encoded + b"\0")]
        for _ in range(40 if encoded else 0):
            damaged = bytearray(encoded)
            damaged[random.randrange(len(damaged))] = random.choice([0, 1, 2, 3, 127, 128, 255, random.randrange(256)])
            cases.append((schema, bytes(damaged)))
    return cases


def _is_bytes(schema: Any) -> bool:
    return schema == "bytes" or (isinstance(schema, dict) and _is_bytes(schema["type"]))
