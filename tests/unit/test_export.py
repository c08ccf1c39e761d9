"""`keyfold log export`: what is in the files, one moment of the log, targets, misfits."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyfold.cli.app import Surroundings, run
from keyfold.clock import ManualClock
from keyfold.errors import ConfigError, KeyfoldError, OffsetOutOfRange, SnapshotLost
from keyfold.export.request import OnError, Request
from keyfold.export.run import export
from keyfold.export.target import CLAIM, SUMMARY, Target
from keyfold.export.target_bucket import BucketTarget, check_outside_logs
from keyfold.export.target_folder import FolderTarget
from keyfold.log.commit import Patience
from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, LOG_APPEND_TIME, Record
from keyfold.read.log import Log
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.typed.decoder import reader_type
from keyfold.typed.formats import Format
from keyfold.typed.misfit import RecordMisfit
from tests.support.logs import MadeLog, latest_of, records

URL = "s3://bucket/topics"


def patience() -> Patience:
    return Patience(ManualClock(), Random(1), patience_s=0)


class Bucket:
    """A target in memory, and what is to be seen in it."""

    def __init__(self, run: str = "0000abcd", store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore("lake")
        self.target: Target = BucketTarget(self.store, "out", patience())

    def names(self) -> list[str]:
        return [info.key.removeprefix("out/") for info in self.store.list("out/")]

    def read(self, name: str) -> bytes:
        return self.store.get(f"out/{name}").data

    def add(self, name: str, data: bytes = b"x") -> None:
        self.store.put(f"out/{name}", data, Create())


class Folder:
    """A target on disk, and what is to be seen in it."""

    def __init__(self, path: Path, run: str = "0000abcd") -> None:
        self.path = path
        self.target: Target = FolderTarget(path, run)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir()) if self.path.exists() else []

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def add(self, name: str, data: bytes = b"x") -> None:
        self.path.mkdir(exist_ok=True)
        (self.path / name).write_bytes(data)


Place_ = Bucket | Folder
MakePlace = Callable[..., Place_]


@pytest.fixture(params=["bucket", "folder"])
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    kept = MemoryStore("lake")
    if request.param == "bucket":
        return lambda run="0000abcd": Bucket(run, kept)
    return lambda run="0000abcd": Folder(tmp_path / "out", run)


@pytest.fixture
def place(make_place: MakePlace) -> Place_:
    return make_place()


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2 =x"))
    made.append(records("c=1 b= _ a=3", 4))
    return made


def log_of(made: MadeLog) -> Log:
    return Log(made.store, "topics", "users", clock=made.clock, random=made.random)


def exported(made: MadeLog, place: Place_, run: str = "0000abcd", **asked: Any) -> Any:
    request = Request(**{"partitions": (0,), **asked})
    return export(log_of(made), place.target, request, run=run, clock=made.clock)


def tables(place: Place_) -> list[pa.Table]:
    return [pq.read_table(BytesIO(place.read(name))) for name in place.names() if name.endswith(".parquet")]


def rows(place: Place_) -> list[dict[str, Any]]:
    found = tables(place)
    return pa.concat_tables(found).to_pylist() if found else []


def test_rows_are_the_records(made: MadeLog, place: Place_) -> None:
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
    about = json.loads(file.metadata.metadata[b"keyfold.export"])
    assert about["log_id"] == manifest.log_id
    assert about["version"] == manifest.version
    assert (about["first_offset"], about["last_offset"], about["rows"]) == (0, 7, 7)
    assert file.metadata.row_group(0).column(5).compression == "ZSTD"


def test_headers_timestamp_types_and_leader_epochs(place: Place_) -> None:
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
def test_a_part_of_the_log(made: MadeLog, asked: dict[str, Any], offsets: list[int]) -> None:
    place = Bucket()
    exported(made, place, **asked)
    assert [r["offset"] for r in rows(place)] == offsets
    assert place.names()[0] == SUMMARY
    assert json.loads(place.read(SUMMARY))["what"] == ("latest" if "latest" in asked else "log")


def test_latest_is_the_dict(made: MadeLog, place: Place_) -> None:
    exported(made, place, latest=True)
    assert {r["key"]: r["value"] for r in rows(place)} == {
        k: v.value for k, v in latest_of(log_of(made).read(0)).items()
    }


def test_an_offset_outside_the_log_publishes_nothing(made: MadeLog, place: Place_) -> None:
    with pytest.raises(OffsetOutOfRange):
        exported(made, place, from_offset=99)
    assert place.names() == []


def test_files_have_bounded_rows_and_row_groups_bounded_bytes(place: Place_) -> None:
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


def test_several_partitions(made: MadeLog, place: Place_) -> None:
    for partition in (1, 2, 7):
        other = MadeLog(store=made.store, place=Place("topics", "users", partition))
        other.append(records(" ".join(f"k{n}={partition}" for n in range(partition + 5))))
    done = exported(made, place, partitions=(0, 1, 2, 7), parallel=3)
    assert [each.pinned.place.partition for each in done] == [0, 1, 2, 7]
    assert [each.rows for each in done] == [7, 6, 7, 12]
    found = rows(place)
    assert sorted({r["partition"] for r in found}) == [0, 1, 2, 7]
    assert [r["offset"] for r in found if r["partition"] == 7] == list(range(12))


def test_an_empty_partition_has_no_file(place: Place_) -> None:
    made = MadeLog()
    made.log.create()
    (done,) = exported(made, place)
    assert (done.rows, place.names()) == (0, [SUMMARY])


# ---- one moment of the log


class Interrupting(MemoryStore):
    """Does something when the n-th range or object of a segment is asked for."""

    def __init__(self) -> None:
        super().__init__("test")
        self.before: dict[int, Callable[[], None]] = {}
        self.reads = 0

    def get(self, key: str) -> Any:
        self._look(key)
        return super().get(key)

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
        made.collect()

    return act


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("formats", [{}, {"value_format": Format.JSON}])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_collected_objects_mean_a_new_beginning_and_never_a_mix(
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


def test_a_log_that_is_collected_again_and_again_is_given_up(place: Place_) -> None:
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


# ---- targets


def test_a_target_that_is_not_empty_is_refused(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    place.add("notes.txt")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"it has `notes\.txt`, which no export wrote"):
            exported(made, place, overwrite=overwrite)
    assert place.names() == ["notes.txt"]


def test_overwrite_replaces_an_export_and_nothing_else(made: MadeLog, make_place: MakePlace) -> None:
    exported(made, make_place(), rows_per_file=2)
    with pytest.raises(ConfigError, match="it holds an export; replace it with --overwrite"):
        exported(made, make_place("11111111"), run="11111111")
    place = make_place("22222222")
    exported(made, place, run="22222222", overwrite=True, latest=True)
    assert place.names() == [SUMMARY, "part-00000-00000000000000000004-22222222.parquet"]
    assert json.loads(place.read(SUMMARY))["export"] == "22222222"


def test_a_failed_overwrite_leaves_the_export_as_it_was(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    exported(made, place)
    before = {name: place.read(name) for name in place.names()}
    with pytest.raises(RecordMisfit):
        exported(made, make_place("11111111"), run="11111111", overwrite=True, value_format=Format.AVRO,
                 value_reader=reader_type('"string"'))  # fmt: skip
    assert {name: place.read(name) for name in place.names()} == before


def test_a_killed_exports_claim_is_respected_until_overwrite(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    place.add(CLAIM)
    with pytest.raises(ConfigError, match=r"is taken: .*was killed .*--overwrite"):
        exported(made, place)
    assert place.names() == [CLAIM]
    exported(made, make_place("11111111"), run="11111111", overwrite=True)
    assert CLAIM not in place.names()
    assert len(rows(place)) == 7


def test_who_has_lost_the_claim_publishes_nothing(made: MadeLog, make_place: MakePlace) -> None:
    place, other = make_place(), make_place("11111111")

    def overwriting(_: int) -> None:
        if not done:
            done.append(1)
            exported(made, other, run="11111111", overwrite=True)

    done: list[int] = []
    with pytest.raises(KeyfoldError, match="another export has taken"):
        export(log_of(made), place.target, Request((0,)), run="0000abcd", clock=made.clock, progress=overwriting)
    assert place.names() == [SUMMARY, "part-00000-00000000000000000000-11111111.parquet"]


def test_nothing_is_seen_before_all_is_there(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    seen: list[list[str]] = []
    request = Request((0,), rows_per_file=1)
    export(
        log_of(made),
        place.target,
        request,
        run="0000abcd",
        clock=made.clock,
        progress=lambda _: seen.append(place.names()),
    )
    assert seen
    assert all(set(names) <= {CLAIM, ".export-0000abcd"} for names in seen)
    assert len(place.names()) == 8


def test_an_interrupted_export_leaves_nothing(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(log_of(made), place.target, Request((0,)), run="0000abcd", clock=made.clock, progress=interrupt)
    assert place.names() == []
    if isinstance(place, Bucket):
        assert list(place.store.list_uploads("")) == []


def test_a_folder_that_cannot_be_made(made: MadeLog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        exported(made, Folder(tmp_path / "file" / "out"))


def test_a_consoles_folder_marker_is_nothing(made: MadeLog) -> None:
    place = Bucket()
    place.add("", b"")
    exported(made, place)
    assert len(rows(place)) == 7


def test_targets_inside_the_logs_are_refused(made: MadeLog) -> None:
    made.store.put("topics/_schemas/1.avsc", b"", Create())
    for prefix in ("topics/users", "topics/users/partition=0", "topics/_schemas", "topics/_sinks/x"):
        with pytest.raises(ConfigError, match="which belongs to the logs"):
            check_outside_logs(made.store, "topics", made.store, prefix)
    check_outside_logs(made.store, "topics", made.store, "topics/exports")
    check_outside_logs(made.store, "topics", made.store, "other/users")
    check_outside_logs(made.store, "topics", MemoryStore("lake"), "topics/users")


# ---- typed


SCHEMA_1 = '{"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}'
SCHEMA_2 = (
    '{"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"},'
    ' {"name": "age", "type": ["null", "int"], "default": null}]}'
)


def avro_log(*values: bytes | None, keys: bool = False) -> MadeLog:
    made = MadeLog()
    for number, text in enumerate((SCHEMA_1, SCHEMA_2), 1):
        made.store.put(f"topics/_schemas/{number}.avsc", text.encode(), Create())
    made.append([Record(o, o, CREATE_TIME, b"k%d" % o, value) for o, value in enumerate(values)])
    return made


ANNE, BOB = b"\0\0\0\0\1\x08anne", b"\0\0\0\0\2\6bob\2\x50"


def test_avro_without_a_readers_schema_takes_the_newest_writers(place: Place_) -> None:
    made = avro_log(ANNE, BOB, None)
    exported(made, place, value_format=Format.AVRO, key_format=Format.STRING)
    assert [(r["key"], r["value"]) for r in rows(place)] == [
        ("k0", {"name": "anne", "age": None}),
        ("k1", {"name": "bob", "age": 40}),
        ("k2", None),
    ]


def test_avro_with_a_readers_schema(place: Place_) -> None:
    made = avro_log(ANNE, BOB)
    exported(made, place, value_format=Format.AVRO, value_reader=reader_type(SCHEMA_1))
    assert [r["value"] for r in rows(place)] == [{"name": "anne"}, {"name": "bob"}]


BAD = b"\0\0\0\0\1\x08ann"


def test_a_misfit_names_topic_partition_offset_and_schema(place: Place_) -> None:
    made = avro_log(ANNE, BOB, BAD)
    with pytest.raises(RecordMisfit) as caught:
        exported(made, place, value_format=Format.AVRO)
    assert caught.value.message == (
        "users-0: the value at offset 2 does not decode by schema 1: a length of 4 where 3 bytes are left"
    )
    assert (caught.value.topic, caught.value.partition, caught.value.offset, caught.value.schema) == ("users", 0, 2, 1)
    assert place.names() == []


def test_misfits_may_be_skipped(place: Place_) -> None:
    made = avro_log(ANNE, BAD, b"", BOB, None)
    (done,) = exported(made, place, value_format=Format.AVRO, on_error=OnError.SKIP)
    assert [r["offset"] for r in rows(place)] == [0, 3, 4]
    assert (done.misfits.skipped, done.rows) == (2, 3)
    (partition,) = json.loads(place.read(SUMMARY))["partitions"]
    assert partition["skipped"] == 2
    assert "offset 2 is empty" in partition["misfits"][1]


def test_misfits_may_become_null_and_say_why(place: Place_) -> None:
    made = avro_log(ANNE, BAD, None)
    (done,) = exported(made, place, value_format=Format.AVRO, on_error=OnError.NULL)
    assert [(r["value"], r["value_error"], r["key_error"]) for r in rows(place)] == [
        ({"name": "anne"}, None, None),
        (None, "does not decode by schema 1: a length of 4 where 3 bytes are left", None),
        (None, None, None),
    ]
    assert done.misfits.nulled == 1


def test_json_is_typed_by_what_all_values_have_in_common(place: Place_) -> None:
    made = MadeLog()
    texts = [
        b'{"a": 1, "b": [1, 2.5], "c": {"d": "x"}}',
        b'{"a": 2, "e": true, "c": null}',
        None,
        b'{"b": [], "c": {"d": 7}}',
    ]
    made.append([Record(o, o, CREATE_TIME, b"7", text) for o, text in enumerate(texts)])
    exported(made, place, value_format=Format.JSON, key_format=Format.JSON)
    found = rows(place)
    assert [r["key"] for r in found] == [7] * 4
    assert [r["value"] for r in found] == [
        {"a": 1, "b": [1.0, 2.5], "c": {"d": '"x"'}, "e": None},
        {"a": 2, "b": None, "c": None, "e": True},
        None,
        {"a": None, "b": [], "c": {"d": "7"}, "e": None},
    ]


# ---- the command


@pytest.fixture
def keyfold(made: MadeLog, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[str], list[str]]]:
    lake = MemoryStore("lake")

    def open_store(url: str) -> tuple[MemoryStore, str]:
        return (lake, url.split("/", 3)[3]) if url.startswith("s3://lake") else (made.store, "topics")  # type: ignore[return-value]

    def call(*args: str, code: int = 0) -> tuple[list[str], list[str]]:
        world = Surroundings(open_store, made.clock, made.random)
        assert run(["log", "export", URL, "users", *args], world) == code, capfd.readouterr().err
        captured = capfd.readouterr()
        return captured.out.splitlines(), captured.err.splitlines()

    return call


Keyfold = Callable[..., tuple[list[str], list[str]]]


def test_the_command_says_what_it_exported(made: MadeLog, keyfold: Keyfold, tmp_path: Path) -> None:
    lines, errors = keyfold("--to", str(tmp_path / "a"))
    assert errors == []
    assert lines[0].startswith("users-0: 7 rows in 1 file, ")
    assert lines[0].endswith(f"; offsets [0, 8) of version {made.manifest.version}")
    assert lines[-1] == f"exported 7 rows to {tmp_path / 'a'}"
    lines, _ = keyfold("--to", "s3://lake/users", "--json", "--latest", "-p", "0")
    (row,) = map(json.loads, lines)
    assert (row["topic"], row["partition"], row["rows"]) == ("users", 0, 2)
    _, errors = keyfold("--to", "s3://lake/users", code=2)
    assert errors == ["error: `--to`: `memory://lake/users` is not empty: it holds an export",
                      "hint: replace it with --overwrite"]  # fmt: skip
    keyfold("--to", "s3://lake/users", "--overwrite")


def test_the_command_names_misfits(made: MadeLog, keyfold: Keyfold, tmp_path: Path) -> None:
    _, errors = keyfold("--to", str(tmp_path / "a"), "--key-format", "json", "--value-format", "string", code=1)
    assert errors[0] == "error: users-0: the key at offset 0 is no JSON: Expecting value: line 1 column 1 (char 0)"
    assert errors[1] == "hint: --on-error null or skip goes on without it"
    lines, _ = keyfold("--to", str(tmp_path / "a"), "--value-format", "json", "--on-error", "skip")
    assert "6 rows in 1 file" in lines[0]
    assert ", 1 skipped; " in lines[0]
    assert "users-0: the value at offset 3 is no JSON" in lines[1]


def test_the_command_is_called_wrongly(keyfold: Keyfold, tmp_path: Path) -> None:
    to = ("--to", str(tmp_path / "a"))
    schema = tmp_path / "s.avsc"
    schema.write_text("{")
    for args, what in (
        ((*to, "--latest", "--to-offset", "3"), "--latest is about the whole log"),
        ((*to, "--from-offset", "3", "--from-timestamp", "3"), "exclude each other"),
        ((*to, "--reader-schema", str(schema)), "--reader-schema says what JSON and Avro are read as"),
        ((*to, "--value-format", "json", "--reader-schema", str(schema)), "is no Avro schema: it is no JSON"),
        (("--to", "gs://x/y"), "`--to`: 'gs://x/y' is not s3://"),
        ((), "--to"),
    ):
        _, errors = keyfold(*args, code=2)
        assert what in "\n".join(errors)
    assert not (tmp_path / "a").exists()
