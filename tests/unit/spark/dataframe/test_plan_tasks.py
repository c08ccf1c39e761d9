"""How segments are dealt to Spark's tasks, and what a lost object is called. No Spark runs."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from keyfold.errors import ConfigError, ObjectNotFound, SnapshotLost
from keyfold.formats.arrow_types import NoArrowType
from keyfold.log.manifest import SegmentEntry
from keyfold.read.log import Log
from keyfold.spark.dataframe.avro_tasks import spark_arrow
from keyfold.spark.dataframe.read_log import at_one_moment
from keyfold.spark.dataframe.scan_jvm import reads_null_keys
from keyfold.spark.dataframe.scan_tasks import SegmentRange, cut_segment, deal, read_pieces, record_batches
from keyfold.spark.dataframe.snapshot_lost import lost_snapshot
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot, pin_log
from keyfold.spark.tasks import location_of
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location
from tests.support.logs import MadeLog, records

NAME = "00000000000000000000-00000001-s9c1f03ab52d7e604"


@pytest.fixture
def pin() -> PartitionSnapshot:
    made = MadeLog()
    made.append(records("a=1 b=2 c=3 a=4 b=5 c=6 a=7 b=8 c=9 a=10"))
    (found,) = pin_log(Log(made.store, "topics", "users"))
    return found


def of_size(pin: PartitionSnapshot, size_bytes: int) -> SegmentEntry:
    return replace(pin.entries[0], size_bytes=size_bytes)


def spans(pieces: list[SegmentRange]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in pieces]


def test_a_large_segment_is_cut_without_a_gap(pin: PartitionSnapshot) -> None:
    assert spans(list(cut_segment(pin, of_size(pin, 100), 100))) == [(0, 10)]
    assert spans(list(cut_segment(pin, of_size(pin, 101), 100))) == [(0, 5), (5, 10)]
    assert spans(list(cut_segment(pin, of_size(pin, 1_000), 100))) == [(at, at + 1) for at in range(10)]
    assert spans(list(cut_segment(pin, of_size(pin, 10_000), 100))) == [(at, at + 1) for at in range(10)]


def test_only_the_wanted_part_of_a_segment_counts(pin: PartitionSnapshot) -> None:
    assert spans(list(cut_segment(pin.cut(4, 7), of_size(pin, 300), 100))) == [(4, 7)]
    assert spans(list(cut_segment(pin.cut(2, 100), of_size(pin, 300), 100))) == [(2, 5), (5, 8), (8, 10)]


def test_a_task_names_the_lost_version_if_an_object_was_deleted(pin: PartitionSnapshot) -> None:
    piece = SegmentRange(pin.place, pin.entries[0], 0, 10)
    with pytest.raises(SnapshotLost, match=rf"users-0.*{piece.entry.index_name}.*is missing.*repeat the whole job"):
        list(read_pieces(MemoryStore(), (piece,), record_batches))


def test_small_pieces_share_a_task_and_none_is_lost(pin: PartitionSnapshot) -> None:
    costs = [40, 50, 20, 200, 10, 10]
    pieces = [SegmentRange(pin.place, of_size(pin, cost), 0, 10) for cost in costs]
    tasks = deal(pieces, lambda piece: piece.entry.size_bytes, 100)
    assert [[piece.entry.size_bytes for piece in task] for task in tasks] == [[40, 50], [20], [200], [10, 10]]
    assert deal([], lambda piece: 1, 100) == []


def test_a_store_goes_to_tasks_as_its_location() -> None:
    location = S3Location("bucket", region="eu-north-1", access_key_id="id", secret_access_key="secret")
    store = location.open()
    assert location_of(store) == store.location
    store.close()
    with pytest.raises(ConfigError, match="memory://test cannot be opened by Spark's tasks"):
        location_of(MemoryStore())


@pytest.mark.parametrize(
    "text",
    [
        f"[FAILED_READ_FILE.FILE_NOT_EXIST] while reading s3a://b/topics/%5Fusers/partition=3/{NAME}.avro.",
        f"[PATH_NOT_FOUND] Path does not exist: file:/x/%5Fusers/partition=3/_index/{NAME}.parquet.",
        f"java.io.FileNotFoundException: No such file or directory: s3://b/%5Fusers/partition=3/{NAME}.avro",
        f"keyfold.errors.ObjectNotFound: `topics/%5Fusers/partition=3/{NAME}.avro`: is not there",
    ],
)
def test_a_missing_object_of_a_log_is_snapshot_lost(text: str) -> None:
    lost = lost_snapshot(RuntimeError(text))
    assert lost is not None
    assert (lost.topic, lost.partition, lost.retriable) == ("_users", 3, True)


def test_other_errors_are_not_translated() -> None:
    assert lost_snapshot(RuntimeError("[PATH_NOT_FOUND] Path does not exist: s3a://b/other/part-0.parquet")) is None
    assert lost_snapshot(RuntimeError(f"corrupt block in topics/users/partition=3/{NAME}.avro")) is None


def test_a_version_that_keeps_vanishing_is_snapshot_lost(pin: PartitionSnapshot) -> None:
    calls = []

    def make(pins: tuple[PartitionSnapshot, ...]) -> str:
        calls.append(pins)
        if len(calls) < 3:
            raise ObjectNotFound("k", "is not there")
        return "made"

    assert at_one_moment(lambda: (pin,), make) == "made"
    assert len(calls) == 3

    def never(_: tuple[PartitionSnapshot, ...]) -> str:
        raise ObjectNotFound(f"topics/users/partition=0/{NAME}.avro", "is not there")

    with pytest.raises(SnapshotLost):
        at_one_moment(lambda: (pin,), never)


def test_releases_that_misread_null_keys_are_known() -> None:
    sound = ("3.5.9", "3.5.12-amzn-0", "4.0.5", "4.1.0", "4.3.0", "5.0.0-SNAPSHOT")
    assert [version for version in sound if not reads_null_keys(version)] == []
    assert [version for version in ("3.5.0", "3.5.8", "4.0.0", "4.0.4", "master") if reads_null_keys(version)] == []


def test_arrow_types_unknown_to_spark_are_converted() -> None:
    inner = pa.struct([("at", pa.timestamp("ns", "UTC")), ("id", pa.binary(16)), ("of", pa.time32("ms"))])
    expected = pa.struct([("at", pa.timestamp("us", "UTC")), ("id", pa.binary()), ("of", pa.int32())])
    assert spark_arrow(pa.list_(inner)) == pa.list_(expected)
    assert spark_arrow(pa.map_(pa.string(), pa.time64("us"))) == pa.map_(pa.string(), pa.int64())
    assert spark_arrow(pa.decimal128(38, 3)) == pa.decimal128(38, 3)
    with pytest.raises(NoArrowType, match="39 digits"):
        spark_arrow(pa.decimal256(39, 3))
