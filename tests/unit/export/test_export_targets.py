"""Where an export goes: empty or refused, whole or not to be seen."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from keyfold.errors import AccessDenied, ConfigError, Corrupt, KeyfoldError, LogNotFound, StoreError, StoreUnavailable
from keyfold.export.request import ExportRequest, OnError
from keyfold.export.run import export
from keyfold.export.target import CLAIM, SUMMARY
from keyfold.export.target_bucket import BucketTarget, check_outside_logs
from keyfold.formats.decoder import reader_type
from keyfold.formats.errors import RecordFormatMismatch
from keyfold.formats.format import Format
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.exports import Bucket, ExportPlace, Folder, MakePlace, exported, log_of, retry_policy, rows
from tests.support.logs import MadeLog

URL = "s3://bucket/topics"


def test_a_target_that_is_not_empty_is_refused(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    place.add("notes.txt")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"it contains `notes\.txt`, not written by an export"):
            exported(made, place, overwrite=overwrite)
    assert place.names() == ["notes.txt"]


def test_overwrite_replaces_an_export_and_nothing_else(made: MadeLog, make_place: MakePlace) -> None:
    exported(made, make_place(), rows_per_file=2)
    with pytest.raises(ConfigError, match="it contains an earlier export; replace it with --overwrite"):
        exported(made, make_place("11111111"), run="11111111")
    place = make_place("22222222")
    exported(made, place, run="22222222", overwrite=True, latest=True)
    assert place.names() == [SUMMARY, "part-00000-00000000000000000004-22222222.parquet"]
    assert json.loads(place.read(SUMMARY))["export"] == "22222222"


def test_a_failed_overwrite_leaves_the_export_unchanged(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    exported(made, place)
    before = {name: place.read(name) for name in place.names()}
    with pytest.raises(RecordFormatMismatch):
        exported(made, make_place("11111111"), run="11111111", overwrite=True, value_format=Format.AVRO,
                 value_reader=reader_type('"string"'))  # fmt: skip
    assert {name: place.read(name) for name in place.names()} == before


def test_a_killed_exports_claim_is_respected_until_overwrite(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    place.add(CLAIM)
    with pytest.raises(ConfigError, match=r"is in use: .*was killed .*--overwrite"):
        exported(made, place)
    assert place.names() == [CLAIM]
    exported(made, make_place("11111111"), run="11111111", overwrite=True)
    assert CLAIM not in place.names()
    assert len(rows(place)) == 7


def test_an_export_that_lost_its_claim_publishes_nothing(made: MadeLog, make_place: MakePlace) -> None:
    place, other = make_place(), make_place("11111111")

    def overwriting(_: int) -> None:
        if not done:
            done.append(1)
            exported(made, other, run="11111111", overwrite=True)

    done: list[int] = []
    with pytest.raises(KeyfoldError, match="another export took over"):
        export(log_of(made), place.target, ExportRequest((0,)), run="0000abcd", clock=made.clock, progress=overwriting)
    assert place.names() == [SUMMARY, "part-00000-00000000000000000000-11111111.parquet"]


def test_nothing_is_visible_before_everything_is_written(made: MadeLog, make_place: MakePlace) -> None:
    place = make_place()
    seen: list[list[str]] = []
    request = ExportRequest((0,), rows_per_file=1)
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
        export(log_of(made), place.target, ExportRequest((0,)), run="0000abcd", clock=made.clock, progress=interrupt)
    assert place.names() == []
    if isinstance(place, Bucket):
        assert list(place.store.list_uploads("")) == []


def test_a_folder_that_cannot_be_created_is_reported(made: MadeLog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        exported(made, Folder(tmp_path / "file" / "out"))


def test_an_s3_consoles_folder_marker_is_ignored(made: MadeLog) -> None:
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


def test_a_damaged_segment_fails_any_export(made: MadeLog, place: ExportPlace) -> None:
    entry = made.manifest.segments[-1]
    key = made.place.key(entry.name)
    data = bytearray(made.store.get(key).data)
    data[-30] ^= 1
    made.store.delete(key)
    made.store.put(key, bytes(data), Create())
    for asked in ({}, {"latest": True}, {"value_format": Format.JSON, "on_error": OnError.SKIP}):
        with pytest.raises(Corrupt, match=entry.name):
            exported(made, place, **asked)
        assert place.names() == []


def test_a_missing_partition_leaves_no_folder(made: MadeLog, tmp_path: Path) -> None:
    place = Folder(tmp_path / "new")
    with pytest.raises(LogNotFound):
        exported(made, place, partitions=(0, 9))
    assert not place.path.exists()


class Failing(MemoryStore):
    """Refuses the n-th write: a put, a part, a completion."""

    def __init__(self, error: StoreError, at: int) -> None:
        super().__init__("lake", min_part_bytes=1)
        self.error, self.left = error, at

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error

    def put(self, key: str, data: Any, mode: Any) -> Any:
        self.tick()
        return super().put(key, data, mode)

    def start_upload(self, key: str) -> Any:
        self.tick()
        upload, tick = super().start_upload(key), self.tick

        class Ticking:
            def write(self, part: Any) -> None:
                tick()
                upload.write(part)

            def complete(self) -> Any:
                tick()
                return upload.complete()

            def abort(self) -> None:
                upload.abort()

        return Ticking()


@pytest.mark.sharded
@pytest.mark.parametrize("at", range(1, 14))
@pytest.mark.parametrize("kind", [AccessDenied, StoreUnavailable])
def test_a_failing_bucket_never_shows_an_incomplete_export_as_complete(
    made: MadeLog, kind: type[StoreError], at: int
) -> None:
    place = Bucket(store=Failing(kind("x", "refused"), at))
    failed = ""
    try:
        exported(made, place, rows_per_file=2)
    except KeyfoldError as error:
        failed = str(error)
    if failed:
        assert SUMMARY not in place.names()
        assert ("contains only part of the export" in failed) == bool(place.names()) == (CLAIM in place.names())
        place.target = BucketTarget(place.store, "out", retry_policy())
        exported(made, place, run="11111111", rows_per_file=2, overwrite=True)
        assert list(place.store.list_uploads("")) == []
    assert SUMMARY in place.names()
    assert CLAIM not in place.names()
    assert [r["offset"] for r in rows(place)] == [0, 1, 2, 3, 4, 5, 7]


def test_a_full_disk_is_reported_and_leaves_nothing(
    made: MadeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Folder(tmp_path / "out")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyfoldError, match=r"part-00000-.*\.parquet` cannot be written: No space left on device"):
        exported(made, place)
    assert place.names() == []
