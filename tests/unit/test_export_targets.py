"""Where an export goes: empty or refused, whole or not to be seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.export.request import Request
from keyfold.export.run import export
from keyfold.export.target import CLAIM, SUMMARY
from keyfold.export.target_bucket import check_outside_logs
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.typed.decoder import reader_type
from keyfold.typed.formats import Format
from keyfold.typed.misfit import RecordMisfit
from tests.support.exports import Bucket, Folder, MakePlace, Seen, exported, log_of, rows
from tests.support.logs import MadeLog, records

URL = "s3://bucket/topics"


@pytest.fixture(params=["bucket", "folder"])
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    kept = MemoryStore("lake")
    if request.param == "bucket":
        return lambda run="0000abcd": Bucket(run, kept)
    return lambda run="0000abcd": Folder(tmp_path / "out", run)


@pytest.fixture
def place(make_place: MakePlace) -> Seen:
    return make_place()


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2 =x"))
    made.append(records("c=1 b= _ a=3", 4))
    return made


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
