"""Makes the golden files of format version 1. Run once for a new version; what is checked in is never made again.

python -m tests.golden.make_golden

segment-1-<codec>.avro         the same records in every codec, in blocks of about 200 bytes
segment-1-<codec>.parquet      their indexes, with marks on two tombstones
manifest-1.avro                a manifest with one of everything that it can list
records-1.json                 what must come out: [offset, timestamp, type, key, value, headers, leader epoch],
                               bytes as hexadecimal
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyfold.log.codec import CODECS
from keyfold.log.index import Index, remark
from keyfold.log.manifest_codec import encode_manifest
from keyfold.log.record import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP, Record
from keyfold.log.segment import SegmentWriter, segment_bytes
from tests.support.manifests import full_manifest
from tests.support.segments import columns_of

FOLDER = Path(__file__).parent
SYNC = bytes.fromhex("6b6579666f6c642d676f6c64656e2d31")
BLOCK_BYTES = 200
MARKS = {7: 3, 9007199254740993: 4}  # offset of a tombstone, and the pass that marked it

RECORDS = (
    Record(0, 1_700_000_000_000, CREATE_TIME, b"user-1", b"ann@example.org", (), 0),
    Record(1, 1_700_000_000_001, CREATE_TIME, b"user-2", b"bob@example.org", (("trace", b"1"),), 0),
    Record(
        2, 1_700_000_000_002, LOG_APPEND_TIME, b"user-1", b"ann@example.com", (("a", b"1"), ("a", b"2"), ("a", b"1")), 0
    ),
    Record(3, -1, NO_TIMESTAMP, None, b"no key", (("null", None), ("", b""), ("empty", b"")), -1),
    Record(4, 1_700_000_000_004, CREATE_TIME, b"", b"an empty key", (), 1),
    Record(5, 1_700_000_000_005, CREATE_TIME, b"user-3", b"", (("ключ", "значение".encode()),), 1),
    Record(6, 0, CREATE_TIME, None, None, (), 1),
    Record(7, 1_700_000_000_007, CREATE_TIME, b"user-2", None, (), 1),
    Record(8, -86_400_000, CREATE_TIME, b"before 1970", b"\x00\xff\xfe not UTF-8", (), 1),
    # 9 to 99 are holes: compacted away or transaction markers
    Record(100, 1_700_000_000_100, CREATE_TIME, b"large", bytes(range(256)) * 3, (), 2),
    Record(2**31, 1_700_000_000_200, LOG_APPEND_TIME, b"\x00\x01", b"binary key", (), 3),
    Record(2**53 + 1, 1_700_000_000_300, CREATE_TIME, b"user-1", None, (("why", b"gone"),), 2**31 - 1),
    Record(2**53 + 2, 253_402_300_799_999, CREATE_TIME, b"", None, (), 3),
    Record(2**62, 1_700_000_000_301, CREATE_TIME, b"k" * 70, b"a key of 70 bytes", (), 3),
)


def golden_segment(codec: str) -> tuple[bytes, bytes]:
    """The segment and its index, made by the present code."""
    writer = SegmentWriter(sync_marker=SYNC, codec=codec, block_bytes=BLOCK_BYTES)
    writer.append(columns_of(RECORDS))
    finished = writer.finish()
    index = Index.parse(finished.index_data)
    marks = pa.array([MARKS.get(record.offset) for record in RECORDS], pa.int32())
    return segment_bytes(finished), remark(index, marks).encode()


def golden_rows() -> list[Any]:
    """The records as JSON has them."""

    def text(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    return [
        [r.offset, r.timestamp, r.timestamp_type, text(r.key), text(r.value),
         [[name, text(value)] for name, value in r.headers], r.leader_epoch]
        for r in RECORDS
    ]  # fmt: skip


def main() -> None:
    for codec in CODECS:
        segment, index = golden_segment(codec)
        (FOLDER / f"segment-1-{codec}.avro").write_bytes(segment)
        (FOLDER / f"segment-1-{codec}.parquet").write_bytes(index)
    (FOLDER / "manifest-1.avro").write_bytes(encode_manifest(full_manifest()))
    lines = ",\n".join(json.dumps(row) for row in golden_rows())
    (FOLDER / "records-1.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
