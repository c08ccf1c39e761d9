"""Small objects that claim to be large: each is `Corrupt` by name, and costs no more memory than it is worth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keyfold.log.avro import varint
from keyfold.log.codec import CODECS
from keyfold.log.index import Index, read_index
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import Place, parse_name
from keyfold.log.record import Record
from keyfold.log.rewrite import SegmentRewriter
from keyfold.read.log import Log
from keyfold.runtime.clock import ManualClock
from keyfold.verify.partition import verify_partition
from keyfold.verify.segment_survey import survey_segment
from keyfold_schemas import load_schema, schema_text
from tests.support.bounded import Bounded
from tests.support.hostile import manifest_file, plant_block, sealed, zeros_deflate, zeros_zstd
from tests.support.hostile_index import index_file
from tests.support.logs import MadeLog, records
from tests.support.segments import make, rewrite

PLACE = Place("topics", "users", 0)
OURS = schema_text("manifest", 1)
GIB = 1 << 30
BOMB_BYTES = 6_400_000_000


@pytest.fixture(scope="module")
def bounded() -> Iterator[Bounded]:
    with Bounded() as process:
        yield process


def with_field(kind: Any, default: object = None) -> str:
    """keyfold's schema with one field more."""
    schema = load_schema("manifest", 1)
    schema["fields"].append({"name": "added", "type": kind, "default": default})
    return json.dumps(schema)


def doubled(depth: int) -> Any:
    """A record of two records of two records ... of nothing."""
    kind: Any = "null"
    for level in range(depth):
        inner = kind if isinstance(kind, str) else kind["name"]
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": inner}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    return kind


def nested(depth: int) -> Any:
    kind: Any = "long"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


NULLS = {"type": "array", "items": "null"}
OF_ITS_OWN = json.dumps({"type": "record", "name": "M", "fields": [{"name": "a", "type": NULLS}]})
LOOP = {"type": "record", "name": "Loop", "fields": [{"name": "next", "type": ["null", "Loop"]}]}

