"""The log in the bucket: manifests, indexes, segments, blocks, and names.

Mutations reach behind checksums and compression: a record of a manifest is unpacked, changed, packed and sealed again,
as is a block of a segment, a table of an index.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keyfold.log.arrow import BlockRows, RawBlock, decode_blocks
from keyfold.log.avro import (
    SegmentDamaged,
    SegmentHeader,
    StoredBlock,
    header_bytes,
    parse_block,
    read_blocks,
    read_meta,
    stored_block,
)
from keyfold.log.codec import CODECS, DecompressionFailed, open_codec
from keyfold.log.index import _META, BlockTable, Index, _check
from keyfold.log.manifest import Gap, Hold, Replaced
from keyfold.log.manifest_codec import decode_manifest, encode_manifest
from keyfold.log.names import Place, is_index_name, is_segment_name, parse_name, partition_of_folder
from keyfold.log.record_decoder import decode_raw, decompress_block, read_records
from keyfold.runtime.arrow_types import values_of
from keyfold.runtime.zstd import zstd
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.verify.segment_survey import survey_segment
from keyfold_schemas import schema_text
from tests.support.fuzz.mutate import any_bytes, json_document, other_text, pack, parts_by, text_line, unpack, varints
from tests.support.fuzz.target import Target
from tests.support.hostile import sealed
from tests.support.hostile_index import footer_of, with_footer
from tests.support.logs import MadeLog, records
from tests.support.manifests import compactor_name, empty_manifest, sink_name
from tests.support.segments import SYNC, make

PLACE: Final = Place("topics", "users", 0)
_GOLDEN: Final = Path(__file__).parents[2] / "golden"
_RAW_BYTES_MAX: Final = 1 << 24


# Manifests


def manifest_seeds() -> list[bytes]:
    """Of a new log, of one that was compacted twice, and with everything that a manifest may hold."""
    made = MadeLog(random=Random(1))
    made.append(records("a=1 b=2 a= c=3 =5"))
    made.append(records("a=4 _ b= d=1", 5))
    found = [made.manifest]
    made.compact()
    found.append(made.manifest)
    made.append(records("a=1 d=2", 9))
    made.compact(purge=True, merge=True)
    found.append(made.manifest)
    everything = empty_manifest(
        last_epoch=3,
        gaps=(Gap(0, 3, "a reason", 5),),
        holds=(Hold("far@1", 1, 2, 3),),
        replaced=(Replaced(str(compactor_name(0, 1)), 1, 0),),
        settings={"cleanup.policy": "compact", "retention.ms": "-1"},
        next_offset=3,
        version=2,
    )
    return [encode_manifest(manifest) for manifest in (*found, empty_manifest(), everything)]


def _taken_apart(data: bytes) -> tuple[dict[str, str], bytes] | None:
    """A manifest's header and the bytes of its record."""
    try:
        metadata, position = read_meta(data, 4)
        block = parse_block(memoryview(data)[position + 16 :], None)
        return metadata, zstd.decompress(bytes(block.payload))
    except (ValueError, EOFError, zstd.ZstdError):
        return None


def _resealed(metadata: dict[str, str], body: bytes) -> bytes:
    rest = {k: v for k, v in metadata.items() if k not in {"avro.schema", "keyfold.checksum"}}
    rest = {key: value for key, value in rest.items() if "sha" not in key}
    return sealed(metadata.get("avro.schema", ""), zstd.compress(body, level=1), **rest)


