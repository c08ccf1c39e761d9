"""Format version 1 stays readable, and is still written: golden files against this code and against stock readers."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow.parquet as pq
import pytest

from keyfold.log.codec import CODECS
from keyfold.log.index import ROWS, Index
from keyfold.log.manifest_codec import decode_manifest, encode_manifest
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.log.record_decoder import read_records
from tests.golden.make_golden import MARKS, RECORDS, SYNC, golden_rows, golden_segment
from tests.support.manifests import full_manifest
from tests.support.segments import read_with_fastavro

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent


def stored(codec: str) -> tuple[bytes, bytes]:
    segment = FOLDER / f"segment-1-{codec}.avro"
    return segment.read_bytes(), segment.with_suffix(".parquet").read_bytes()


def expected() -> list[Record]:
    def data(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    rows = json.loads((FOLDER / "records-1.json").read_text(encoding="utf-8"))
    return [
        Record(o, ts, kind, data(key), data(value), tuple((name, data(v)) for name, v in headers), epoch)
        for o, ts, kind, key, value, headers, epoch in rows
    ]


def test_the_expected_records_are_those_of_the_generator() -> None:
    assert expected() == list(RECORDS)
    assert json.loads((FOLDER / "records-1.json").read_text(encoding="utf-8")) == golden_rows()


@pytest.mark.parametrize("codec", CODECS)
def test_golden_segments_are_read(codec: str) -> None:
    segment, index = stored(codec)
    assert list(read_records(segment, blocks=Index.parse(index).blocks)) == expected()
    assert segment.endswith(SYNC)


def test_the_same_bytes_are_written_today() -> None:
    assert golden_segment("null")[0] == stored("null")[0]


def test_the_golden_manifest_is_read_and_written_with_the_same_header() -> None:
    stored_manifest, written = (FOLDER / "manifest-1.avro").read_bytes(), encode_manifest(full_manifest())
    decoded = decode_manifest(stored_manifest, Place("topics", "users", 0))
    assert replace(decoded, writer_schema="") == full_manifest()
    headers = [dict(fastavro.reader(BytesIO(data)).metadata) for data in (stored_manifest, written)]
    for header in headers:
        del header["keyfold.sha256"]  # of compressed bytes, which differ between versions of the compressor
    assert headers[0] == headers[1]


@pytest.mark.parametrize("codec", CODECS)
def test_segments_written_today_have_the_same_records(codec: str) -> None:
    """Compressors change from release to release; what comes out of them must not."""
    segment, index = golden_segment(codec)
    assert list(read_records(segment)) == expected()
    today, golden = Index.parse(index), Index.parse(stored(codec)[1])
    assert today.rows.equals(golden.rows)
    assert today.blocks.record_count.tolist() == golden.blocks.record_count.tolist()


@pytest.mark.parametrize("codec", CODECS)
def test_golden_indexes_match_their_segments(codec: str) -> None:
    index = Index.parse(stored(codec)[1])
    assert (index.codec, index.sync_marker) == (codec, SYNC)
    assert index.ints("offset").tolist() == [r.offset for r in RECORDS]
    assert index.rows["key"].to_pylist() == [r.key for r in RECORDS]
    assert index.is_tombstone.tolist() == [r.is_tombstone for r in RECORDS]
    assert index.rows["cleaned_epoch"].to_pylist() == [MARKS.get(r.offset) for r in RECORDS]
    assert len(index.blocks) > 3


@pytest.mark.parametrize("codec", CODECS)
def test_fastavro_reads_golden_segments(codec: str) -> None:
    assert read_with_fastavro(stored(codec)[0]) == expected()


def test_fastavro_reads_them_with_their_embedded_schema() -> None:
    reader: Any = fastavro.reader(BytesIO(stored("zstandard")[0]))
    assert reader.metadata["keyfold.format"] == "1"
    assert [row["offset"] for row in reader] == [r.offset for r in RECORDS]


@pytest.mark.parametrize("codec", CODECS)
def test_pyarrow_reads_golden_indexes_as_plain_parquet(codec: str) -> None:
    table = pq.read_table(BytesIO(stored(codec)[1]))
    assert table.schema.names == ROWS.names
    assert table["key"].to_pylist() == [r.key for r in RECORDS]


@pytest.mark.spark
def test_stock_spark_reads_golden_segments_and_indexes(spark: SparkSession) -> None:
    for codec in CODECS:
        assert _with_spark(spark, FOLDER / f"segment-1-{codec}.avro") == expected()
        index = spark.read.parquet(str(FOLDER / f"segment-1-{codec}.parquet"))
        found = [(row["offset"], row["key"]) for row in index.orderBy("offset").collect()]
        assert found == [(r.offset, r.key) for r in RECORDS]


def _with_spark(spark: Any, path: Path) -> list[Record]:
    frame = spark.read.format("org.apache.spark.sql.avro.AvroFileFormat").load(str(path))
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").drop("timestamp").orderBy("offset").collect()

    def data(value: Any) -> bytes | None:
        return None if value is None else bytes(value)

    return [
        Record(
            row["offset"],
            row["ms"],
            row["timestamp_type"],
            data(row["key"]),
            data(row["value"]),
            tuple((h["name"], data(h["value"])) for h in row["headers"]),
            row["leader_epoch"],
        )
        for row in rows
    ]
