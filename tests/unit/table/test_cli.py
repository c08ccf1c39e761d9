"""`keyfold table`: what people and machines read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import requests

from keyfold.cli import app
from keyfold.cli.context import CliContext
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Update
from keyfold.store.location import parse_url
from keyfold.store.memory import MemoryStore
from keyfold_demo.children import free_port
from tests.support.logs import MadeLog, record
from tests.support.tables import Turns

Run = Callable[..., tuple[int, str, str]]
URL = "s3://bucket/topics"
TABLE = "s3://bucket/tables/users"


@pytest.fixture
def made() -> MadeLog:
    clock = ManualClock(2 * 10**12)
    made = MadeLog(store=MemoryStore("bucket", clock=clock), clock=clock)
    made.append([record(0, "a", '{"id": 1}'), record(1, "b", '{"id": 2}'), record(2, "a", '{"id": 3}')])
    return made


@pytest.fixture
def run(made: MadeLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    random = Random(1)
    monkeypatch.setattr(type(made.store), "url", property(lambda _: "s3://bucket"))
    context = CliContext(lambda url: (made.store, parse_url(url)[1]), made.clock, random)

    def command(*words: str) -> tuple[int, str, str]:
        code = app.run(["table", *words], context)
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


SYNC = ("sync", URL, "users", "--to", TABLE, "--key-format", "string", "--value-format", "json")


def test_a_sync_says_what_it_did(run: Run, made: MadeLog) -> None:
    code, out, err = run(*SYNC)
    assert (code, err) == (0, "")
    first, last = out.splitlines()
    assert first == f"users-0: version {made.manifest.version}, up to offset 3; 2 rows added, 0 hidden, by all rows"
    assert last.startswith(f"{TABLE}: snapshot ")
    assert run(*SYNC) == (0, f"{TABLE} is up to date\n", "")


def test_machines_get_one_object(run: Run, made: MadeLog) -> None:
    code, out, _ = run(*SYNC, "--json")
    found = json.loads(out)
    assert (code, found["dry_run"]) == (0, False)
    assert found["partitions"] == [
        {
            "topic": "users", "partition": 0, "log_id": made.manifest.log_id, "version": made.manifest.version,
            "next_offset": 3, "way": "all rows", "added": 2, "hidden": 0, "files": 1,
            "skipped": 0, "nulled": 0, "mismatches": [],
        }
    ]  # fmt: skip
    code, out, _ = run("status", TABLE, "--json")
    status = json.loads(out)
    assert (status["topic"], status["rows"], status["hidden"], status["data_files"]) == ("users", 2, 0, 1)
    assert status["snapshot_id"] == found["snapshot_id"]


def test_status_is_for_people_too(run: Run, made: MadeLog) -> None:
    run(*SYNC)
    code, out, _ = run("status", TABLE)
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == [f"{TABLE}: the latest state of users", "  rows        2, and 0 hidden"]
    assert lines[-1] == f"  partition 0: version {made.manifest.version}, up to offset 3"


def test_drop_deletes_the_table_and_nothing_else(run: Run, made: MadeLog) -> None:
    run(*SYNC)
    code, out, _ = run("drop", TABLE, "--yes")
    assert code == 0
    assert out.startswith(f"dropped {TABLE}: ")
    assert list(made.store.list("tables/")) == []
    assert list(made.store.list("topics/")) != []
    assert run("status", TABLE)[0] == 1


def test_a_table_inside_the_logs_is_refused(run: Run) -> None:
    code, _, err = run("sync", URL, "users", "--to", "s3://bucket/topics/users")
    assert code == 2
    assert err.startswith("error: `--to`: `s3://bucket/topics/users` is inside `s3://bucket/topics/users`")


@pytest.mark.parametrize("words", [("status",), ("drop", "--yes")])
def test_a_table_that_does_not_exist_is_named(run: Run, words: tuple[str, ...]) -> None:
    code, _, err = run(words[0], TABLE, *words[1:])
    assert code == 1
    assert err == f"error: there is no table `{TABLE}`\nhint: `keyfold table sync` creates one\n"


def test_a_change_that_iceberg_cannot_represent_is_one_line(run: Run, made: MadeLog) -> None:
    run(*SYNC)
    made.append([record(3, "c", '{"id": "three"}')])
    code, out, err = run(*SYNC)
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "error: `value.id` is long in the table and string in newer records"


VERIFY = ("verify", URL, "users", TABLE)


def test_verify_proves_every_row_and_fails_for_a_missing_one(run: Run, made: MadeLog) -> None:
    run(*SYNC)
    assert run(*VERIFY) == (0, "users-0: 2 rows, all as in the log\n", "")
    made.append([record(3, "c", '{"id": 4}')])
    assert run(*VERIFY) == (0, "users-0: 2 rows, all as in the log\n", ""), "the table is behind, and right"
    made.compact()
    made.append([record(4, "b", None)])
    made.compact()
    made.compact(purge=True)
    code, out, _ = run(*VERIFY, "--json")
    found = json.loads(out)
    assert (code, found["is_right"]) == (1, False)
    assert "tombstones up to offset 4 were removed" in found["unjudged"]


def test_merge_says_what_it_would_do_and_does_it(run: Run, made: MadeLog) -> None:
    run(*SYNC)
    made.append([record(3, "a", '{"id": 4}')])
    run(*SYNC)
    every = ("merge", TABLE, "--files-max", "1", "--hidden-max", "0", "--keep-seconds", "0")
    assert run(*every, "--dry-run") == (0, f"{TABLE}: 2 files to merge, 2 rows\n", "")
    made.clock.sleep(5.0)
    code, out, _ = run(*every)
    assert code == 0
    assert out.splitlines()[0] == f"{TABLE}: 2 files merged, 2 rows"
    status = json.loads(run("status", TABLE, "--json")[1])
    assert (status["rows"], status["hidden"], status["data_files"]) == (2, 0, 1)
    assert run(*VERIFY)[0] == 0


def test_a_dry_run_writes_nothing(run: Run, made: MadeLog) -> None:
    code, out, _ = run(*SYNC, "--dry-run")
    assert code == 0
    assert out.splitlines() == [
        f"users-0: version {made.manifest.version}, up to offset 3; 2 rows added, 0 hidden, by all rows",
        f"{TABLE}: nothing was written",
    ]
    assert list(made.store.list("tables/")) == []
    run(*SYNC)
    objects = [info.key for info in made.store.list("tables/")]
    made.append([record(3, "a", None)])
    assert "0 rows added, 1 hidden, by new keys" in run(*SYNC, "--dry-run")[1]
    assert run("drop", TABLE, "--dry-run") == (0, f"{TABLE}: {len(objects) - 1} objects to delete\n", "")
    assert [info.key for info in made.store.list("tables/")] == objects


def test_a_dry_run_finds_a_type_that_does_not_fit(run: Run, made: MadeLog) -> None:
    run(*SYNC)
    made.append([record(3, "c", '{"id": "three"}')])
    assert run(*SYNC, "--dry-run")[0] == 1


AGAIN = ("sync", URL, "users", "--to", TABLE)


def test_later_syncs_need_no_options(run: Run, made: MadeLog, tmp_path: Path) -> None:
    schema = tmp_path / "user.avsc"
    schema.write_text('{"type": "record", "name": "User",\n "fields": [{"name": "id", "type": "long"}]}')
    assert run(*SYNC, "--reader-schema", str(schema), "--partition-by", "bucket(4, key)")[0] == 0
    made.append([record(3, "c", '{"id": 4}')])
    code, out, err = run(*AGAIN)
    assert (code, err) == (0, "")
    assert "1 row added, 0 hidden, by new keys" in out
    assert run(*AGAIN, "--reader-schema", str(schema), "--value-format", "json")[0] == 0
    assert run(*VERIFY)[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--value-format", "avro"), f"`--value-format`: `{TABLE}` was made with value-format `json`, not `avro`"),
        (("--partition-by", "key"), f"`--partition-by`: `{TABLE}` was made with partition-by `partition`, not `key`"),
        (("--on-error", "skip"), f"`--on-error`: `{TABLE}` was made with on-error `fail`, not `skip`"),
        (("--headers",), f"`--headers`: `{TABLE}` was made with headers `false`, not `true`"),
    ],
)
def test_options_of_a_table_cannot_be_changed(run: Run, words: tuple[str, ...], says: str) -> None:
    run(*SYNC)
    code, _, err = run(*AGAIN, *words)
    assert code == 2
    assert err.splitlines()[0] == f"error: {says}"


def test_another_schema_to_read_with_is_refused(run: Run, tmp_path: Path) -> None:
    run(*SYNC)
    schema = tmp_path / "user.avsc"
    schema.write_text('"string"')
    code, _, err = run(*AGAIN, "--reader-schema", str(schema))
    assert code == 2
    assert err.splitlines()[0] == f"error: `--reader-schema`: `{TABLE}` was made with another reader-schema"


def test_a_partitioning_that_is_not_understood_writes_nothing(run: Run, made: MadeLog) -> None:
    code, _, err = run(*AGAIN, "--partition-by", "week(timestamp)")
    assert code == 2
    assert err.splitlines() == [
        "error: `--partition-by`: there is no transform `week` of this form",
        "hint: columns, year|month|day|hour(COLUMN), bucket|truncate(N, COLUMN), separated by commas",
    ]
    assert list(made.store.list("tables/")) == []


def test_a_foreign_table_is_named(run: Run, made: MadeLog) -> None:
    run(*SYNC)
    made.append([record(3, "c", '{"id": 4}')])
    key = next(info.key for info in made.store.list("tables/") if info.key.endswith("v2.metadata.json"))
    blob = made.store.get(key)
    made.store.put(key, blob.data.replace(b"keyfold.topic", b"another.topic"), Update(blob.etag))
    code, _, err = run(*AGAIN)
    assert code == 2
    assert err.splitlines()[0] == f"error: `TABLE`: `{TABLE}` is a table that keyfold did not make"


FOLLOW = (*SYNC, "--follow", "--interval", "60")


def test_a_table_that_follows_shows_what_is_new_and_answers_probes(
    run: Run, made: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    ages_s: list[float] = []

    def ask() -> None:
        assert requests.get(f"{url}/health/live", timeout=30).status_code == 200
        assert requests.get(f"{url}/health/ready", timeout=30).status_code == 200
        text = requests.get(f"{url}/metrics", timeout=30).text
        (line,) = (each for each in text.splitlines() if each.startswith("keyfold_table_last_sync_timestamp_seconds{"))
        assert f'table="{TABLE}",topic="users"' in line
        ages_s.append(made.clock.now_ms() / 1000 - float(line.split()[-1]))
        made.append([record(2 + len(ages_s), "c", '{"id": 4}')])

    monkeypatch.setattr("keyfold.runtime.signals.stop_or_end_on_signals", lambda: Turns(made.clock, 2, ask))
    code, out, err = run(*FOLLOW, "--metrics-port", str(port))
    assert (code, err) == (0, "")
    assert ages_s == [0, 0]
    assert [line for line in out.splitlines() if "row" in line] == [
        f"users-0: version {made.manifest.version - 2}, up to offset 3; 2 rows added, 0 hidden, by all rows",
        f"users-0: version {made.manifest.version - 1}, up to offset 4; 1 row added, 0 hidden, by new keys",
    ]


def test_metrics_are_of_a_table_that_follows(run: Run) -> None:
    code, _, err = run(*SYNC, "--metrics-port", "9406")
    assert code == 2
    assert err.startswith("error: --metrics-port requires --follow")


def test_a_port_that_is_taken_names_the_option(run: Run, made: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyfold.runtime.signals.stop_or_end_on_signals", lambda: Turns(made.clock, 1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, out, err = run(*FOLLOW, "--metrics-port", str(taken.getsockname()[1]))
    assert (code, out) == (2, "")
    assert err.startswith("error: `--metrics-port`: cannot listen on 127.0.0.1:")
