"""Objects as an attacker writes them who may put any bytes into the bucket."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from typing import Any, Final
from unittest.mock import patch

import fastavro
import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from keyfold.log import manifest_codec
from keyfold.log.avro import header_bytes, stored_block
from keyfold.log.index import ROWS, BlockTable, Index
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold.runtime.zstd import zstd
from keyfold.store.api import Create, ObjectStore, Update
from tests.support.logs import MadeLog
from tests.support.manifests import entry

_RLE_BYTES: Final = 128 * 1024


def forged(manifest: Manifest) -> bytes:
    """The bytes of a manifest that keyfold refuses to write, with a checksum that is right."""
    with patch.object(manifest_codec, "faults", lambda _: []):
        return manifest_codec.encode_manifest(manifest)


def manifest_file(schema: str, body: bytes, **metadata: str) -> bytes:
    """A manifest with any schema and any bytes of a record, compressed and with a checksum that is right."""
    return sealed(schema, zstd.compress(body, level=3), **metadata)


def sealed(schema: str, block: bytes, **metadata: str) -> bytes:
    """The same with a block as it is stored."""
    header = {"avro.schema": schema, "avro.codec": "zstandard", "keyfold.format": "1", "keyfold.features": ""}
    header |= {"keyfold.min.reader": "1", "keyfold.min.writer": "1"}
    header |= {key.replace("_", "."): value for key, value in metadata.items()}
    return manifest_codec._sealed({key: value.encode() for key, value in header.items()}, block)


def manifest_by(schema: dict[str, Any], document: dict[str, Any]) -> bytes:
    """A manifest that holds `document` by another schema than keyfold's."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), document)
    return manifest_file(json.dumps(schema), body.getvalue())


def plant(store: ObjectStore, key: str, data: bytes) -> None:
    """Put `data` in the place of an object that is there."""
    store.put(key, data, Update(store.head(key).etag))


def plant_manifest(store: ObjectStore, place: Place, manifest: Manifest) -> None:
    """Put a forged manifest in the place of the partition's."""
    plant(store, place.manifest_key, forged(manifest))


def zeros_zstd(n_bytes: int, *, says: int | None = None, checksum: bool = True) -> bytes:
    """A frame of zstandard with `n_bytes` zeros, four bytes for each 128 KiB; `says` is the size that it claims."""
    size = n_bytes if says is None else says
    blocks, rest = divmod(n_bytes, _RLE_BYTES)
    runs = [_RLE_BYTES] * blocks + ([rest] if rest else [])
    frame = bytearray(b"\x28\xb5\x2f\xfd")
    # Eight bytes of content size, no window of its own (128 KiB), a checksum of the content.
    frame += bytes([0b1100_0000 | (0b100 if checksum else 0), 7 << 3]) + size.to_bytes(8, "little")
    for number, run in enumerate(runs):
        is_last = number == len(runs) - 1
        frame += (run << 3 | 1 << 1 | is_last).to_bytes(3, "little") + b"\0"
    return bytes(frame) + (b"\0" * 4 if checksum else b"")


def zeros_deflate(n_bytes: int) -> bytes:
    """A raw deflate stream with at least this number of zeros, a thousandth of their size."""
    piece_bytes = 1 << 26
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(bytes(piece_bytes)) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece * -(-n_bytes // piece_bytes) + zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS).flush()


def index_of_one(made: MadeLog, codec: str, stored: bytes, raw_bytes: int) -> Index:
    """The index of a segment of one block with one record, whatever is in it."""
    rows = pa.table(
        {
            "offset": [made.sink.manifest.next_offset],
            "timestamp": [0],
            "key": [None],
            "is_tombstone": [False],
            "cleaned_epoch": [None],
            "block": [0],
            "position": [0],
            "length": [min(raw_bytes, 2**31 - 1)],
        },
        schema=ROWS,
    )
    marker = made.sink.manifest.sync_marker
    columns = ([len(header_bytes(codec, marker))], [len(stored)], [1], [0], [crc32(stored)])
    return Index(rows, BlockTable(*(np.array(c, np.int64) for c in columns)), codec, marker)


def plant_block(made: MadeLog, codec: str, payload: bytes, raw_bytes: int, *, record_count: int = 1) -> SegmentEntry:
    """Commit a segment of one block with this payload, and an index and a manifest that agree with it."""
    marker = made.sink.manifest.sync_marker
    stored = stored_block(record_count, payload, marker)
    return plant_segment(
        made, header_bytes(codec, marker) + stored, index_of_one(made, codec, stored, raw_bytes).encode()
    )


def plant_segment(made: MadeLog, data: bytes, index_data: bytes, *, record_count: int = 1) -> SegmentEntry:
    """Commit a segment and an index, whatever they are."""
    base = made.sink.refresh().next_offset
    name = made.sink.new_name(base)
    for key, what in ((str(name), data), (str(name.index), index_data)):
        made.store.put(made.place.key(key), what, Create())
    planted = entry(
        name,
        base,
        base + record_count,
        record_count=record_count,
        size_bytes=len(data),
        index_size_bytes=len(index_data),
        checksum=hashlib.sha256(data).digest(),
        index_checksum=hashlib.sha256(index_data).digest(),
        min_timestamp=0,
        max_timestamp=0,
        keyless_count=record_count,
    )
    made.sink.append(planted)
    return planted