MANIFESTS: dict[str, Callable[[], bytes]] = {
    "a schema of its own and 2^40 nulls": lambda: manifest_file(OF_ITS_OWN, varint(1 << 40) + varint(0)),
    "the same not compressed": lambda: sealed(OF_ITS_OWN, varint(1 << 40) + varint(0), avro_codec="null"),
    "2^40 nulls in an added field": lambda: manifest_file(with_field(NULLS, []), body_before_added() + varint(1 << 40)),
    "2^40 nulls in nested records": lambda: manifest_file(with_field(doubled(40)), body_before_added()),
    "an array of empty records": lambda: manifest_file(
        with_field({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, []),
        body_before_added() + varint(1 << 40),
    ),
    "a record that contains itself": lambda: manifest_file(with_field(LOOP), body_before_added() + varint(1) * 10**6),
    "arrays nested 100,000 deep": lambda: manifest_file(
        f'{{"type":"record","name":"M","fields":[{{"name":"a","type":{"[" * 100_000}"null"{"]" * 100_000}}}]}}', b""
    ),
    "arrays nested 300 deep": lambda: manifest_file(
        with_field(nested(300), []), body_before_added() + varint(1) * 10**6
    ),
    "8 GiB": lambda: sealed(OURS, zeros_zstd(8 * GIB, checksum=False)),
    "8 GiB that claim to be 1 KiB": lambda: sealed(OURS, zeros_zstd(8 * GIB, says=1024, checksum=False)),
    "a size that no machine has": lambda: sealed(OURS, zeros_zstd(1024, says=2**63, checksum=False)),
    "8 GiB in deflate": lambda: sealed(OURS, zeros_deflate(8 * GIB), avro_codec="deflate"),
    "2^40 replaced objects": lambda: manifest_file(OURS, body_before("replaced") + varint(1 << 40)),
    "millions of replaced objects without a name": lambda: manifest_file(
        OURS, body_before("replaced") + varint(5_000_000) + bytes(15_000_001)
    ),
    "millions of passes": lambda: manifest_file(OURS, body_before("passes") + varint(8_000_000) + bytes(16_000_000)),
    "millions of passes, each in a block of its own": lambda: manifest_file(
        OURS, body_before("passes") + b"\x02\0\0" * 5_000_000
    ),
    "millions of settings": lambda: manifest_file(
        OURS, body_before("settings") + varint(2_000_000) + b"".join(b"\x0c%06x\0" % i for i in range(2_000_000))
    ),
}  # fmt: skip


def body_before(field: str) -> bytes:
    """The record of an empty log up to this field, and nothing behind."""
    numbers = {"log_id": b"\0", "topic": b"\x0ausers", "topic_id": b"\0", "cluster_id": b"\0", "sync_marker": b"\0",
               "sink": bytes(5), "compactor": bytes(5)}  # fmt: skip
    body = b""
    for known in load_schema("manifest", 1)["fields"]:
        if known["name"] == field:
            return body
        body += numbers.get(known["name"], b"\0")
    return body


def body_before_added() -> bytes:
    return body_before("added")


def decode(data: bytes) -> str:
    return repr(decode_manifest(data, PLACE))[:200]


@pytest.mark.parametrize("attack", MANIFESTS)
def test_a_manifest_decompression_bomb_is_corrupt(bounded: Bounded, attack: str) -> None:
    data = MANIFESTS[attack]()
    assert len(data) < 20_000_000
    assert bounded.run(decode, data).startswith("Corrupt: users-0: the manifest `topics/users/partition=0/_manifest")


def test_the_valid_body_that_the_attacks_modify_is_readable() -> None:
    assert decode_manifest(manifest_file(OURS, body_before("nothing")), PLACE).topic == "users"
    added = decode_manifest(manifest_file(with_field(nested(3), []), body_before_added() + b"\x02\x02\0\0\0"), PLACE)
    assert added.unknown == {"added": [[[]]]}


# Segments

PAYLOADS: dict[str, tuple[str, Callable[[], bytes], int]] = {
    "zstandard": ("zstandard", lambda: zeros_zstd(BOMB_BYTES), 1),
    "zstandard that claims to be small": ("zstandard", lambda: zeros_zstd(BOMB_BYTES, says=1000), 1),
    "zstandard of many records": ("zstandard", lambda: zeros_zstd(2**31 - 1), 2**31 // 7),
    "zstandard of one record and a rest": ("zstandard", lambda: zeros_zstd(2**31 - 1), 1),
    "deflate": ("deflate", lambda: zeros_deflate(BOMB_BYTES), 1),
    "deflate of many records": ("deflate", lambda: zeros_deflate(BOMB_BYTES), 10**6),
}


def planted(attack: str) -> MadeLog:
    made = MadeLog(clock=ManualClock())
    codec, payload, record_count = PAYLOADS[attack]
    plant_block(made, codec, payload(), BOMB_BYTES, record_count=record_count)
    return made


def cat(attack: str) -> list[Record]:
    made = planted(attack)
    return [*Log(made.store, "topics", "users", clock=made.clock, random=Random(1)).read(0)]


def verify(attack: str) -> list[str]:
    made = planted(attack)
    return [f.kind.value for f in verify_partition(made.store, PLACE, clock=made.clock, random=Random(1)).findings]


def survey(attack: str) -> str:
    made = planted(attack)
    (segment,) = made.manifest.segments
    name = parse_name(segment.name)
    assert name is not None
    return repr(survey_segment(made.store, PLACE, name, segment.size_bytes, 0))[:200]


def compact(attack: str) -> str:
    made = planted(attack)
    (segment,) = made.manifest.segments
    index = read_index(made.store, PLACE, segment)
    rewriter = SegmentRewriter(sync_marker=made.manifest.sync_marker, codec="snappy")
    try:
        rewriter.add(
            index, None, np.ones(1, bool), None, lambda s, n: made.store.get_range(PLACE.key(segment.name), s, n)
        )
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "moved"


@pytest.mark.sharded
@pytest.mark.parametrize("attack", PAYLOADS)
@pytest.mark.parametrize("reader", [cat, survey])
def test_a_block_decompression_bomb_is_corrupt(bounded: Bounded, reader: Callable[[str], str], attack: str) -> None:
    assert str(bounded.run(reader, attack)).startswith("Corrupt: users-0: ")


@pytest.mark.sharded
@pytest.mark.parametrize("attack", PAYLOADS)
def test_verify_reports_a_block_decompression_bomb(bounded: Bounded, attack: str) -> None:
    found = bounded.run(verify, attack)
    assert {"block-damaged", "index-differs"} & set(found), found


@pytest.mark.parametrize("attack", ["zstandard", "zstandard of one record and a rest", "deflate"])
def test_the_compactor_does_not_decompress_a_block_bomb(bounded: Bounded, attack: str) -> None:
    assert bounded.run(compact, attack).startswith("SegmentDamaged: ")


# Indexes

INDEXES: dict[str, tuple[int, int]] = {
    "a row group of any size": (1_000_000, 0),
    "keys that no record has room for": (1, 100_000_000),
}


def planted_index(attack: str) -> bytes:
    """An index whose key column is a bomb, with a footer that is right."""
    row_count, key_bytes = INDEXES[attack]
    keys = pa.array([bytes(key_bytes)], pa.binary()) if key_bytes else pa.nulls(row_count, pa.binary())
    return index_file(keys)


def parse(data: bytes) -> str:
    try:
        return str(len(Index.parse(data)))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


def parse_parts(data: bytes) -> str:
    try:
        return str(sum(len(part) for part in Index.parts(data)))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.sharded
@pytest.mark.parametrize("attack", INDEXES)
@pytest.mark.parametrize("reader", [parse, parse_parts])
def test_an_index_decompression_bomb_is_damaged(bounded: Bounded, reader: Callable[[bytes], str], attack: str) -> None:
    found = bounded.run(reader, planted_index(attack))
    assert "a row group" in found, found


# What is large and right


def large(codec: str, n_bytes: int) -> int:
    """Write and read back records of one large field each; how many came back as they were."""
    many = b"ab" * (n_bytes // 2)
    batch = [
        Record(0, 1, "CreateTime", b"k", many, (), 0),
        Record(1, 1, "CreateTime", many, b"v", (), 0),
        Record(2, 1, "CreateTime", b"k", None, (("h", many), ("i", many)), 300),
        Record(3, 1, "CreateTime", many, many, (("h", None),), 0),
        Record(4, 1, "CreateTime", None, b"small", (), 0),
    ]
    made = make(batch, codec=codec)
    again = rewrite([made], [[True] * 5], codec="zstandard" if codec == "null" else "null")
    return sum(a == b == c for a, b, c in zip(batch, made.records(), again.records(), strict=True))


@pytest.mark.sharded
@pytest.mark.parametrize("codec", CODECS)
def test_a_record_larger_than_any_block_is_readable(codec: str) -> None:
    assert large(codec, 20_000_000) == 5


def test_a_highly_compressible_hundred_megabyte_record_is_readable() -> None:
    batch = [Record(0, 1, "CreateTime", b"k", bytes(120_000_000), (), 0)]
    made = make(batch)
    assert len(made.data) < 20_000
    assert made.records() == batch


def test_a_log_with_a_highly_compressible_record_is_read_and_verified() -> None:
    made = MadeLog(clock=ManualClock())
    batch = [*records("a=1"), Record(1, 1000, "CreateTime", b"b", bytes(20_000_000), (), 0)]
    made.append(batch)
    assert [*Log(made.store, "topics", "users", clock=made.clock, random=Random(1)).read(0)] == batch
    assert verify_partition(made.store, PLACE, clock=made.clock, random=Random(1)).is_sound
