"""A few bytes of a value that stand for gigabytes of columns: they cost what they are worth, and hide no other value.

Whoever may register a schema chooses how many fields a null has room for, how long the symbols of an enum are, and
which defaults a field has. Each case is decoded at once and one by one, in a process that may grow by 256 MiB: each
stands for more bytes of columns than that, and decoding it in parts takes 150 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from keyfold.formats.avro_schema import avro_type
from keyfold.formats.column_width import FIXED_BYTES_MAX, MEMORY_BYTES, TooWide, in_parts
from keyfold.formats.columns import AvroColumn, Column, Decoded, JsonColumn
from keyfold.formats.format import RecordPart
from keyfold.log.avro import varint
from tests.support.avro_words import Json, kept, record
from tests.support.bounded import Bounded
from tests.unit.formats.test_columns import one_by_one

GROWTH_BYTES_MAX = 256 * 1024 * 1024
FRAME = b"\0\0\0\0\1"
WIDE = record("Wide", **{f"f{number}": ["null", "long"] for number in range(2_000)})
EMPTY: Json = {"type": "record", "name": "Item", "fields": []}
WITH_DEFAULT: Json = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "text", "type": "string", "default": "x" * 100_000}],
}


@pytest.fixture(scope="module")
def bounded() -> Iterator[Bounded]:
    with Bounded(GROWTH_BYTES_MAX) as process:
        yield process


def of_parts(column: Column, rows: list[bytes | None]) -> tuple[int, list[str], int]:
    """The number of rows, the errors of some of them, and the number of nulls."""
    batch = pa.record_batch({"value": pa.array(rows, pa.binary())})
    count, wrong, nulls = 0, [], 0
    for found in in_parts(batch, lambda part: column.decode(part.column("value"), None)):
        count += len(found.array)
        nulls += found.array.null_count
        wrong += [mismatch.message for _, mismatch in found.mismatches]
    return count, wrong, nulls


def avro(writer: Json, reader: Json, rows: list[bytes | None], *, is_slow: bool) -> tuple[int, list[str], int]:
    with one_by_one() if is_slow else nullcontext():
        return of_parts(AvroColumn(RecordPart.VALUE, kept(writer), avro_type(reader)), rows)


def json_rows(reader: Json, rows: list[bytes | None]) -> tuple[int, list[str], int]:
    return of_parts(JsonColumn(avro_type(reader)), rows)


def fixed(size: int) -> Json:
    return record("R", at="int", x={"type": "fixed", "name": "F", "size": size})


def a_huge_fixed() -> tuple[Json, Json, list[bytes | None]]:
    return fixed(2**31 - 1), fixed(2**31 - 1), [FRAME + varint(1) + b"abc", None]


def nulls_for_wide_records() -> tuple[Json, Json, list[bytes | None]]:
    return ["null", WIDE], ["null", WIDE], [FRAME + varint(0)] * 16_000


def nulls_in_wide_records() -> tuple[Json, Json, list[bytes | None]]:
    schema = record("R", at="int", wide=["null", WIDE])
    return schema, schema, [FRAME + varint(1) + varint(0)] * 16_000


def a_long_symbol() -> tuple[Json, Json, list[bytes | None]]:
    schema = record("R", suit={"type": "enum", "name": "E", "symbols": ["S" * 1_000_000]})
    return schema, schema, [FRAME + varint(0)] * 400


def a_long_default() -> tuple[Json, Json, list[bytes | None]]:
    return record("Item", at="int"), WITH_DEFAULT, [FRAME + varint(1)] * 4_000


def nulls_in_many_arrays() -> tuple[Json, Json, list[bytes | None]]:
    schema: Json = {"type": "array", "items": ["null", WIDE]}
    return schema, schema, [FRAME + items(20, varint(0))] * 800


def nulls_by_a_writer_that_has_no_records() -> tuple[Json, Json, list[bytes | None]]:
    writer: Json = {"type": "array", "items": "null"}
    return writer, {"type": "array", "items": ["null", WIDE]}, [FRAME + items(20, b"")] * 800


PROPER: dict[str, Callable[[], tuple[Json, Json, list[bytes | None]]]] = {
    "nulls for wide records": nulls_for_wide_records,
    "nulls in wide records": nulls_in_wide_records,
    "nulls in many arrays": nulls_in_many_arrays,
    "nulls by a writer that has no records": nulls_by_a_writer_that_has_no_records,
    "a long symbol": a_long_symbol,
    "a long default": a_long_default,
}


@pytest.mark.sharded
@pytest.mark.parametrize("name", PROPER)
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_wide_column_is_decoded_in_parts(bounded: Bounded, name: str, is_slow: bool) -> None:
    count, wrong, _ = bounded.run(decoded_proper, name, is_slow)
    assert (count, wrong) == (len(PROPER[name]()[2]), [])


def decoded_proper(name: str, is_slow: bool) -> tuple[int, list[str], int]:
    return avro(*PROPER[name](), is_slow=is_slow)


def items(count: int, item: bytes) -> bytes:
    return varint(count) + item * count + varint(0)


TOO_WIDE: dict[str, Callable[[], tuple[Json, Json, list[bytes | None]]]] = {
    "items that are null": lambda: (
        {"type": "array", "items": ["null", WIDE]},
        {"type": "array", "items": ["null", WIDE]},
        [FRAME + items(1, varint(0)), FRAME + items(500_000, varint(0)), FRAME + items(2, varint(0))],
    ),
    "items without bytes that have defaults": lambda: (
        {"type": "array", "items": EMPTY},
        {"type": "array", "items": WITH_DEFAULT},
        [FRAME + items(1, b""), FRAME + items(60_000, b""), FRAME + items(2, b"")],
    ),
}


@pytest.mark.sharded
@pytest.mark.parametrize("name", TOO_WIDE)
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_row_that_is_too_wide_is_a_mismatch_and_affects_no_other_row(
    bounded: Bounded, name: str, is_slow: bool
) -> None:
    count, wrong, nulls = bounded.run(decoded_too_wide, name, is_slow)
    assert (count, nulls) == (3, 1)
    (message,) = wrong
    assert f"needs more than {MEMORY_BYTES} bytes as columns" in message


def decoded_too_wide(name: str, is_slow: bool) -> tuple[int, list[str], int]:
    return avro(*TOO_WIDE[name](), is_slow=is_slow)


def test_nulls_of_a_two_gigabyte_fixed_allocate_nothing(bounded: Bounded) -> None:
    count, wrong, nulls = bounded.run(decoded_fixed)
    assert (count, nulls, len(wrong)) == (2, 2, 1)


def decoded_fixed() -> tuple[int, list[str], int]:
    return avro(*a_huge_fixed(), is_slow=False)


@pytest.mark.parametrize("size", [FIXED_BYTES_MAX, FIXED_BYTES_MAX + 1])
def test_a_fixed_is_decoded_whole_for_any_column(size: int) -> None:
    column = AvroColumn(RecordPart.VALUE, kept(fixed(size)), avro_type(fixed(size)))
    found = column.decode(pa.array([FRAME + varint(7) + b"x" * size, None], pa.binary()), None)
    assert found.array.to_pylist() == [{"at": 7, "x": b"x" * size}, None]
    assert isinstance(column.type, pa.StructType)
    assert pa.types.is_fixed_size_binary(column.type.field("x").type) == (size == FIXED_BYTES_MAX)


def test_json_nulls_of_wide_records_are_decoded(bounded: Bounded) -> None:
    assert bounded.run(json_of_wide) == (16_000, [], 0)


def json_of_wide() -> tuple[int, list[str], int]:
    return json_rows(record("R", wide=["null", WIDE]), [b"{}"] * 16_000)


def test_json_items_that_are_null_are_decoded(bounded: Bounded) -> None:
    count, wrong, nulls = bounded.run(json_of_items)
    assert (count, len(wrong), nulls) == (2, 1, 1)


def json_of_items() -> tuple[int, list[str], int]:
    many = b"[" + b"null," * 500_000 + b"null]"
    return json_rows({"type": "array", "items": ["null", WIDE]}, [b"[null]", many])


def test_parts_are_ordered_and_hold_each_row_once() -> None:
    batch = pa.record_batch({"value": pa.array(range(10))})

    def made(part: pa.RecordBatch) -> list[Any]:
        if len(part) > 3:
            raise TooWide
        return list(part.column("value").to_pylist())

    parts = list(in_parts(batch, made))
    assert [row for part in parts for row in part] == list(range(10))
    assert len(parts) > 3


def test_usual_values_are_never_too_wide() -> None:
    """Large values, and records of many small fields, in one batch of 8 MiB of raw bytes."""
    large = JsonColumn(avro_type("string")).decode(pa.array([b'"' + b"x" * 30_000_000 + b'"'], pa.binary()), None)
    assert large.mismatches == []
    schema = record("R", **{f"f{number}": "long" for number in range(200)})
    column = AvroColumn(RecordPart.VALUE, kept(schema), avro_type(schema))
    row = FRAME + varint(3) * 200
    found: Decoded = column.decode(pa.array([row] * (8 * 1024 * 1024 // len(row)), pa.binary()), None)
    assert found.mismatches == []
