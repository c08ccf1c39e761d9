"""`keyfold log export`: the files' contents, which are one moment of the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from random import Random
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyfold.errors import OffsetOutOfRange, SnapshotLost
from keyfold.export.target import SUMMARY
from keyfold.formats.format import Format
from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, LOG_APPEND_TIME, Record
from keyfold.store.memory import MemoryStore
from tests.support.exports import Bucket, ExportPlace, MakePlace, exported, log_of, rows, tables
from tests.support.logs import MadeLog, latest_of, records

URL = "s3://bucket/topics"


def test_exported_rows_equal_the_records(made: MadeLog, place: ExportPlace) -> None:
    (done,) = exported(made, place)
    found = rows(place)
    assert [(r["offset"], r["key"], r["value"]) for r in found] == [
        (r.offset, r.key, r.value) for r in log_of(made).read(0)
    ]
    assert found[0] == {
        "partition": 0, "offset": 0, "timestamp": found[0]["timestamp"], "timestamp_type": "CreateTime",
        "key": b"a", "value": b"1", "headers": [], "leader_epoch": -1,
    }  # fmt: skip
    assert [int(r["timestamp"].timestamp()) for r in found] == [0, 1, 2, 3, 4, 5, 7]
    assert place.names() == [SUMMARY, "part-00000-00000000000000000000-0000abcd.parquet"]
    summary = json.loads(place.read(SUMMARY))
    assert summary["rows"] == done.rows == 7
    (partition,) = summary["partitions"]
    manifest = made.manifest
    assert partition == {
        "partition": 0, "log_id": manifest.log_id, "version": manifest.version, "from_offset": 0, "to_offset": 8,
        "rows": 7, "skipped": 0, "nulled": 0, "misfits": [],
        "files": [{"name": place.names()[1], "rows": 7, "first_offset": 0, "last_offset": 7,
                   "size_bytes": len(place.read(place.names()[1]))}],
    }  # fmt: skip
    file = pq.ParquetFile(BytesIO(place.read(place.names()[1])))
    about = json.loads((file.metadata.metadata or {})[b"keyfold.export"])
    assert about["log_id"] == manifest.log_id
    assert about["version"] == manifest.version
    assert (about["first_offset"], about["last_offset"], about["rows"]) == (0, 7, 7)
    assert file.metadata.row_group(0).column(5).compression == "ZSTD"


def test_headers_timestamp_types_and_leader_epochs_are_exported(place: ExportPlace) -> None:
    made = MadeLog()
    headers = (("a", b"1"), ("a", None), ("", b""))
    made.append([Record(0, 5, LOG_APPEND_TIME, None, b"", headers, 7), Record(1, -1, "NoTimestampType", b"", None)])
    exported(made, place)
    first, second = rows(place)
    assert first["headers"] == [{"name": name, "value": value} for name, value in headers]
    assert (first["timestamp_type"], first["leader_epoch"], first["key"], first["value"]) == (
        "LogAppendTime",
        7,
        None,
        b"",
    )
    assert (second["timestamp_type"], second["key"], second["value"], second["headers"]) == (
        "NoTimestampType",
        b"",
        None,
        [],
    )
    assert tables(place)[0].column("timestamp").cast(pa.int64()).to_pylist() == [5, -1]


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        ({"from_offset": 2}, [2, 3, 4, 5, 7]),
        ({"from_offset": 6}, [7]),
        ({"from_offset": 8}, []),
        ({"to_offset": 5}, [0, 1, 2, 3, 4]),
        ({"from_offset": 3, "to_offset": 5}, [3, 4]),
        ({"from_offset": 5, "to_offset": 2}, []),
        ({"from_timestamp": 4001}, [5, 7]),
        ({"from_timestamp": 9999}, []),
        ({"latest": True}, [4, 7]),
    ],
)
def test_a_range_of_offsets_is_exported(made: MadeLog, asked: dict[str, Any], offsets: list[int]) -> None:
    place = Bucket()
    exported(made, place, **asked)
    assert [r["offset"] for r in rows(place)] == offsets
    assert place.names()[0] == SUMMARY
    assert json.loads(place.read(SUMMARY))["what"] == ("latest" if "latest" in asked else "log")


def test_latest_exports_the_dicts_state(made: MadeLog, place: ExportPlace) -> None:
    exported(made, place, latest=True)
    assert {r["key"]: r["value"] for r in rows(place)} == {
        k: v.value for k, v in latest_of(log_of(made).read(0)).items()
    }


def test_an_offset_outside_the_log_publishes_nothing(made: MadeLog, place: ExportPlace) -> None:
    with pytest.raises(OffsetOutOfRange):
        exported(made, place, from_offset=99)
    assert place.names() == []


def test_files_have_bounded_rows_and_row_groups_bounded_bytes(place: ExportPlace) -> None:
    made = MadeLog()
    for start in range(0, 100, 10):
        made.append([Record(o, o, CREATE_TIME, b"k%d" % o, bytes(1000)) for o in range(start, start + 10)])
    exported(made, place, rows_per_file=30, row_group_bytes=4500)
    names = [name for name in place.names() if name != SUMMARY]
    assert [name.split("-")[2] for name in names] == [f"{first:020d}" for first in (0, 30, 60, 90)]
    assert [r["offset"] for r in rows(place)] == list(range(100))
    for name in names:
        meta = pq.ParquetFile(BytesIO(place.read(name))).metadata
        assert meta.num_rows <= 30
        assert all(meta.row_group(i).num_rows <= 10 for i in range(meta.num_row_groups))


def test_several_partitions_are_exported(made: MadeLog, place: ExportPlace) -> None:
    for partition in (1, 2, 7):
        other = MadeLog(store=made.store, place=Place("topics", "users", partition))
        other.append(records(" ".join(f"k{n}={partition}" for n in range(partition + 5))))
    done = exported(made, place, partitions=(0, 1, 2, 7), parallel=3)
    assert [each.pinned.place.partition for each in done] == [0, 1, 2, 7]
    assert [each.rows for each in done] == [7, 6, 7, 12]
    found = rows(place)
    assert sorted({r["partition"] for r in found}) == [0, 1, 2, 7]
    assert [r["offset"] for r in found if r["partition"] == 7] == list(range(12))


def test_an_empty_partition_has_no_file(place: ExportPlace) -> None:
    made = MadeLog()
    made.log.create()
    (done,) = exported(made, place)
    assert (done.rows, place.names()) == (0, [SUMMARY])


class Interrupting(MemoryStore):
    """Does something when the n-th range or object of a segment is asked for."""

    def __init__(self) -> None:
        super().__init__("test")
        self.before: dict[int, Callable[[], None]] = {}
        self.reads = 0

    def get(self, key: str, max_bytes: int | None = None) -> Any:
        self._look(key)
        return super().get(key, max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._look(key)
        return super().get_range(key, start, length)

    def _look(self, key: str) -> None:
        if key.endswith(".avro") and not key.endswith("_manifest.avro"):
            self.reads += 1
            self.before.pop(self.reads, lambda: None)()


def compacting(made: MadeLog, extra: str = "") -> Callable[[], None]:
    def act() -> None:
        if extra:
            made.append(records(extra, made.manifest.next_offset))
        made.compact(merge=True)
        made.delete_replaced()

    return act


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("formats", [{}, {"value_format": Format.JSON}])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_deleted_objects_restart_the_export_and_never_mix_versions(
    make_place: MakePlace, at: int, formats: dict[str, Any], latest: bool
) -> None:
    store = Interrupting()
    made = MadeLog(store=store)
    made.append(records("a=1 b=1 a=2"))
    made.append(records("c=1 a=3", 3))
    made.append(records("c=2 d=4", 5))
    place = make_place()
    store.before[store.reads + at] = compacting(made, "b=9 e=1")
    (done,) = exported(made, place, rows_per_file=1, latest=latest, **formats)
    store.before.clear()
    manifest = made.manifest
    found = [(r["offset"], r["key"]) for r in rows(place)]
    if done.pinned.manifest.version == manifest.version:
        expected = log_of(made).latest(0) if latest else log_of(made).read(0)
        assert found == [(r.offset, r.key) for r in expected]
    else:
        assert [offset for offset, _ in found] == ([1, 4, 5, 6] if latest else list(range(7)))
    names = {name for name in place.names() if name != SUMMARY}
    assert names == {file.staged.name for file in done.files}


def test_an_export_gives_up_if_objects_are_deleted_repeatedly(place: ExportPlace) -> None:
    store = Interrupting()
    made = MadeLog(store=store)
    made.append(records("a=1 b=1 a=2"))
    made.append(records("c=1 a=3", 3))

    class Always(dict[int, Callable[[], None]]):
        is_busy = False

        def pop(self, *_: Any) -> Any:
            return (lambda: None) if self.is_busy else self.act

        def act(self) -> None:
            self.is_busy = True
            compacting(made, "z=1 y=2")()
            self.is_busy = False

    store.before = Always()
    with pytest.raises(SnapshotLost, match="5 times in a row"):
        exported(made, place)
    assert place.names() == []


@pytest.mark.sharded
@pytest.mark.parametrize("asked", [{}, {"latest": True}, {"value_format": Format.JSON}])
def test_every_export_in_a_storm_is_a_state_that_existed(asked: dict[str, Any]) -> None:
    made = MadeLog()
    states: dict[int, list[tuple[int, bytes | None]]] = {}
    stop = Event()

    def note() -> None:
        log = log_of(made)
        found = log.latest(0) if "latest" in asked else log.read(0)
        state = [(r.offset, r.key) for r in found]
        states[made.manifest.version] = state

    def storm() -> None:
        random = Random(5)
        while not stop.is_set():
            batch = " ".join(f"k{random.randrange(9)}={random.choice(['', '1', '2'])}" for _ in range(8))
            made.append(records(batch, made.manifest.next_offset))
            note()
            if random.random() < 0.7:
                made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)
                made.delete_replaced()
                note()

    made.append(records("a=1 b=1"))
    note()
    thread = Thread(target=storm)
    thread.start()
    done = []
    try:
        for number in range(25):
            place = Bucket()
            try:
                (each,) = exported(made, place, run=f"{number:08x}", rows_per_file=3, **asked)
            except SnapshotLost:
                continue
            done.append((each.pinned.manifest.version, [(r["offset"], r["key"]) for r in rows(place)]))
    finally:
        stop.set()
        thread.join()
    assert len(done) > 5
    for version, found in done:
        # Versions in between (a claim, a lease) have the records of the one before.
        assert found == states[max(v for v in states if v <= version)]
