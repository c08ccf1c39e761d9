"""`keyfold replica ...`: what it prints, writes and refuses, in buckets in memory."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from keyfold.errors import IsReplica
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, every_fault
from tests.support.logs import MadeLog, records
from tests.support.replica_command import REPLICA, SOURCE, Buckets, Command, Keyfold, made_log, objects, read


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def keyfold(buckets: Buckets, capsys: pytest.CaptureFixture[str]) -> Keyfold:
    return Keyfold(buckets, capsys)


@pytest.fixture
def made(buckets: Buckets) -> MadeLog:
    return made_log(buckets)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


# Registrations


def test_a_replica_is_tried_registered_and_listed(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    lines = keyfold("add", SOURCE, "dr", "--to", REPLICA, "--region", "eu-west-1")
    assert lines[0] == "dr is registered: s3://dr/topics, all topics"
    assert lines[1].startswith("1 partition with ")
    (row,) = keyfold.json("list", SOURCE)
    assert (row["name"], row["url"], row["region"], row["paused"]) == ("dr", REPLICA, "eu-west-1", False)
    assert not [key for key in objects(keyfold.buckets, "dr") if "_probe" in key]


def test_a_replica_is_opened_where_its_registration_says(
    keyfold: Keyfold, made: MadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    del made
    monkeypatch.setenv("KEYFOLD_REPLICA_ID", "me")
    monkeypatch.setenv("KEYFOLD_REPLICA_SECRET", "mine and mine alone")
    printed = keyfold(
        "add", SOURCE, "dr", "--to", REPLICA, "--endpoint-url", "https://s3.dr.example", "--encryption", "AES256",
        "--access-key-id", "${env:KEYFOLD_REPLICA_ID}", "--secret-access-key", "${env:KEYFOLD_REPLICA_SECRET}",
    )  # fmt: skip
    opened = next(location for location in keyfold.buckets.locations if location.bucket == "dr")
    assert opened.endpoint_url == "https://s3.dr.example"
    assert (opened.access_key_id, opened.secret_access_key) == ("me", "mine and mine alone")
    assert opened.encryption == "AES256"
    kept = b"".join(objects(keyfold.buckets, "log").values())
    assert b"mine and mine alone" not in kept
    assert not any("mine and mine alone" in line for line in printed)


def test_keys_of_the_sources_configuration_are_never_sent_to_the_replica(
    keyfold: Keyfold, made: MadeLog, tmp_path: Path
) -> None:
    del made
    config = {"s3.bucket.name": "log", "aws.access.key.id": "ours", "aws.secret.access.key": "ours alone"}
    (tmp_path / "replicate.json").write_text(json.dumps(config))
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", str(tmp_path / "replicate.json"), "--once")
    opened = {location.bucket: location.access_key_id for location in keyfold.buckets.locations}
    assert opened == {"log": "ours", "dr": None}


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA, "--access-key-id", "AKIA", "--secret-access-key", "hunter22", code=2)
    assert "readable" in keyfold.errors[0]
    assert "hunter22" not in "".join(keyfold.errors)
    assert keyfold.json("list", SOURCE) == []


def test_a_missing_credential_is_named(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    credentials = (
        "--access-key-id",
        "${env:KEYFOLD_REPLICA_GONE_ID}",
        "--secret-access-key",
        "${env:KEYFOLD_REPLICA_GONE}",
    )
    keyfold("add", SOURCE, "dr", "--to", REPLICA, *credentials, code=2)
    assert "KEYFOLD_REPLICA_GONE_ID" in keyfold.errors[0]
    keyfold("add", SOURCE, "dr", "--to", REPLICA, *credentials, "--no-probe")
    (shown,) = keyfold.json("status", SOURCE, "dr")
    assert "KEYFOLD_REPLICA_GONE_ID" in shown["errors"][0]["message"]


def test_a_disallowed_credential_is_reported_immediately(keyfold: Keyfold, made: MadeLog, tmp_path: Path) -> None:
    del made
    adding = ("--to", REPLICA, "--access-key-id", "${env:DR_ID}", "--secret-access-key", "${env:DR_SECRET}")
    keyfold("add", SOURCE, "dr", *adding, code=2)
    assert "environment variable `DR_ID`, which `replica.env.allowlist.pattern` does not allow" in keyfold.errors[0]
    assert "`KEYFOLD_REPLICA_.*`" in " ".join(keyfold.errors)
    assert keyfold.json("list", SOURCE) == []
    keyfold("add", SOURCE, "dr", *adding, "--no-probe")
    assert keyfold.errors[0].startswith("warning: `aws.access.key.id`: the registration of replica `dr` names")
    keyfold("edit", SOURCE, "dr", "--topics", "users", code=2)
    keyfold("edit", SOURCE, "dr", "--profile", "dr", "--unset", "aws.access.key.id",
            "--unset", "aws.secret.access.key", "--no-probe")  # fmt: skip
    assert "AWS profile `dr`, which `replica.profile.allowlist.pattern` does not allow" in keyfold.errors[0]
    allowed = {"s3.bucket.name": "log", "replica.profile.allowlist.pattern": "dr"}
    (tmp_path / "replicate.json").write_text(json.dumps(allowed))
    keyfold("edit", str(tmp_path / "replicate.json"), "dr", "--topics", "users")
    assert (keyfold.errors, keyfold.buckets.locations[-1].profile) == ([], "dr")


def test_a_name_and_a_location_are_registered_once(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("add", SOURCE, "dr", "--to", "s3://other/topics", code=1)
    assert "already registered" in keyfold.errors[0]
    keyfold("add", SOURCE, "other", "--to", REPLICA, code=1)
    assert "as the replica `dr`" in keyfold.errors[0]


@pytest.mark.parametrize("place", [SOURCE, "s3://log/topics/copy", "s3://log"])
def test_a_replica_in_its_own_source_is_refused(keyfold: Keyfold, made: MadeLog, place: str) -> None:
    del made
    before = objects(keyfold.buckets, "log")
    keyfold("add", SOURCE, "dr", "--to", place, code=2)
    assert "source" in keyfold.errors[0]
    assert objects(keyfold.buckets, "log") == before


def test_another_folder_of_the_same_bucket_is_a_replica_with_a_warning(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    assert any("in the same bucket" in line for line in keyfold("add", SOURCE, "dr", "--to", "s3://log/copies"))


def test_a_folder_with_another_log_is_refused(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    made_log(keyfold.buckets, "dr")
    keyfold("add", SOURCE, "dr", "--to", REPLICA, code=1)
    assert "a log of its own" in keyfold.errors[0]
    assert keyfold.json("list", SOURCE) == []


def test_a_folder_with_a_replica_of_another_name_is_refused(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    keyfold("remove", SOURCE, "dr")
    keyfold("add", SOURCE, "other", "--to", REPLICA, code=1)
    assert "`dr`" in keyfold.errors[0]
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")


def test_an_unavailable_replica_is_registered_only_without_check(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold.buckets.away.add("dr")
    keyfold("add", SOURCE, "dr", "--to", REPLICA, code=1)
    keyfold("add", SOURCE, "dr", "--to", REPLICA, "--no-probe")
    assert len(keyfold.json("list", SOURCE)) == 1


def test_add_reports_which_topics_wait_for_compaction(keyfold: Keyfold, made: MadeLog) -> None:
    made.compact()
    lines = keyfold("add", SOURCE, "dr", "--to", REPLICA)
    assert "    keyfold replica enable-compaction s3://log/topics dr" in "\n".join(lines)
    assert any("users" in line and "until compaction is enabled" in line for line in lines)


def test_edit_changes_only_the_given_fields(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA, "--region", "eu-west-1", "--topics", "users")
    (row,) = keyfold.json("edit", SOURCE, "dr", "--topics-regex", "u.*")
    assert (row["topics"], row["topics_regex"], row["region"]) == ([], "u.*", "eu-west-1")
    (row,) = keyfold.json("edit", SOURCE, "dr", "--all-topics", "--unset", "s3.region")
    assert row["config"] == {"s3.bucket.name": "dr", "topics.dir": "topics"}
    keyfold("edit", SOURCE, "dr", code=2)
    keyfold("edit", SOURCE, "dr", "--set", "no.such.key=1", code=2)
    keyfold("edit", SOURCE, "nobody", "--topics", "users", code=1)


def test_a_moved_replica_starts_again_and_its_old_holds_end(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    (before,) = keyfold.json("list", SOURCE)
    assert [hold.replica for hold in made.manifest.holds] == [before["hold_name"]]
    (after,) = keyfold.json("edit", SOURCE, "dr", "--to", "s3://elsewhere/topics")
    assert after["hold_name"] != before["hold_name"]
    assert made.manifest.holds == ()
    keyfold("run", SOURCE, "--once")
    assert read(keyfold.buckets, "elsewhere") == read(keyfold.buckets, "log")


def test_a_removed_replica_holds_nothing_and_stays_readable(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    keyfold("remove", SOURCE, "dr")
    assert made.manifest.holds == ()
    assert not [key for key in objects(keyfold.buckets, "log") if "_replicas" in key]
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")
    keyfold("remove", SOURCE, "dr", code=1)


def test_a_replica_is_removed_even_if_its_entries_cannot_be_deleted(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    away = Fault(lambda call: call.key.endswith("_manifest.avro"), FaultKind.UNAVAILABLE, times=1 << 40)
    keyfold.buckets["log"].add(away)
    assert keyfold("remove", SOURCE, "dr") == ["dr is no longer registered; its data stays"]
    assert any("users" in line and "has no effect" in line for line in keyfold.errors)
    assert keyfold.json("list", SOURCE) == []


@pytest.mark.parametrize("command", ["remove", "promote"])
def test_a_change_is_reported_even_if_the_source_cannot_be_listed_afterwards(
    keyfold: Keyfold, made: MadeLog, command: str
) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    del made
    source = keyfold.buckets["log"]

    def is_listed_after_the_removal(call: Call) -> bool:
        is_there = any(info.key.endswith("_replicas/dr.json") for info in source.inner.list("topics/_replicas/"))
        return call.operation == "list_folders" and not is_there

    source.add(Fault(is_listed_after_the_removal, FaultKind.UNAVAILABLE, times=1 << 40))
    assert keyfold(command, SOURCE, "dr")
    assert any("may be left" in line and "you do not need to do anything" in line for line in keyfold.errors), (
        keyfold.errors
    )
    assert keyfold.json("list", SOURCE) == []


def test_a_source_may_be_a_services_configuration(keyfold: Keyfold, made: MadeLog, tmp_path: Path) -> None:
    del made
    config = {"s3.bucket.name": "log", "store.url": "https://s3.example.org", "log.cleaner.backoff.ms": "1000"}
    path = tmp_path / "compact.json"
    path.write_text(json.dumps(config))
    keyfold("add", str(path), "dr", "--to", REPLICA)
    assert keyfold.buckets.locations[0].endpoint_url == "https://s3.example.org"
    keyfold("list", str(tmp_path / "missing.json"), code=2)


# Replicating


def test_a_run_brings_a_replica_up_to_date_and_status_says_so(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    (shown,) = keyfold.json("status", SOURCE, "dr")
    assert (shown["state"], shown["pending_segments"], shown["pending_records"]) == ("pending", 1, 3)
    assert any("3 records, 1 segment pending" in line for line in keyfold("status", SOURCE))
    keyfold("status", SOURCE, "--check", code=1)
    assert keyfold("run", SOURCE, "--once") == ["dr: 1 of 1 partition in sync"]
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")
    (shown,) = keyfold.json("status", SOURCE)
    assert (shown["state"], shown["pending_bytes"], shown["lag_records"]) == ("in-sync", 0, 0)
    keyfold("status", SOURCE, "--check")
    made.append(records("c=1", 3))
    (ran,) = keyfold.json("run", SOURCE, "dr", "--once")
    assert ran["in_sync"]
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")


def test_compaction_waits_until_the_replica_allows_it(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    made.compact()
    keyfold("run", SOURCE, "--once", code=1)
    (shown,) = keyfold.json("status", SOURCE, "dr")
    (error,) = shown["errors"]
    assert (shown["state"], error["code"]) == ("waiting", "CompactionNotEnabled")
    assert f"keyfold replica enable-compaction {SOURCE} dr --topic users" in error["hint"]
    assert len(read(keyfold.buckets, "dr")) == 3
    keyfold("enable-compaction", REPLICA, "--topic", "users")
    keyfold("run", SOURCE, "--once")
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")
    assert len(read(keyfold.buckets, "dr")) == 2


def test_compaction_is_enabled_by_the_replicas_url_or_by_its_name(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    (found,) = keyfold.json("enable-compaction", SOURCE, "dr")
    assert found["url"] == REPLICA
    assert found["compaction"]["*"]["enabled"] is True
    (found,) = keyfold.json("disable-compaction", REPLICA, "--topic", "users", "--topic", "orders")
    assert {topic: entry["enabled"] for topic, entry in found["compaction"].items()} == {
        "*": True,
        "users": False,
        "orders": False,
    }
    (found,) = keyfold.json("enable-compaction", REPLICA, "--topic", "users", "--format", "3")
    assert found["compaction"]["users"]["format"] == 3
    keyfold("enable-compaction", REPLICA, "--format", "0", code=2)


def test_a_change_for_all_topics_names_topics_with_an_entry_of_their_own(keyfold: Keyfold) -> None:
    keyfold("disable-compaction", REPLICA, "--topic", "users")
    keyfold("enable-compaction", REPLICA, "--topic", "old", "--format", "1")
    keyfold("enable-compaction", REPLICA, "--topic", "same", "--format", "2")
    lines = keyfold("enable-compaction", REPLICA, "--format", "2")
    assert lines[0] == f"{REPLICA}: compaction is enabled for all topics, up to format 2"
    assert lines[-2] == f"{REPLICA}: older entries of single topics say otherwise and still apply: old, users"
    assert f"`keyfold replica enable-compaction {REPLICA} --topic TOPIC`" in lines[-1]
    assert "--replace-topics" in lines[-1]
    (found,) = keyfold.json("enable-compaction", REPLICA, "--format", "2")
    assert found["kept_topics"] == ["old", "users"]
    (found,) = keyfold.json("disable-compaction", REPLICA)
    assert found["kept_topics"] == ["old", "same"]
    (found,) = keyfold.json("enable-compaction", REPLICA, "--topic", "users")
    assert found["kept_topics"] == []


def test_a_change_for_all_topics_replaces_topic_entries_on_request(keyfold: Keyfold) -> None:
    keyfold("disable-compaction", REPLICA, "--topic", "users")
    (found,) = keyfold.json("enable-compaction", REPLICA, "--replace-topics", "--format", "2")
    assert {topic: entry["enabled"] for topic, entry in found["compaction"].items()} == {"*": True}
    assert found["kept_topics"] == []
    keyfold("enable-compaction", REPLICA, "--topic", "users")
    (found,) = keyfold.json("enable-compaction", REPLICA, "--replace-topics", "--format", "2")
    assert [*found["compaction"]] == ["*"]  # also where the entry for all topics says the same already
    (found,) = keyfold.json("disable-compaction", REPLICA, "--replace-topics")
    assert {topic: entry["enabled"] for topic, entry in found["compaction"].items()} == {"*": False}
    keyfold("enable-compaction", REPLICA, "--topic", "users", "--replace-topics", code=2)
    assert "--replace-topics applies to all topics" in "".join(keyfold.errors)


def test_a_paused_replica_is_unchanged_until_it_is_resumed(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA, "--paused")
    assert keyfold("run", SOURCE, "--once") == ["dr: paused, nothing was replicated"]
    assert keyfold.json("status", SOURCE)[0]["paused"] is True
    keyfold("resume", SOURCE, "dr")
    keyfold("run", SOURCE, "--once")
    keyfold("pause", SOURCE, "dr")
    made.append(records("c=1", 3))
    keyfold("run", SOURCE, "--once")
    (shown,) = keyfold.json("status", SOURCE)
    assert (shown["state"], shown["lag_records"]) == ("paused", 1)


def test_a_run_can_be_limited_to_a_replica_and_a_topic(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    made_log(keyfold.buckets, topic="orders")
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("add", SOURCE, "archive", "--to", "s3://archive/topics", "--topics", "orders")
    keyfold("run", SOURCE, "dr", "--once", "--topic", "users")
    assert {key.split("/")[2] for key in objects(keyfold.buckets, "dr") if "_" not in key.split("/")[2]} == {"users"}
    assert not objects(keyfold.buckets, "archive")
    keyfold("run", SOURCE, "--once")
    assert read(keyfold.buckets, "archive", "orders") == read(keyfold.buckets, "log", "orders")
    assert not [key for key in objects(keyfold.buckets, "archive") if "users" in key]
    keyfold("run", SOURCE, "nobody", "--once", code=1)
    keyfold("run", SOURCE, "--topic", "users", code=2)


@pytest.mark.parametrize("narrowed", [("--topic", "user"), ("--partition", "9")])
def test_a_topic_or_partition_of_no_replica_is_an_error(
    keyfold: Keyfold, made: MadeLog, narrowed: tuple[str, str]
) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    for command in (("run", SOURCE, "--once"), ("resync", SOURCE, "dr")):
        assert keyfold(*command, *narrowed, code=1) == []
        assert narrowed[1] in keyfold.errors[0]
        assert "keyfold log list" in keyfold.errors[1]
    keyfold("pause", SOURCE, "dr")
    keyfold("run", SOURCE, "--once", *narrowed)


def test_an_unavailable_replica_fails_alone(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("add", SOURCE, "archive", "--to", "s3://archive/topics")
    keyfold.buckets.away.add("dr")
    found = {row["name"]: row for row in keyfold.json("run", SOURCE, "--once", code=1)}
    assert found["archive"]["in_sync"]
    assert not found["dr"]["in_sync"]
    shown = {row["name"]: row for row in keyfold.json("status", SOURCE)}
    assert (shown["archive"]["state"], shown["dr"]["state"]) == ("in-sync", "waiting")
    assert shown["dr"]["errors"][0]["code"]
    keyfold.buckets.away.clear()
    keyfold("run", SOURCE, "--once")


def test_a_replica_that_missed_tombstones_is_resynced(keyfold: Keyfold, made: MadeLog) -> None:
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("enable-compaction", REPLICA)
    keyfold("run", SOURCE, "--once")
    made.append(records("a= c=1", 3))
    made.compact()
    made.compact(purge=True)  # a compactor that did not wait for the replica
    made.append(records("d=1", 5))
    keyfold("run", SOURCE, "--once", code=1)
    (shown,) = keyfold.json("status", SOURCE, "dr")
    assert shown["state"] == "resync-required"
    assert "resync" in shown["errors"][0]["hint"]
    keyfold("resync", SOURCE, "dr")
    assert read(keyfold.buckets, "dr") == read(keyfold.buckets, "log")
    assert keyfold.json("status", SOURCE, "dr")[0]["state"] == "in-sync"
    keyfold("pause", SOURCE, "dr")
    keyfold("resync", SOURCE, "dr", code=1)
    assert "paused" in keyfold.errors[0]


def test_a_sink_cannot_write_into_a_replica(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("run", SOURCE, "--once")
    there = made_log(keyfold.buckets, "dr", text="")
    with pytest.raises(IsReplica, match="keyfold replica promote"):
        there.log.claim_sink()


def test_a_run_follows_its_configuration(keyfold: Keyfold, made: MadeLog, tmp_path: Path) -> None:
    del made
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("add", SOURCE, "archive", "--to", "s3://archive/topics")
    path = tmp_path / "replicate.json"
    config = {"s3.bucket.name": "log", "replicas": "archive", "replica.io.max.bytes.per.second": "1000000"}
    path.write_text(json.dumps({**config, "metrics.port": free_port()}))
    keyfold.buckets.pacers.clear()
    assert [row["name"] for row in keyfold.json("run", str(path), "--once")] == ["archive"]
    assert len({id(pacer) for pacer in keyfold.buckets.pacers}) == 1
    assert None not in keyfold.buckets.pacers
    path.write_text(json.dumps({**config, "replica.treads": "3"}))
    keyfold("run", str(path), "--once", code=2)
    assert "replica.threads" in "".join(keyfold.errors)


def test_missing_topics_are_named(keyfold: Keyfold, made: MadeLog) -> None:
    del made
    lines = keyfold("add", SOURCE, "dr", "--to", REPLICA, "--topics", "users,user,orders")
    assert "note: topics not found at the source yet: orders, user" in lines
    keyfold("remove", SOURCE, "dr")
    lines = keyfold("add", SOURCE, "dr", "--to", REPLICA, "--topics-regex", "nothing.*")
    assert any("no topic for this replica yet" in line for line in lines)


# The command


@pytest.mark.parametrize(
    "command",
    [
        "add", "edit", "list", "status", "enable-compaction", "disable-compaction", "pause", "resume", "remove",
        "resync", "promote", "demote", "run",
    ],
)  # fmt: skip
def test_every_command_has_an_example(keyfold: Keyfold, command: str) -> None:
    text = " ".join(keyfold(command, "--help"))
    assert "keyfold replica" in text
    assert "s3://" in text
    assert any(command in line for line in keyfold("--help"))


def test_occasional_store_errors_do_not_prevent_adding_a_replica() -> None:
    def added(bucket: str = "", fault: Fault | None = None) -> Buckets:
        buckets = Buckets()
        made_log(buckets)
        buckets.restart()
        if fault is not None:
            buckets[bucket].add(fault)
        assert Command(buckets).run("add", SOURCE, "dr", "--to", REPLICA) == 0, (bucket, str(fault))
        assert fault is not None or [*buckets["dr"].inner.list("")] == []
        return buckets

    clean = added()
    kinds = {FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER}
    faults = [(bucket, f) for bucket in ("log", "dr") for f in every_fault(clean[bucket].calls) if f.kind in kinds]
    assert len(faults) > 40
    for bucket, fault in faults:
        added(bucket, fault)
