"""Exports of decoded values, mismatches, and the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.cli.typed import plain
from keyfold.export.request import OnError
from keyfold.export.target import SUMMARY
from keyfold.formats.decoder import reader_type
from keyfold.formats.errors import RecordFormatMismatch
from keyfold.formats.format import Format
from keyfold.formats.logical_types import EPOCH
from keyfold.log.names import Place
from keyfold.log.record import CREATE_TIME, Record
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.exports import ExportPlace, exported, rows
from tests.support.logs import MadeLog

URL = "s3://bucket/topics"


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


def test_without_a_readers_schema_avro_uses_the_newest_writers(place: ExportPlace) -> None:
    made = avro_log(ANNE, BOB, None)
    exported(made, place, value_format=Format.AVRO, key_format=Format.STRING)
    assert [(r["key"], r["value"]) for r in rows(place)] == [
        ("k0", {"name": "anne", "age": None}),
        ("k1", {"name": "bob", "age": 40}),
        ("k2", None),
    ]


def test_avro_is_read_with_a_readers_schema(place: ExportPlace) -> None:
    made = avro_log(ANNE, BOB)
    exported(made, place, value_format=Format.AVRO, value_reader=reader_type(SCHEMA_1))
    assert [r["value"] for r in rows(place)] == [{"name": "anne"}, {"name": "bob"}]


BAD = b"\0\0\0\0\1\x08ann"


def test_a_format_mismatch_names_topic_partition_offset_and_schema(place: ExportPlace) -> None:
    made = avro_log(ANNE, BOB, BAD)
    with pytest.raises(RecordFormatMismatch) as caught:
        exported(made, place, value_format=Format.AVRO)
    assert caught.value.message == (
        "users-0: the value at offset 2 cannot be decoded with schema 1: it has a length of 4 with 3 bytes left"
    )
    assert (caught.value.topic, caught.value.partition, caught.value.offset, caught.value.schema) == ("users", 0, 2, 1)
    assert place.names() == []


def test_format_mismatches_can_be_skipped(place: ExportPlace) -> None:
    made = avro_log(ANNE, BAD, b"", BOB, None)
    (done,) = exported(made, place, value_format=Format.AVRO, on_error=OnError.SKIP)
    assert [r["offset"] for r in rows(place)] == [0, 3, 4]
    assert (done.mismatches.skipped, done.rows) == (2, 3)
    (partition,) = json.loads(place.read(SUMMARY))["partitions"]
    assert partition["skipped"] == 2
    assert "offset 2 is empty" in partition["misfits"][1]


def test_format_mismatches_can_become_null_with_a_reason(place: ExportPlace) -> None:
    made = avro_log(ANNE, BAD, None)
    (done,) = exported(made, place, value_format=Format.AVRO, on_error=OnError.NULL)
    assert [(r["value"], r["value_error"], r["key_error"]) for r in rows(place)] == [
        ({"name": "anne"}, None, None),
        (None, "cannot be decoded with schema 1: it has a length of 4 with 3 bytes left", None),
        (None, None, None),
    ]
    assert done.mismatches.nulled == 1


def test_json_gets_the_common_type_of_all_values(place: ExportPlace) -> None:
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


@pytest.fixture
def keyfold(made: MadeLog, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[str], list[str]]]:
    lake = MemoryStore("lake")

    def open_store(url: str) -> tuple[MemoryStore, str]:
        return (lake, url.split("/", 3)[3]) if url.startswith("s3://lake") else (made.store, "topics")  # type: ignore[return-value]  # one of two kinds of stores

    def call(*args: str, code: int = 0) -> tuple[list[str], list[str]]:
        world = CliContext(open_store, made.clock, made.random)
        assert run(["log", "export", URL, "users", *args], world) == code, capfd.readouterr().err
        captured = capfd.readouterr()
        return captured.out.splitlines(), captured.err.splitlines()

    return call


Keyfold = Callable[..., tuple[list[str], list[str]]]


def test_the_command_reports_what_it_exported(made: MadeLog, keyfold: Keyfold, tmp_path: Path) -> None:
    lines, errors = keyfold("--to", str(tmp_path / "a"))
    assert errors == []
    assert lines[0].startswith("users-0: 7 rows in 1 file, ")
    assert lines[0].endswith(f"; offsets [0, 8) of version {made.manifest.version}")
    assert lines[-1] == f"exported 7 rows to {tmp_path / 'a'}"
    lines, _ = keyfold("--to", "s3://lake/users", "--json", "--latest", "-p", "0")
    (row,) = map(json.loads, lines)
    assert (row["topic"], row["partition"], row["rows"]) == ("users", 0, 2)
    _, errors = keyfold("--to", "s3://lake/users", code=2)
    assert errors == ["error: `--to`: `memory://lake/users` is not empty: it contains an earlier export",
                      "hint: replace it with --overwrite"]  # fmt: skip
    keyfold("--to", "s3://lake/users", "--overwrite")


def test_the_command_shows_progress_on_a_terminal(
    keyfold: Keyfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert keyfold("--to", str(tmp_path / "a"))[0][-1].startswith("exported 7 rows")


def test_the_command_names_format_mismatches(made: MadeLog, keyfold: Keyfold, tmp_path: Path) -> None:
    _, errors = keyfold("--to", str(tmp_path / "a"), "--key-format", "json", "--value-format", "string", code=1)
    assert errors[0] == "error: users-0: the key at offset 0 is not JSON: Expecting value: line 1 column 1 (char 0)"
    assert errors[1] == "hint: continue without it with --on-error null or --on-error skip"
    lines, _ = keyfold("--to", str(tmp_path / "a"), "--value-format", "json", "--on-error", "skip")
    assert "6 rows in 1 file" in lines[0]
    assert ", 1 skipped; " in lines[0]
    assert "users-0: the value at offset 3 is not JSON" in lines[1]


def test_usage_errors_are_reported(keyfold: Keyfold, tmp_path: Path) -> None:
    to = ("--to", str(tmp_path / "a"))
    schema = tmp_path / "s.avsc"
    schema.write_text("{")
    for args, what in (
        ((*to, "--latest", "--to-offset", "3"), "--latest reads the whole log"),
        ((*to, "--from-offset", "3", "--from-timestamp", "3"), "--from-offset and --from-timestamp cannot be combined"),
        ((*to, "--reader-schema", str(schema)), "--reader-schema needs --value-format json or avro, not bytes"),
        ((*to, "--value-format", "json", "--reader-schema", str(schema)), "is not an Avro schema: it is not JSON"),
        (("--to", "gs://x/y"), "`--to`: 'gs://x/y' is not of the form s3://"),
        ((), "--to"),
    ):
        _, errors = keyfold(*args, code=2)
        assert what in "\n".join(errors)
    assert not (tmp_path / "a").exists()


def test_cat_prints_decoded_keys_and_values(capfd: pytest.CaptureFixture[str]) -> None:
    made = avro_log(ANNE, BOB, None, BAD)
    world = CliContext(lambda _url: (made.store, "topics"), made.clock, made.random)

    def cat(*args: str, code: int = 0) -> tuple[list[str], list[str]]:
        assert run(["log", "cat", URL, "users", *args], world) == code
        captured = capfd.readouterr()
        return captured.out.splitlines(), captured.err.splitlines()

    lines, _ = cat("--value-format", "avro", "--key-format", "string", "--json", "--to-offset", "3")
    assert [(row["key"], row["value"]) for row in map(json.loads, lines)] == [
        ("k0", {"name": "anne"}),
        ("k1", {"name": "bob", "age": 40}),
        ("k2", None),
    ]
    lines, errors = cat("--value-format", "avro", code=1)
    assert lines[0].split("\t")[2:] == ["k0", '{"name":"anne"}']
    assert lines[2].split("\t")[2:] == ["k2", "(tombstone)"]
    assert errors == [
        "error: users-0: the value at offset 3 cannot be decoded with schema 1: it has a length of 4 with 3 bytes left",
        "hint: use --value-format bytes to print it undecoded",
    ]


def test_decoded_values_are_printed_as_json() -> None:
    value = {"at": EPOCH, "day": EPOCH.date(), "sum": Decimal("1.50"), "id": UUID(int=1), "raw": b"\xff", "d": (1, 2)}
    assert plain(value) == {
        "at": "1970-01-01T00:00:00+00:00", "day": "1970-01-01", "sum": "1.50", "id": str(UUID(int=1)),
        "raw": {"base64": "/w=="}, "d": [1, 2],
    }  # fmt: skip


def test_a_failed_partition_stops_the_export_and_is_named(place: ExportPlace) -> None:
    made = avro_log(*([ANNE] * 50))
    for partition in range(1, 6):
        other = MadeLog(store=made.store, place=Place("topics", "users", partition))
        values = [ANNE] * 20 + [BAD if partition == 3 else ANNE] + [ANNE] * 20
        other.append([Record(o, o, CREATE_TIME, b"k", value) for o, value in enumerate(values)])
    with pytest.raises(RecordFormatMismatch, match="users-3: the value at offset 20 cannot be decoded"):
        exported(made, place, partitions=tuple(range(6)), value_format=Format.AVRO, parallel=3, rows_per_file=5)
    assert place.names() == []
    done = exported(made, place, partitions=tuple(range(6)), value_format=Format.AVRO, on_error=OnError.SKIP)
    assert [each.mismatches.skipped for each in done] == [0, 0, 0, 1, 0, 0]
    assert [each.rows for each in done] == [50, 41, 41, 40, 41, 41]


def test_avro_keys_use_their_own_schema_and_header(place: ExportPlace) -> None:
    made = avro_log(None)
    key = Record(1, 1, CREATE_TIME, b"\x08anne", b"x", (("__key_schema_id", b"\0\0\0\0\1"),))
    made.append([key, Record(2, 2, CREATE_TIME, b"\0\0\0\0\2\6bob\2\x50", b"y"), Record(3, 3, CREATE_TIME, None, b"z")])
    (done,) = exported(made, place, from_offset=1, key_format=Format.AVRO, key_reader=reader_type(SCHEMA_1))
    assert [(r["key"], r["value"]) for r in rows(place)] == [
        ({"name": "anne"}, b"x"),
        ({"name": "bob"}, b"y"),
        (None, b"z"),
    ]
    assert done.mismatches.examples == []
