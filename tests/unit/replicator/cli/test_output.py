"""What `keyfold replica ...` selects and prints: partitions, one document, one line for what is the same."""

from __future__ import annotations

import json

import pytest

from tests.support.logs import MadeLog, records
from tests.support.replica_command import REPLICA, SOURCE, Buckets, Keyfold, made_log


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def keyfold(buckets: Buckets, capsys: pytest.CaptureFixture[str]) -> Keyfold:
    return Keyfold(buckets, capsys)


@pytest.fixture
def made(buckets: Buckets) -> MadeLog:
    return made_log(buckets)


def test_partitions_are_selected_one_by_one(keyfold: Keyfold, buckets: Buckets) -> None:
    for partition in range(4):
        made_log(buckets, partition=partition)
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    assert keyfold("run", SOURCE, "--once", "-p", "0", "--partition", "3") == ["dr: 2 of 2 partitions in sync"]
    (shown,) = keyfold.json("status", SOURCE, "dr", "-p", "3", "-p", "1")
    assert [(p["partition"], p["state"]) for p in shown["partitions"]] == [(1, "pending"), (3, "in-sync")]
    keyfold("resync", SOURCE, "dr", "-p", "1")
    lines = keyfold("run", SOURCE, "--once", "-p", "2", "-p", "7", "-p", "8", code=1)
    assert lines == ["dr: 1 of 1 partition in sync"], "what there is was replicated"
    assert "dr does not replicate partitions 7, 8" in keyfold.errors[0]
    keyfold("run", SOURCE, "-p", "2", code=2)


def test_json_is_one_document(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    assert keyfold("list", SOURCE, "--json") == ["[]"]
    assert keyfold("status", SOURCE, "--json") == ["[]"]
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("add", SOURCE, "far", "--to", "s3://far/topics")
    for several in (
        ("list", SOURCE), ("run", SOURCE, "--once"), ("run", SOURCE, "dr", "far", "--once"), ("status", SOURCE),
        ("status", SOURCE, "far", "dr"),
    ):  # fmt: skip
        (line,) = keyfold(*several, "--json")
        assert sorted(row["name"] for row in json.loads(line)) == ["dr", "far"], several
    for one in (
        ("run", SOURCE, "dr", "--once"),
        ("status", SOURCE, "dr"),
        ("resync", SOURCE, "dr"),
        ("pause", SOURCE, "dr"),
    ):
        (line,) = keyfold(*one, "--json")
        assert json.loads(line)["name"] == "dr", one


def test_partitions_with_one_error_share_a_line(keyfold: Keyfold, buckets: Buckets) -> None:
    for partition in range(12):
        made_log(buckets, partition=partition).compact()
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    lines = keyfold("run", SOURCE, "--once", code=1)
    why = f"the log was compacted, but compaction is not enabled at replica {REPLICA}"
    assert lines == [
        "dr: 0 of 12 partitions in sync",
        f"dr: 12 partitions of topic users (0-11): waiting: CompactionNotEnabled at s3://dr: {why}",
        f"    run `keyfold replica enable-compaction {SOURCE} dr --topic users`; replication then resumes",
    ]
    shown = keyfold("status", SOURCE)
    assert sum("CompactionNotEnabled" in line for line in shown) == 2, "once with its hint, once with what is pending"
    assert any(line.startswith("  12 partitions of topic users (0-11): waiting") for line in shown)
    (document,) = keyfold.json("status", SOURCE, "dr")
    assert [p["state"] for p in document["partitions"]] == ["waiting"] * 12
    assert sum(": waiting" in line and line.startswith("  users-") for line in keyfold("status", SOURCE, "--all")) == 12


def test_a_lag_has_offsets_and_records(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA, "--enable-compaction")
    keyfold("run", SOURCE, "--once")
    end = made.manifest.next_offset
    made.append(records("x=1 x=2 x=3 x=4", end))
    (shown,) = keyfold.json("status", SOURCE, "dr")
    assert (shown["lag_records"], shown["lag_existing_records"]) == (4, 4)
    assert any("lag 4 offsets, 4 records, " in line for line in keyfold("status", SOURCE))
    made.compact()
    (shown,) = keyfold.json("status", SOURCE, "dr")
    assert shown["lag_records"] == 4
    assert shown["lag_existing_records"] < 4
    (partition,) = shown["partitions"]
    assert partition["lag_existing_records"] == shown["lag_existing_records"]
