"""`keyfold log ...`: what it prints and how it ends."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from keyfold.cli import output
from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, Record
from keyfold.runtime.clock import Clock
from keyfold.runtime.text import size_text, time_text
from keyfold.store.api import Create
from tests.support.logs import MadeLog, record, records

URL = "s3://bucket/topics"


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2"))
    made.compact()
    made.append(records("c=1 b=", 3))
    return made


class Keyfold:
    """The command against one store."""

    def __init__(self, made: MadeLog, capfd: pytest.CaptureFixture[str]) -> None:
        self._world = CliContext(lambda _url: (made.store, "topics"), made.clock, made.random)
        self._capture = capfd

    def __call__(self, *args: str, code: int = 0) -> list[str]:
        assert run(["log", *args], self._world) == code
        captured = self._capture.readouterr()
        self.errors = captured.err.splitlines()
        return captured.out.splitlines()

    def json(self, *args: str, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*args, "--json", code=code)]


@pytest.fixture
def keyfold(made: MadeLog, capsys: pytest.CaptureFixture[str]) -> Keyfold:
    return Keyfold(made, capsys)


def test_cat_prints_one_json_object_per_line(keyfold: Keyfold) -> None:
    rows = keyfold.json("cat", URL, "users")
    assert [row["offset"] for row in rows] == [1, 2, 3, 4]
    assert rows[0] == {
        "topic": "users",
        "partition": 0,
        "offset": 1,
        "timestamp": 1000,
        "timestamp_type": "CreateTime",
        "key": "b",
        "value": "1",
        "headers": [],
    }
    assert rows[-1]["value"] is None


def test_cat_takes_positions_and_limits(keyfold: Keyfold) -> None:
    def offsets(*args: str) -> list[int]:
        return [row["offset"] for row in keyfold.json("cat", URL, "users", *args)]

    assert offsets("--from-offset", "0") == [1, 2, 3, 4]
    assert offsets("--from-offset", "2", "--to-offset", "4") == [2, 3]
    assert offsets("--from-timestamp", "2500") == [3, 4]
    assert offsets("--from-timestamp", "1970-01-01T00:00:02.500Z") == [3, 4]
    assert offsets("--from-timestamp", "1970-01-01T02:00:04+02:00") == [4]
    assert offsets("--from-timestamp", "1970-01-01") == [1, 2, 3, 4]
    assert offsets("--max-records", "1") == [1]
    assert offsets("--max-records", "0") == []
    assert offsets("--latest") == [2, 3]
    assert keyfold("cat", URL, "users", "--from-offset", "99", code=1) == []
    assert keyfold.errors[0] == "error: users-0: offset 99 is outside of the log, which has offsets [0, 5) in version 6"
    assert keyfold.errors[1].startswith("hint: read from an offset between 0 and 5")


def test_cat_prints_the_last_records_of_each_partition(made: MadeLog, keyfold: Keyfold) -> None:
    def offsets(*args: str) -> list[int]:
        return [row["offset"] for row in keyfold.json("cat", URL, "users", *args)]

    assert offsets("--tail", "0") == []
    assert offsets("--tail", "1") == [4]
    assert offsets("--tail", "3") == [2, 3, 4]
    assert offsets("--tail", "99") == [1, 2, 3, 4]
    assert offsets("--tail", "3", "-n", "2") == [2, 3]
    assert offsets("--tail", "3", "--limit", "2") == [2, 3]
    other = MadeLog(store=made.store, place=made.place.__class__("topics", "users", 2))
    other.append(records("x=1 y=1 z=1"))
    rows = keyfold.json("cat", URL, "users", "--tail", "2")
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 3), (0, 4), (2, 1), (2, 2)]


def test_cat_from_the_end_reads_only_the_last_segments(made: MadeLog, keyfold: Keyfold) -> None:
    first = made.manifest.segments[0]
    for name in (first.name, first.index_name):
        made.store.delete(made.place.key(name))
    assert [row["offset"] for row in keyfold.json("cat", URL, "users", "--tail", "2")] == [3, 4]


@pytest.mark.parametrize("key_format", ["bytes", "string"])
def test_cat_prints_all_records_of_a_key(keyfold: Keyfold, key_format: str) -> None:
    def rows(*args: str) -> list[tuple[int, str]]:
        return [(row["offset"], row["key"]) for row in keyfold.json("cat", URL, "users", *args)]

    assert rows("--key", "b", "--key-format", key_format) == [(1, "b"), (4, "b")]
    assert rows("--key", "0x62", "--key-format", key_format) == [(1, "b"), (4, "b")]
    assert rows("--key", "b", "--from-offset", "2", "--key-format", key_format) == [(4, "b")]
    assert rows("--key", "b", "--limit", "1", "--key-format", key_format) == [(1, "b")]
    assert rows("--key", "c", "--latest", "--key-format", key_format) == [(3, "c")]
    assert rows("--key", "b", "--latest", "--key-format", key_format) == []
    assert rows("--key", "nobody", "--key-format", key_format) == []


def test_cat_compares_a_key_as_its_format_decodes_it(made: MadeLog, keyfold: Keyfold) -> None:
    other = MadeLog(store=made.store, place=made.place.__class__("topics", "ids", 0))
    other.append([record(0, '{ "id": 1 }', "x"), record(1, '"a"', "y"), record(2, '{"id":1}', "z")])
    rows = keyfold.json("cat", URL, "ids", "--key-format", "json", "--key", '{"id":1}')
    assert [row["offset"] for row in rows] == [0, 2]
    rows = keyfold.json("cat", URL, "ids", "--key-format", "json", "--key", "a")
    assert [row["value"] for row in rows] == ["y"]


def test_cat_follows_the_log(made: MadeLog, keyfold: Keyfold, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = made.clock.__class__.sleep

    def appended(clock: Clock, seconds: float) -> None:
        sleep(clock, seconds)
        made.append(records("b=9 d=1", made.manifest.next_offset))

    monkeypatch.setattr(made.clock.__class__, "sleep", appended)

    def offsets(*args: str) -> list[int]:
        return [row["offset"] for row in keyfold.json("cat", URL, "users", "--follow", *args)]

    assert offsets("-n", "6") == [1, 2, 3, 4, 5, 6]
    assert offsets("-n", "3", "--tail", "1", "-p", "0") == [6, 7, 8]
    assert offsets("-n", "2", "--tail", "0") == [9, 10]
    assert offsets("-n", "7", "--key", "b", "--from-offset", "2") == [4, 5, 7, 9, 11, 13, 15]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tail", "1", "--from-offset", "1"], "--from-offset and --tail cannot be combined"),
        (["--tail", "1", "--key", "b"], "--tail counts all records up to the end: it cannot be combined with --key"),
        (["--tail", "1", "--latest"], "--latest reads the whole log: it cannot be combined with a start or an end"),
        (["--follow", "--latest"], "--follow never ends: it cannot be combined with --latest"),
        (["--follow", "--to-offset", "9"], "--follow never ends: it cannot be combined with --to-offset"),
    ],
)
def test_cat_refuses_options_that_exclude_each_other(keyfold: Keyfold, args: list[str], message: str) -> None:
    assert keyfold("cat", URL, "users", *args, code=2) == []
    assert keyfold.errors[0] == f"error: {message}"


def test_partitions_can_be_repeated(made: MadeLog, keyfold: Keyfold) -> None:
    for partition in (1, 2):
        MadeLog(store=made.store, place=made.place.__class__("topics", "users", partition)).append(records("z=1"))
    for command in ("describe", "verify", "files"):
        rows = keyfold.json(command, URL, "users", "-p", "2", "-p", "0", "-p", "2")
        assert [row["partition"] for row in rows] == [0, 2]
    for partition in (1, 2):
        made.store.delete(made.place.__class__("topics", "users", partition).manifest_key)
    rows = keyfold.json("repair", URL, "users", "-p", "1", "-p", "2")
    assert [(row["partition"], row["written"]) for row in rows] == [(1, True), (2, True)]


def test_cat_goes_through_all_partitions_in_order(made: MadeLog, keyfold: Keyfold) -> None:
    for partition in (10, 2):
        other = MadeLog(store=made.store, place=made.place.__class__("topics", "users", partition))
        other.append(records("z=1"))
    assert [row["partition"] for row in keyfold.json("cat", URL, "users", "--latest")] == [0, 0, 2, 10]
    assert [row["partition"] for row in keyfold.json("cat", URL, "users", "-p", "2")] == [2]


def test_cat_as_text_prints_one_line_per_record(keyfold: Keyfold) -> None:
    assert keyfold("cat", URL, "users") == [
        "users-0@1\t1970-01-01T00:00:01.000Z\tb\t1",
        "users-0@2\t1970-01-01T00:00:02.000Z\ta\t2",
        "users-0@3\t1970-01-01T00:00:03.000Z\tc\t1",
        "users-0@4\t1970-01-01T00:00:04.000Z\tb\t(tombstone)",
    ]


def test_binary_values_are_distinguishable_from_text() -> None:
    odd = Record(7, -1, CREATE_TIME, b"\xff\x00", None, (("h", None), ("h", b"\xfe"), ("ü", b"\n")))
    assert output.record_json("t", 1, odd) == {
        "topic": "t", "partition": 1, "offset": 7, "timestamp": -1, "timestamp_type": "CreateTime",
        "key": {"base64": "/wA="}, "value": None, "headers": [["h", None], ["h", {"base64": "/g=="}], ["ü", "\n"]],
    }  # fmt: skip
    assert output.record_line("t", 1, odd) == "t-1@7\t-\t0xff00\t(tombstone)\th=(null) h=0xfe ü=\\n"
    assert output.record_line("t", 1, record(0, None, None)).endswith("(null)\t(null)")
    assert time_text(2**62) == str(2**62)
    assert output.dumps({"a": "ü\u2028\n"}) == '{"a":"ü\u2028\\n"}'


def test_list_shows_every_partition_and_its_error(made: MadeLog, keyfold: Keyfold) -> None:
    made.store.put("topics/users/partition=1/00000000000000000000-00000001-s0000000000000000.avro", b"x", Create())
    made.store.put("topics/notes.txt", b"x", Create())
    good, bad = keyfold.json("list", URL)
    assert (good["topic"], good["records"], good["next_offset"]) == ("users", 4, 5)
    assert (bad["partition"], bad["error"]) == (1, "ManifestLost")
    header, row, reason = keyfold("list", URL)
    size = size_text(made.manifest.size_bytes)
    assert header == f"TOPIC  PARTITIONS  OFFSETS  RECORDS  SEGMENTS  {'SIZE':>{len(size)}}  DIRTY"
    assert row.split(None, 5)[:5] == ["users", "2", "5", "4", "2"]
    assert row.endswith("1 unreadable")
    assert reason.startswith("users-1: ManifestLost: the manifest `topics/users/partition=1/_manifest.avro` is missing")
    assert "keyfold log repair" not in row
    assert keyfold("list", URL, "users") == keyfold("list", URL, "--partitions")
    header, good_row, bad_row, _ = keyfold("list", URL, "users")
    assert good_row.split()[:6] == ["users", "0", "0", "5", "4", "2"]
    assert bad_row.split() == ["users", "1", "-", "-", "-", "-", "-", "-", "unreadable"]


def test_list_sums_up_a_topic_with_many_partitions_in_80_columns(made: MadeLog, keyfold: Keyfold) -> None:
    for partition in range(40):
        MadeLog(store=made.store, place=Place("topics", "payments.eu", partition)).append(records("a=1 a=2"))
    lines = keyfold("list", URL)
    assert [line.split()[:5] for line in lines[1:]] == [
        ["payments.eu", "40", "80", "80", "40"],
        ["users", "1", "5", "4", "2"],
    ]
    assert len(keyfold("list", URL, "--partitions")) == 1 + 41
    assert [line.split()[:2] for line in keyfold("list", URL, "payments.eu")[1:]] == [
        ["payments.eu", str(partition)] for partition in range(40)
    ]
    assert len(keyfold.json("list", URL, "payments.eu")) == 40
    for printed in (lines, keyfold("list", URL, "--partitions")):
        assert max(map(len, printed)) <= 80
        assert len({len(line) for line in printed}) == 1


def test_list_suggests_a_topic(keyfold: Keyfold) -> None:
    assert keyfold("list", URL, "usrs", code=1) == []
    assert keyfold.errors == [
        "error: topic `usrs` not found under `memory://test/topics`",
        "hint: did you mean `users`?",
    ]


def test_describe_draws_the_segments(made: MadeLog, keyfold: Keyfold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = keyfold("describe", URL, "users")
    (at,) = (number for number, line in enumerate(lines) if line.startswith("  segments "))
    strip, marks, axis = (line[11:] for line in lines[at : at + 3])
    assert max(map(len, lines[at : at + 3])) == 60
    assert set(strip) == set("│█▒")
    assert (strip.count("│"), strip.index("▒")) == (3, strip.index("│", 1) + 1)
    assert set(marks[strip.index("▒") : -1]) == {"t"}
    assert (axis.split()[0], axis.split()[-1]) == ("0", "5")
    assert "t 1 unmarked tombstone" in lines[at + 4]


def test_describe_counts_superseded_records_on_request(made: MadeLog, keyfold: Keyfold) -> None:
    assert "2 superseded records" in "\n".join(keyfold("describe", URL, "users"))
    assert "garbage_records" not in keyfold.json("describe", URL, "users")[0]
    assert keyfold.json("describe", URL, "users", "--exact")[0]["garbage_records"] == 1
    printed = "\n".join(keyfold("describe", URL, "users", "--exact"))
    assert "of the bytes, 1 superseded record\n" in printed
    assert "░ garbage 1 record" in printed


def test_describe_says_nothing_of_dirt_in_a_topic_that_is_not_compacted(made: MadeLog, keyfold: Keyfold) -> None:
    made.sink.follow({"cleanup.policy": "delete"})
    printed = "\n".join(keyfold("describe", URL, "users", "--exact"))
    for word in ("dirty", "garbage", "superseded", "marked", "▒"):
        assert word not in printed
    assert "█ 2 segments" in printed
    assert keyfold("list", URL)[1].split()[-1] == "-"


def test_describe_shows_offsets_sizes_and_the_dirty_part(made: MadeLog, keyfold: Keyfold) -> None:
    (row,) = keyfold.json("describe", URL, "users")
    assert {k: row[k] for k in ("log_start_offset", "first_dirty_offset", "next_offset", "segments", "tombstones")} == {
        "log_start_offset": 0, "first_dirty_offset": 3, "next_offset": 5, "segments": 2, "tombstones": 1,
    }  # fmt: skip
    assert row["garbage_records_max"] == 2
    assert 0 < row["dirty_ratio"] < 1
    assert row["replaced"] == 2
    text = "\n".join(keyfold("describe", URL, "users"))
    assert "start 0, dirty from 3, next 5" in text
    assert "2 objects pending deletion" in text


def test_files_lists_exactly_the_pinned_objects(made: MadeLog, keyfold: Keyfold) -> None:
    manifest = made.manifest
    segments = [f"{made.store.url}/{made.place.key(s.name)}" for s in manifest.segments]
    assert keyfold("files", URL, "users") == segments
    (row,) = keyfold.json("files", URL, "users", "--indexes")
    assert row["files"] == segments
    assert row["version"] == manifest.version
    assert len(row["indexes"]) == 2
    assert len(keyfold("files", URL, "users", "--indexes")) == 4


def test_verify_exits_with_0_or_1_and_explains_it(made: MadeLog, keyfold: Keyfold) -> None:
    lines = keyfold("verify", URL, "users")
    assert lines[-1] == "users-0: ok, 4 records in 2 segments, version 6"
    assert [line.split()[2] for line in lines[:-1]] == ["replaced:", "replaced:"]
    entry = made.manifest.segments[1]
    made.store.delete(made.place.key(entry.name))
    lines = keyfold("verify", URL, "users", code=1)
    assert lines[0].startswith(f"DAMAGE users-0 segment-missing: {made.place.key(entry.name)}: the manifest lists it")
    assert keyfold.errors == ["error: damage found in users-0", "hint: the findings above say what is lost"]
    (row,) = keyfold.json("verify", URL, "users", code=1)
    assert not row["ok"]
    assert row["findings"][0]["kind"] == "segment-missing"
    assert row["findings"][0]["lost"] == "2 records, offsets 3 to 4"


def test_verify_shows_progress_on_a_terminal(keyfold: Keyfold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert keyfold("verify", URL, "users")[-1].startswith("users-0: ok")
    monkeypatch.setenv("TERM", "xterm")
    assert keyfold("verify", URL, "users")[-1].startswith("users-0: ok")


def test_repair_restores_the_log(made: MadeLog, keyfold: Keyfold) -> None:
    before = keyfold("cat", URL, "users")
    keyfold("repair", URL, "users", "-p", "0", code=1)
    assert "there is nothing to repair" in keyfold.errors[0]
    made.store.delete(made.place.manifest_key)
    keyfold("cat", URL, "users", code=1)
    assert keyfold.errors == [
        f"error: users-0: the manifest `{made.place.manifest_key}` is missing, but its segments exist",
        (
            "hint: this process has changed nothing; find out what deletes objects there, then write the manifest "
            "again from the segments with `keyfold log repair <url> users --partition 0`"
        ),
    ]
    objects = list(made.object_keys())
    (dry,) = keyfold.json("repair", URL, "users", "-p", "0", "--dry-run")
    assert dry["written"] is False
    assert list(made.object_keys()) == objects
    lines = keyfold("repair", URL, "users", "--partition", "0")
    assert "the manifest was written; 4 records in [0, 5)" in lines[-1]
    assert keyfold("cat", URL, "users") == before


def test_a_missing_topic_or_partition_is_reported(keyfold: Keyfold) -> None:
    for command in ("cat", "describe", "files", "verify"):
        keyfold(command, URL, "nobody", code=1)
        assert keyfold.errors[0] == "error: topic `nobody` not found under `memory://test/topics`"
        keyfold(command, URL, "users", "--partition", "7", code=1)
        assert "users-7: no log found at" in keyfold.errors[0]
    keyfold("cat", URL, "../x", code=1)
    assert "is not a valid topic name" in keyfold.errors[0]


def test_a_misspelt_topic_or_url_is_corrected(made: MadeLog, capsys: pytest.CaptureFixture[str]) -> None:
    def errors(topics_dir: str, *args: str, code: int) -> list[str]:
        world = CliContext(lambda _url: (made.store, topics_dir), made.clock, made.random)
        assert run(["log", *args], world) == code
        return capsys.readouterr().err.splitlines()

    lines = errors("topics", "cat", URL, "usrs", code=1)
    assert lines == ["error: topic `usrs` not found under `memory://test/topics`", "hint: did you mean `users`?"]
    lines = errors("", "describe", "s3://bucket", "users", code=1)
    assert lines[1] == "hint: did you mean the URL `memory://test/topics`?"
    for topics_dir in ("", "topics/users"):
        lines = errors(topics_dir, "list", "s3://bucket", code=0)
        assert lines[1] == "hint: did you mean `memory://test/topics`?"
    assert errors("elsewhere", "list", URL, code=0) == ["no logs under `memory://test/elsewhere`"]


def test_verbose_logs_the_requests(
    made: MadeLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CliContext(lambda _url: (made.store, "topics"), made.clock, made.random)
    monkeypatch.delenv("KEYFOLD_LOG_LEVEL", raising=False)
    assert run(["log", "describe", URL, "users", "--json", "-v"], world) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["next_offset"] == 5
    assert "operation=get" in captured.err
    assert "key='topics/users/partition=0/" in captured.err
    assert run(["log", "repair", URL, "users", "-p", "0", "-v"], world) == 1
    assert "there is nothing to repair" in capsys.readouterr().err


def test_an_interrupted_verify_leaves_segments_unread(made: MadeLog, keyfold: Keyfold) -> None:
    for start in range(5, 100):
        made.append(records(f"k{start}=1", start))
    read: list[str] = []
    get_range = made.store.get_range

    def interrupted(key: str, start: int, length: int) -> bytes:
        read.append(key)
        if len(read) == 20:
            raise KeyboardInterrupt
        if len(read) > 20:
            time.sleep(0.1)  # the threads that still read are slower than the command's end, on a busy machine too
        return get_range(key, start, length)

    made.store.get_range = interrupted  # type: ignore[method-assign]  # replaced for this test
    keyfold("verify", URL, "users", "--parallel", "2", code=130)
    assert len(set(read)) < len(made.manifest.segments)


def test_get_prints_the_last_record_of_each_key(keyfold: Keyfold) -> None:
    assert [row["offset"] for row in keyfold.json("get", URL, "users", "a", "c")] == [2, 3]
    assert keyfold("get", URL, "users", "0x63") == keyfold("cat", URL, "users", "--key", "c")
    assert [row["offset"] for row in keyfold.json("get", URL, "users", "b", "--history", code=1)] == [1, 4]
    assert keyfold.errors == ["error: `b` has no value up to users-0 offset 5"]


def test_get_fails_for_a_key_without_a_value(keyfold: Keyfold) -> None:
    assert keyfold("get", URL, "users", "nosuch", "a", code=1) == keyfold("get", URL, "users", "a")
    keyfold("get", URL, "users", "nosuch", code=1)
    assert keyfold.errors == ["error: `nosuch` has no value up to users-0 offset 5"]
    assert len(keyfold("get", URL, "users", "b", code=1)) == 1, "the tombstone"


def test_get_asks_for_the_partition_of_a_key_that_several_have(keyfold: Keyfold, made: MadeLog) -> None:
    MadeLog(store=made.store, clock=made.clock, place=Place("topics", "users", 1)).append(records("a=9"))
    keyfold("get", URL, "users", "a", code=1)
    assert "a key has records in the partitions 0, 1" in keyfold.errors[0]
    assert [row["value"] for row in keyfold.json("get", URL, "users", "a", "-p", "1")] == ["9"]
