"""What fuzzing has found: each of these objects once raised an error that no reader expects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyfold.config.config_file import parse_json
from keyfold.errors import ConfigError, FormatTooNew
from keyfold.formats.avro_schema import Logical, NotAvro, Primitive, Union, avro_type, parse_avro
from keyfold.formats.column_type import column_for
from keyfold.formats.connect_json import Envelope
from keyfold.formats.format import Format, RecordPart
from keyfold.formats.logical_types import fit_decimal
from keyfold.log.avro import SegmentDamaged
from keyfold.log.index import Index
from keyfold.log.manifest_codec import decode_manifest, encode_manifest
from keyfold.replicas.documents import Registration, registration_document, registration_of
from keyfold.restore.group_offsets import parse_offsets
from keyfold.store.documents import DocumentUnreadable
from keyfold_compactor.options import CompactOptions
from keyfold_schemas import load_schema
from keyfold_sink.worker.desired_state import DesiredState, DesiredStateUnreadable, decode, encode
from tests.support.avro_words import kept
from tests.support.bounded import Bounded
from tests.support.hostile import manifest_file
from tests.support.logs import PLACE, records
from tests.support.segments import make
from tests.unit.log.test_hostile_bombs import body_before

MANY_DIGITS = "9" * 5000


@pytest.fixture(scope="module")
def bounded() -> Iterator[Bounded]:
    with Bounded() as process:
        yield process


def field(name: object, **more: object) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": "int", **more}]}


def test_a_manifest_with_a_named_type_in_an_unknown_field_is_readable_but_not_writable() -> None:
    schema = load_schema("manifest", 1)
    (passes,) = (each for each in schema["fields"] if each["name"] == "passes")
    passes["name"] = "added"
    manifest = decode_manifest(manifest_file(json.dumps(schema), body_before("nothing")), PLACE)
    with pytest.raises(FormatTooNew, match="upgrade keyfold"):
        encode_manifest(manifest)


@pytest.mark.parametrize("regex", ["a{99999999999999999999}", "(" * 5000 + ")" * 5000])
def test_a_registration_with_an_invalid_pattern_is_refused(regex: str) -> None:
    config = {"s3.bucket.name": "far", "topics.regex": regex}
    with pytest.raises(DocumentUnreadable):
        registration_of(registration_document(Registration("far", config)), "topics/_replicas/far.json")


ENDLESS = {"s3.bucket.name": "far", "topics.regex": "(a+)+$"}


def endless_registration() -> Registration:
    return registration_of(registration_document(Registration("far", ENDLESS)), "topics/_replicas/far.json")


@pytest.mark.sharded
@pytest.mark.parametrize(
    "match",
    [
        lambda topic: endless_registration().covers(topic),
        lambda topic: endless_registration().choose(["a", topic, "b"]),
        lambda topic: CompactOptions.parse(ENDLESS).wants(topic),
    ],
    ids=["a topic of a replica", "the topics of a replica", "a topic of a compactor"],
)
def test_matching_a_pattern_that_never_finishes_is_stopped(match: Callable[[str], object]) -> None:
    with pytest.raises(ConfigError, match=r"topics\.regex.*took longer than 2 s"):
        match("a" * 100 + "!")


def test_a_pattern_that_could_run_for_ever_still_matches_correctly() -> None:
    assert endless_registration().choose(["b", "aa", "a"]) == ["a", "aa"]
    assert CompactOptions.parse(ENDLESS).wants("aa")


SCHEMAS: dict[str, Any] = {
    "a field whose name is true": field(True),
    "a field whose name is half of a surrogate pair": field("\ud800"),
    "a field whose name is a list": field([]),
    "a field whose name is an object": field({"a": 1}),
    "aliases that are no texts": field("a", aliases=[1]),
    "a fixed of a list": {"type": "fixed", "name": "F", "size": [3]},
    "a fixed of true": {"type": "fixed", "name": "F", "size": True},
    "a fixed of a negative size": {"type": "fixed", "name": "F", "size": -8},
    "a fixed larger than any value": {"type": "fixed", "name": "F", "size": 2**31},
}


@pytest.mark.parametrize("what", SCHEMAS)
def test_a_schema_with_members_of_wrong_types_is_invalid_avro(what: str) -> None:
    with pytest.raises(NotAvro):
        parse_avro(json.dumps(SCHEMAS[what]))


@pytest.mark.parametrize("value", [None, 5])
def test_an_index_with_nullable_offsets_is_damaged(value: int | None) -> None:
    table = pq.read_table(pa.BufferReader(make(records("a=1 b=2 c=3")).finished.index_data))
    offsets = pa.array([0, 1, value], pa.int64())
    at = table.schema.get_field_index("offset")
    out = pa.BufferOutputStream()
    changed = table.set_column(at, pa.field("offset", pa.int64()), offsets)
    pq.write_table(changed, out, write_page_checksum=True)
    data = out.getvalue().to_pybytes()
    with pytest.raises(SegmentDamaged, match="column"):
        Index.parse(data)
    with pytest.raises(SegmentDamaged, match="column"):
        list(Index.parts(data))
    with pytest.raises(SegmentDamaged, match="column"):
        list(Index.groups_backwards(data, columns=["offset"]))


@pytest.mark.parametrize("unknown", [2**64, 1e300])
def test_a_desired_state_with_unwritable_numbers_is_refused(unknown: float) -> None:
    document = {**json.loads(encode(DesiredState())), "flushes": unknown}
    with pytest.raises(DesiredStateUnreadable):
        decode(json.dumps(document).encode(), "orders.json")


def test_a_desired_state_nested_too_deeply_to_be_written_is_refused() -> None:
    text = encode(DesiredState()).decode().rstrip().removesuffix("}") + f', "later": {"[" * 400}{"]" * 400}}}'
    with pytest.raises(DesiredStateUnreadable):
        decode(text.encode(), "orders.json")


@pytest.mark.parametrize("text", ["users,0,1\rusers,1,2\n", f"users,{MANY_DIGITS},1\n", f"users,0,{MANY_DIGITS}\n"])
def test_an_offsets_file_that_is_not_csv_or_has_huge_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"offsets\.csv"):
        parse_offsets(text, "offsets.csv")


@pytest.mark.parametrize("value", [MANY_DIGITS, "[" * 100_000])
def test_a_configuration_that_json_cannot_represent_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"sink\.json"):
        parse_json(f'{{"a": {value}}}', "sink.json")


NINE_DIGITS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4}


def column_of_decimals(kind: str, value: bytes, scale: int) -> list[str]:
    """Decode a value into a column of decimals; the mismatches."""
    writer = {"type": "bytes", "logicalType": "decimal", "precision": scale + 1, "scale": scale}
    part, schemas = RecordPart.VALUE, kept(writer)
    column = column_for(part, Format(kind), schemas, avro_type(NINE_DIGITS))
    return [str(mismatch) for _, mismatch in column.decode(pa.array([value, None]), None).mismatches]


@pytest.mark.parametrize(
    ("kind", "value", "scale"),
    [
        *(("avro", b"\0\0\0\0\1\2a", scale) for scale in (40, 100, 10**6, 10**8, 2**31 - 1, 2**40)),
        *(("json", f"1e-{scale}".encode(), 1) for scale in (5, 40, 10**6, 10**8, 2**31 - 1, 2**40)),
        *(("json", f"1e{scale}".encode(), 1) for scale in (5, 40, 10**8, 2**40)),
    ],
)
def test_a_decimal_with_a_huge_exponent_is_a_mismatch(bounded: Bounded, kind: str, value: bytes, scale: int) -> None:
    """Arrow rescaled it by a table of powers of ten, read far beyond the table, and the process died of SIGSEGV."""
    (mismatch,) = bounded.run(column_of_decimals, kind, value, scale)
    assert "not exact in 9 digits with 4 decimal places" in mismatch


@pytest.mark.parametrize(
    ("text", "scale", "fits"),
    [
        ("0", 4, "0.0000"), ("-0.00000000000", 4, "-0.0000"), ("0e-999999999", 4, "0.0000"), ("12345", 4, "12345.0000"),
        ("1.50000000000000000000", 4, "1.5000"), ("-99999.9999", 4, "-99999.9999"), ("123456", 4, None),
        ("0.00001", 4, None), ("1.00001", 4, None), ("1e5", 3, "100000.000"), ("1e6", 3, None),
        ("0.1", 9, "0.100000000"), ("1", 9, None),
    ],
)  # fmt: skip
def test_a_decimal_fits_exactly_or_not_at_all(text: str, scale: int, fits: str | None) -> None:
    target = Logical("decimal", 9, scale)
    if fits is None:
        with pytest.raises(ValueError, match=f"not exact in 9 digits with {scale} decimal places"):
            fit_decimal(Decimal(text), target)
    else:
        assert str(fit_decimal(Decimal(text), target)) == fits


def test_a_scale_with_thousands_of_digits_is_invalid() -> None:
    schema = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "9" * 5_000}}
    assert Envelope(schema).type == Union((Primitive("null"), Primitive("bytes")))