def manifest_body(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change the record of a manifest, and give it a checksum that is right."""
    mine = _taken_apart(data)
    if mine is None:
        return any_bytes(data, others, random)
    bodies = [theirs[1] for theirs in map(_taken_apart, others) if theirs is not None]
    body = random.choice((any_bytes, varints))(mine[1], bodies, random)
    return _resealed(mine[0], body)


def manifest_schema_changed(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change the schema that a manifest was written by, with a checksum that is right."""
    mine = _taken_apart(data)
    if mine is None:
        return any_bytes(data, others, random)
    schema = mine[0].get("avro.schema", schema_text("manifest", 1)).encode()
    changed = json_document(schema, [schema_text("record", 1).encode()], random)
    return _resealed({**mine[0], "avro.schema": changed.decode("utf-8", "replace")}, mine[1])


def manifest_field_added(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Add a field of a newer version to the schema, and any bytes for it."""
    mine = _taken_apart(data)
    if mine is None:
        return any_bytes(data, others, random)
    kinds: list[Any] = ["long", "string", "bytes", ["null", "string"], {"type": "array", "items": "long"}, "boolean",
                        {"type": "map", "values": "bytes"}, {"type": "fixed", "name": "F", "size": 3}, "double",
                        {"type": "enum", "name": "E", "symbols": ["A", "B"]}]  # fmt: skip
    schema = json.loads(mine[0].get("avro.schema", schema_text("manifest", 1)))
    schema["fields"].append({"name": f"added{random.randrange(3)}", "type": random.choice(kinds)})
    body = mine[1] + random.choice((random.randbytes(random.randrange(12)), b"\x02a\0", b"\0"))
    return _resealed({**mine[0], "avro.schema": json.dumps(schema)}, body)


def manifest_header(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change what the header says beside the schema, with a checksum that is right."""
    mine = _taken_apart(data)
    if mine is None:
        return any_bytes(data, others, random)
    key = random.choice(sorted(set(mine[0]) - {"avro.schema"}))
    value = random.choice((other_text(mine[0][key], random), str(random.randrange(-2, 4)), "zstandard"))
    return _resealed({**mine[0], key: value.encode("utf-8", "replace").decode()}, mine[1])


def decode_manifest_again(data: bytes) -> None:
    """A manifest that is read can be written, and says the same then."""
    manifest = decode_manifest(data, PLACE)
    again = decode_manifest(encode_manifest(manifest), PLACE)
    # As text: fields that only a newer version knows may hold NaN, which equals nothing. The layout of their schema
    # may change.
    said, said_again = (repr(replace(each, writer_schema="")) for each in (manifest, again))
    assert said == said_again, "it says something else when it is written again"


# Segments


@cache
def _segments() -> list[bytes]:
    made = [make(records("a=1 b=2 a= c=3 =5 d=6 e=7"), codec=codec, block_bytes=20).data for codec in CODECS]
    return [*made, *(path.read_bytes() for path in sorted(_GOLDEN.glob("segment-*.avro")))]


def _blocks(data: bytes) -> tuple[SegmentHeader, list[StoredBlock]] | None:
    try:
        header, *blocks = read_blocks(data)
    except SegmentDamaged:
        return None
    assert isinstance(header, SegmentHeader)
    return header, [block for block in blocks if isinstance(block, StoredBlock)]


def segment_block(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Unpack a block, change its bytes or its count, and pack it; or move, drop and repeat blocks."""
    mine = _blocks(data)
    if mine is None or not mine[1]:
        return any_bytes(data, others, random)
    header, blocks = mine
    codec = open_codec(header.codec)
    stored = [bytes(block.stored) for block in blocks]
    at = random.randrange(len(blocks))
    choice = random.randrange(8)
    if choice == 0:
        random.shuffle(stored)
    elif choice == 1:
        stored[at : at + 1] = [stored[at]] * random.randrange(3)
    else:
        count = blocks[at].record_count
        try:
            raw = bytes(codec.decompress(blocks[at].payload, _RAW_BYTES_MAX))
        except DecompressionFailed:
            return any_bytes(data, others, random)
        if choice == 2:
            count = random.choice((1, count + 1, max(1, count - 1), 2**31, 2**62))
        else:
            raw = random.choice((any_bytes, varints))(raw, [raw], random)
        stored[at] = stored_block(count, bytes(codec.compress(raw)), header.sync_marker)
    other = random.choice(CODECS) if random.randrange(20) == 0 else header.codec
    return header_bytes(other, header.sync_marker) + b"".join(stored)


def decode_segment(data: bytes) -> None:
    """Reading a segment alone and rebuilding its index accept the same bytes."""
    try:
        read: object = [record.offset for record in read_records(data)]
    except SegmentDamaged as error:
        read = error
    store = MemoryStore()
    name = sink_name(0)
    store.put(PLACE.key(str(name)), data, Create())
    surveyed = survey_segment(store, PLACE, name, len(data), 0)
    assert read == surveyed.index.ints("offset").tolist(), f"the survey took it, its reader: {read}"


# Blocks, by the decoder for many records at once


def block_seeds() -> list[bytes]:
    """Raw bytes of blocks with their indexes' rows."""
    found = []
    for text in ("a=1 b=2 a= c=3 =5 d=6 e=7", "a=1", "= = ="):
        made = make(records(text), codec="null", block_bytes=1 << 20)
        header, blocks = _blocks(made.data) or (None, [])
        assert header is not None
        rows = np.stack([made.index.ints(name).astype(np.int64) for name in ("offset", "position", "length")])
        found.append(pack(bytes(blocks[0].payload), rows.tobytes()))
    return found


def decode_raw_block(data: bytes) -> None:
    """Both decoders of a block agree: what the one for columns takes, the one for records takes, and they are equal."""
    raw, numbers = unpack(data, 2)
    rows = np.frombuffer(numbers[: len(numbers) // 24 * 24], np.int64).reshape(3, -1)
    if not rows.shape[1]:
        return
    count = int(rows.shape[1])
    # An index has lengths and positions of 32 bits.
    position, length = (row.astype(np.int32).astype(np.int64) for row in rows[1:])
    batch = decode_blocks([RawBlock(0, raw, count)], BlockRows(rows[0], position, length))
    one_by_one = decode_raw(raw, count)
    assert batch.column("offset").to_pylist() == [record.offset for record in one_by_one]
    for name in ("key", "value", "leader_epoch"):
        assert batch.column(name).to_pylist() == [getattr(record, name) for record in one_by_one], name
    pairs = [[(header["name"], header["value"]) for header in each] for each in values_of(batch.column("headers"))]
    assert pairs == [list(record.headers) for record in one_by_one]


def decode_stored_block(data: bytes) -> None:
    """A stored block by itself, under each codec."""
    codec, stored = unpack(data, 2)
    block = parse_block(memoryview(stored), SYNC)
    raw = decompress_block(block, open_codec(CODECS[codec[0] % len(CODECS)] if codec else "null"))
    decode_raw(bytes(raw), block.record_count)


def stored_block_seeds() -> list[bytes]:
    """Blocks as they lie in segments."""
    found = []
    for number, codec in enumerate(CODECS):
        _, blocks = _blocks(make(records("a=1 b=2 a="), codec=codec).data) or (None, [])
        found.append(pack(bytes([number]), bytes(blocks[0].stored)))
    return found


# Indexes


@cache
def _indexes() -> list[bytes]:
    made = [make(records("a=1 b=2 a= c=3 =5 d=6 e=7"), codec=codec, block_bytes=20) for codec in CODECS]
    return [*(each.finished.index_data for each in made), *(p.read_bytes() for p in sorted(_GOLDEN.glob("*.parquet")))]


def _table_of(data: bytes) -> pa.Table | None:
    """An index as Arrow reads it. None where keyfold refuses it: Arrow believes whatever an earlier change says."""
    try:
        Index.parse(data)
        return pq.read_table(pa.BufferReader(data))
    except (SegmentDamaged, ValueError, KeyError, OSError, pa.ArrowException):
        return None


def index_table(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change values, columns or metadata of an index, and write it as Parquet that is sound."""
    table = _table_of(data)
    if table is None:
        return any_bytes(data, others, random)
    meta = dict(table.schema.metadata or {})
    choice = random.randrange(5)
    if choice == 0 and meta:
        key = random.choice(sorted(meta))
        meta[key] = any_bytes(meta[key], [meta[key]], random)
    elif choice == 1:
        meta = _with_block_table(meta, random)
    elif choice == 2:
        table = table.select(random.sample(table.column_names, random.randrange(1, len(table.column_names) + 1)))
    elif choice == 3:
        table = pa.concat_tables([table, table.slice(random.randrange(len(table) + 1))])
    else:
        at = random.randrange(table.num_columns)
        column = table.column(at).to_pylist()
        if not column:
            return data
        column[random.randrange(len(column))] = random.choice((None, 0, -1, 2**31 - 1, b"x", True))
        try:
            table = table.set_column(at, table.field(at).with_nullable(True), pa.array(column, table.field(at).type))
        except (pa.ArrowException, TypeError, OverflowError):
            return any_bytes(data, others, random)
    if random.randrange(8):
        values = {name: meta.get(name.encode(), b"").decode("utf-8", "replace") for name in _META}
        meta[b"keyfold.check"] = _check(values).encode()
    out = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata(meta),
        out,
        row_group_size=random.choice((None, 1, 3)),
        write_page_checksum=True,
        use_dictionary=random.randrange(8) == 0,
        compression=random.choice(("zstd", "none")),
        store_schema=False,
    )
    return bytes(out.getvalue())


_PAGES: Final[tuple[dict[str, Any], ...]] = (
    {"use_dictionary": True},
    {"column_encoding": {"key": "DELTA_BYTE_ARRAY"}},
    {"column_encoding": {"key": "DELTA_LENGTH_BYTE_ARRAY"}},
    {"column_encoding": {"key": "DELTA_LENGTH_BYTE_ARRAY", "block": "DELTA_BINARY_PACKED"}, "compression": "none"},
    {"compression": "gzip"},
    {"data_page_version": "2.0"},
    {"data_page_size": 1, "write_batch_size": 1, "compression": "none"},
)
_PAGE_HEAD_BYTES: Final = 80


def index_pages(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Write an index in other encodings, codecs and pages, without checksums, and change the beginning of a page."""
    table = _table_of(data)
    if table is None:
        return any_bytes(data, others, random)
    out = pa.BufferOutputStream()
    pq.write_table(table, out, **{"use_dictionary": False, "store_schema": False, **random.choice(_PAGES)})
    written = bytes(out.getvalue())
    if random.randrange(3) == 0:
        return written
    start = int(pq.read_metadata(pa.BufferReader(written)).row_group(0).column(random.randrange(3)).data_page_offset)
    head = written[start : start + _PAGE_HEAD_BYTES]
    changed = (random.choice((any_bytes, varints))(head, [head], random) + head)[: len(head)]
    return written[:start] + changed + written[start + len(head) :]


def index_footer(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change the footer of an index, and say how long it is then."""
    footers = [footer_of(other) for other in others]
    return with_footer(data, random.choice((any_bytes, varints))(footer_of(data), footers, random))


def _with_block_table(meta: dict[bytes, bytes], random: Random) -> dict[bytes, bytes]:
    """The same metadata with other numbers in the block table."""
    try:
        blocks = BlockTable.parse(meta[b"keyfold.blocks"])
    except (ValueError, KeyError, DecompressionFailed):
        return meta
    columns = [blocks.position, blocks.length, blocks.record_count, blocks.first_offset, blocks.crc32]
    columns = [np.array(column, np.int64) for column in columns]
    if len(columns[0]):
        chosen = random.choice(columns)
        chosen[random.randrange(len(chosen))] = random.choice((0, -1, 1, 2**31, 2**62, -(2**63)))
    with np.errstate(over="ignore"):
        return {**meta, b"keyfold.blocks": BlockTable(*columns).encode()}


def decode_index(data: bytes) -> None:
    """All ways to read an index: as a whole, in parts, backwards, and its table of blocks alone."""
    ways: tuple[Callable[[], object], ...] = (
        lambda: Index.block_table(data[8:]),
        lambda: [len(part) for part in Index.parts(data)],
        lambda: [len(rows) for _, rows in Index.groups_backwards(data, columns=["offset", "key"])],
        lambda: Index.parse(data, columns=["offset", "is_tombstone"]).is_tombstone,
    )
    for way in ways:
        with contextlib.suppress(SegmentDamaged):
            way()
    index = Index.parse(data)
    assert Index.parse(index.encode()).rows.equals(index.rows), "it says something else when it is written again"


# Names


def decode_name(data: bytes) -> None:
    """Keys as a listing gives them: a name that is read is written the same."""
    name = data.decode("utf-8", "replace")
    partition_of_folder(name)
    parsed = parse_name(name)
    if parsed is not None:
        assert str(parsed) == name
    assert (parsed is not None) == (is_segment_name(name) or is_index_name(name))


def name_seeds() -> list[bytes]:
    """Segments, indexes and folders."""
    names = (
        str(sink_name(0)),
        str(sink_name(7).index),
        str(compactor_name(2**60, 10**8)),
        "partition=0",
        "partition=12",
    )
    return [name.encode() for name in names]


_part = partial(parts_by, any_bytes)

LOG_TARGETS: Final = (
    Target("manifest", manifest_seeds, decode_manifest_again,
           ("keyfold.log.manifest_codec", "keyfold.log.manifest_schema", "keyfold.log.manifest"),
           (any_bytes, manifest_body, manifest_body, manifest_schema_changed, manifest_field_added, manifest_header)),
    Target("segment", _segments, decode_segment, ("keyfold.log.avro", "keyfold.log.record_decoder",
     "keyfold.verify.segment_survey"),
           (any_bytes, segment_block, segment_block)),
    Target("stored-block", stored_block_seeds, decode_stored_block, ("keyfold.log.record_decoder", "keyfold.log.codec"),
           (parts_by(any_bytes, any_bytes),), (SegmentDamaged,)),
    Target("block-columns", block_seeds, decode_raw_block,
           ("keyfold.log.arrow", "keyfold.log.arrow_headers", "keyfold.log.arrow_numbers"),
           (_part(any_bytes), _part(varints)), (SegmentDamaged,)),
    Target("index", _indexes, decode_index, ("keyfold.log.index", "keyfold.log.index_pages"),
           (any_bytes, index_table, index_pages, index_footer), (SegmentDamaged,)),
    Target("name", name_seeds, decode_name, ("keyfold.log.names",), (text_line,)),
)  # fmt: skip
