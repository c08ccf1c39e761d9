"""A topic with one partition that an attacker has written to: what each command does with it, and with the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.errors import KeyfoldError
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.read.log import Log
from keyfold.restore.run import Restore, RestoreRequest
from keyfold.spark.verify import _begin
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.verify.findings import VerifyReport
from keyfold.verify.round import Round
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import PartitionOutcome
from keyfold_replicator.state.states import SyncState
from keyfold_schemas import schema_text
from tests.support.cleaning import retry_policy
from tests.support.exports import Bucket, exported
from tests.support.fake_topic import FakeTopic
from tests.support.hostile import manifest_file, plant, plant_block, plant_manifest, sealed, zeros_zstd
from tests.support.logs import MadeLog, records
from tests.support.replica_rounds import Worlds

URL = "s3://bucket/topics"
USERS = [Place("topics", "users", partition) for partition in range(3)]
BAD = USERS[1]
BOMB_BYTES = 1 << 33


def garbage_manifest(log: MadeLog) -> None:
    plant(log.store, log.place.manifest_key, b"\xff\x00 garbage" * 50)


def forged_manifest(log: MadeLog) -> None:
    segment = log.manifest.segments[0]
    stray = replace(segment, name=f"../partition=0/{segment.name}")
    plant_manifest(log.store, log.place, replace(log.manifest, segments=(stray,)))


def bomb_manifest(log: MadeLog) -> None:
    plant(log.store, log.place.manifest_key, sealed(schema_text("manifest", 1), zeros_zstd(BOMB_BYTES, checksum=False)))


def manifest_of_a_newer_format(log: MadeLog) -> None:
    newer = manifest_file(schema_text("manifest", 1), b"", keyfold_min_reader="99")
    plant(log.store, log.place.manifest_key, newer)


def manifest_of_another_partition(log: MadeLog) -> None:
    plant(log.store, log.place.manifest_key, log.store.get(USERS[0].manifest_key).data)


def manifest_at_the_end_of_its_numbers(log: MadeLog) -> None:
    plant_manifest(log.store, log.place, replace(log.manifest, version=2**63 - 1))


def folder_without_a_log(log: MadeLog) -> None:
    for info in list(log.store.list(log.place.folder)):
        log.store.delete(info.key)
    log.store.put(f"{log.place.folder}stray", b"x", Create())


def garbage_segment(log: MadeLog) -> None:
    segment = log.manifest.segments[0]
    for name, size in ((segment.name, segment.size_bytes), (segment.index_name, segment.index_size_bytes)):
        plant(log.store, log.place.key(name), Random(3).randbytes(size))


def bomb_segment(log: MadeLog) -> None:
    plant_block(log, "zstandard", zeros_zstd(BOMB_BYTES, checksum=False), 2**31 - 1)


MANIFESTS: list[Callable[[MadeLog], None]] = [
    garbage_manifest,
    forged_manifest,
    bomb_manifest,
    manifest_of_a_newer_format,
    manifest_of_another_partition,
    manifest_at_the_end_of_its_numbers,
    folder_without_a_log,
]
SEGMENTS: list[Callable[[MadeLog], None]] = [garbage_segment, bomb_segment]
Attack = Callable[[MadeLog], None]
on_manifests = pytest.mark.parametrize("attack", MANIFESTS)
on_all = pytest.mark.parametrize("attack", [*MANIFESTS, *SEGMENTS])


def appended(log: MadeLog) -> MadeLog:
    log.append(records("a=1 b=1 a=2"))
    log.append(records("c=1 b=", 3))
    return log


@dataclass
class Bad:
    """The topic `users` with partitions 0 to 2 and the topic `orders`; partition 1 of `users` is bad."""

    store: MemoryStore
    logs: list[MadeLog]
    capture: pytest.CaptureFixture[str]
    errors: str = ""

    @property
    def log(self) -> Log:
        return Log(self.store, "topics", "users", clock=self.logs[0].clock, random=Random(1))

    def __call__(self, *args: str, code: int = 1) -> list[str]:
        world = CliContext(lambda _url: (self.store, "topics"), self.logs[0].clock, Random(2))
        assert run(["log", *args], world) == code
        captured = self.capture.readouterr()
        self.errors = captured.err
        return captured.out.splitlines()

    def json(self, *args: str, code: int = 1) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*args, "--json", code=code)]

    def job(self, **config: str) -> Job:
        options = {
            "s3.bucket.name": "b",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "0",
            "file.delete.delay.ms": "0",
            "cleanup.policy": "compact",
        }
        clock = self.logs[0].clock

        def executor(_due_bytes: int) -> LocalExecutor:
            return LocalExecutor(self.store, retry_policy(clock, Random(1)))

        made = CompactOptions.parse({**options, **config})
        return Job(made, RunSelection(), self.store, executor, clock=clock, random=Random(3))


@pytest.fixture
def bad(attack: Attack, capsys: pytest.CaptureFixture[str]) -> Bad:
    store = MemoryStore()
    logs = [
        appended(MadeLog(store, place, random=Random(n)))
        for n, place in enumerate((*USERS, Place("topics", "orders", 0)))
    ]
    attack(logs[1])
    return Bad(store, logs, capsys)


def partitions(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["topic"], row["partition"]) for row in rows]


@on_manifests
def test_describe_reports_the_bad_partition_and_describes_the_others(bad: Bad) -> None:
    rows = bad.json("describe", URL, "users")
    assert partitions(rows) == [("users", 0), ("users", 1), ("users", 2)]
    assert [row.get("next_offset") for row in rows] == [5, None, 5]
    assert rows[1]["error"] in {"Corrupt", "FormatTooNew", "LogNotFound"}
    assert rows[1]["message"]
    assert "error: not described: users-1" in bad.errors
    text = "\n".join(bad("describe", URL, "users"))
    assert "users-0" in text
    assert f"users-1\t{rows[1]['error']}: " in text
    assert "users-2" in text
    assert "Traceback" not in bad.errors


@on_manifests
def test_describing_only_the_bad_partition_raises_its_error(bad: Bad) -> None:
    assert bad("describe", URL, "users", "--partition", "1") == []
    assert "users-1: " in bad.errors
    bad("describe", URL, "users", "--partition", "2", code=0)


@on_manifests
def test_list_reports_the_bad_partition_and_lists_the_others(bad: Bad) -> None:
    rows = bad.json("list", URL, code=0)
    assert partitions(rows) == [("orders", 0), ("users", 0), ("users", 1), ("users", 2)]
    assert [row["partition"] for row in rows if "error" in row] == [1]


@on_manifests
@pytest.mark.parametrize("command", ["cat", "files"])
def test_results_that_would_look_complete_fail_and_name_the_partition(bad: Bad, command: str) -> None:
    bad(command, URL, "users")
    assert "error: users-1: " in bad.errors
    bad(command, URL, "users", "--partition", "2", code=0)


@pytest.mark.parametrize("attack", SEGMENTS)
def test_a_record_reader_stops_at_a_bad_segment_and_names_it(bad: Bad) -> None:
    lines = bad("cat", URL, "users")
    assert {line.partition("@")[0] for line in lines} <= {"users-0", "users-1"}
    assert "error: users-1: " in bad.errors
    assert ".avro" in bad.errors or ".parquet" in bad.errors


@on_all
def test_verify_reports_the_bad_partition_and_verifies_the_others(bad: Bad) -> None:
    rows = bad.json("verify", URL, "users")
    assert partitions(rows) == [("users", 0), ("users", 1), ("users", 2)]
    assert [row["ok"] for row in rows] == [True, False, True]
    assert rows[1]["findings"]
    assert "users-1" in bad.errors
    assert "users-0" not in bad.errors
    lines = bad("verify", URL, "users")
    assert [line.split(",")[0] for line in lines if line.startswith(("users-0:", "users-2:"))] == [
        "users-0: ok",
        "users-2: ok",
    ]


def with_count(log: MadeLog, record_count: int) -> None:
    first, *rest = log.manifest.segments
    segments = (replace(first, record_count=record_count), *rest)
    plant_manifest(log.store, log.place, replace(log.manifest, segments=segments))


@pytest.mark.parametrize("attack", [lambda log: with_count(log, 2**31), lambda log: with_count(log, 2**62)])
def test_a_verification_expects_no_more_records_than_the_objects_can_hold(bad: Bad) -> None:
    log = PartitionLog(bad.store, BAD, clock=bad.logs[0].clock, random=Random(1))
    begun = Round.begin(log)
    assert isinstance(begun, Round)
    assert begun.expected_rows < 1_000_000
    rows = bad.json("verify", URL, "users")
    assert [row["ok"] for row in rows] == [True, False, True]
    assert {finding["kind"] for finding in rows[1]["findings"]} == {"count-wrong"}


@on_manifests
def test_verify_on_spark_starts_with_a_report_of_the_bad_partition(bad: Bad) -> None:
    def begun(place: Place) -> Round | VerifyReport:
        log = PartitionLog(bad.store, place, clock=bad.logs[0].clock, random=Random(1))
        return _begin(log, is_alone=False)

    report = begun(BAD)
    assert isinstance(report, VerifyReport)
    assert not report.is_sound
    assert [finding.object for finding in report.findings] == [BAD.manifest_key]
    assert isinstance(begun(USERS[0]), Round)


@on_manifests
def test_a_compactor_plan_reports_the_bad_partition_and_plans_the_others(bad: Bad) -> None:
    looks = {str(look.place): look for look in bad.job().review()}
    is_empty = "users-1" not in looks  # an empty folder is no log: the compactor has nothing to do there
    assert {name for name, look in looks.items() if look.error} == (set() if is_empty else {"users-1"})
    assert {name for name, look in looks.items() if look.decision and look.decision.is_due} == {
        "users-0", "users-2", "orders-0",
    }  # fmt: skip
    assert is_empty or "users-1" in str(looks["users-1"].error)


@on_all
def test_a_compactor_run_fails_the_bad_partition_and_cleans_the_others(bad: Bad, attack: Attack) -> None:
    report = bad.job().once()
    outcomes = {str(place): one.outcome for place, one in report.by_place.items()}
    cleaned = {name for name, outcome in outcomes.items() if outcome is PartitionOutcome.CLEANED}
    # A block whose records all stay moves as it is: the compactor unpacks no bomb in it.
    assert cleaned - ({"users-1"} if attack is bomb_segment else set()) == {"users-0", "users-2", "orders-0"}
    if attack is bomb_segment:
        return
    if BAD in report.by_place:
        assert outcomes["users-1"] is PartitionOutcome.FAILED
        assert "users-1" in report.by_place[BAD].why
        assert report.exit_code == 1
    else:
        assert next(iter(bad.store.list(BAD.folder))).key.endswith("stray")


@on_all
def test_a_replication_run_fails_the_bad_partition_and_copies_the_others(attack: Attack) -> None:
    worlds = Worlds.new()
    logs = [appended(worlds.log(partition=partition)) for partition in range(3)]
    appended(worlds.log("orders"))
    attack(logs[1])
    with worlds.running() as running:
        states = {str(state.place): state for state in running.once()}
    assert {name for name, state in states.items() if state.state is SyncState.IN_SYNC} >= {
        "users-0", "users-2", "orders-0",
    }  # fmt: skip
    for topic, partition in (("users", 0), ("users", 2), ("orders", 0)):
        assert worlds.is_equal(topic, partition)
    if attack is not bomb_segment:  # a replica copies what its checksum says, and does not unpack it
        assert states["users-1"].has_failed
        assert "users-1" in states["users-1"].message or attack is garbage_segment


def restoring(bad: Bad, topic: FakeTopic, *chosen: int, **asked: Any) -> Restore:
    request = RestoreRequest("users", partitions=chosen, **asked)
    return Restore(bad.log, topic, request, clock=bad.logs[0].clock, random=Random(1), holder="me")


def restored(bad: Bad, topic: FakeTopic, *chosen: int, **asked: Any) -> dict[int, int]:
    """The records of each partition that is restored now."""
    one = restoring(bad, topic, *chosen, **asked)
    outcome = one.run(one.preview())
    assert not outcome.failures
    return {result.partition: result.records for result in outcome.results}


@pytest.mark.parametrize("attack", [*MANIFESTS, garbage_segment])
def test_a_restore_of_all_partitions_writes_nothing_and_one_of_the_others_succeeds(bad: Bad) -> None:
    topic = FakeTopic(count=3)
    with pytest.raises(KeyfoldError, match="users-1: "):
        restoring(bad, topic).preview()
    assert topic.sends == 0
    assert restored(bad, topic, 0, 2) == {0: 5, 2: 5}


@pytest.mark.parametrize("attack", [bomb_segment])
def test_a_restore_fails_the_partition_with_a_bad_block_and_restores_the_others(bad: Bad) -> None:
    one = restoring(bad, FakeTopic(count=3, settings={"cleanup.policy": "delete"}))
    outcome = one.run(one.preview())
    assert list(outcome.failures) == [1]
    assert "users-1" in str(outcome.failures[1])
    assert {result.partition: result.records for result in outcome.results} == {0: 5, 2: 5}


@pytest.mark.parametrize("attack", [garbage_manifest])
def test_a_bad_partition_can_be_restored_after_its_repair(bad: Bad) -> None:
    sound = bad.logs[2].manifest
    garbage_manifest(bad.logs[2])  # the last one too: the topic has room for it all the same
    topic = FakeTopic(count=0, exists=False)
    assert restored(bad, topic, 0) == {0: 5}
    assert [count for _, count, _ in topic.created] == [3]
    plant_manifest(bad.store, USERS[2], sound)
    outlook = restoring(bad, topic, 0, 2).preview()
    assert [(hazard.kind, hazard.partition) for hazard in outlook.hazards] == [("added", 2)]
    assert restored(bad, topic, 0, 2, goes_on=True) == {0: 5, 2: 5}


@pytest.mark.parametrize("attack", [lambda log: log.store.put("topics/users/partition=2147483647/x", b"x", Create())])
def test_a_folder_without_a_log_is_no_partition(bad: Bad) -> None:
    topic = FakeTopic(count=0, exists=False)
    with pytest.raises(KeyfoldError, match="users-2147483647: no log found at"):
        restoring(bad, topic).preview()
    assert restored(bad, topic, 0, 1, 2) == {0: 5, 1: 5, 2: 5}
    assert [count for _, count, _ in topic.created] == [3]


@on_all
def test_an_export_of_all_partitions_publishes_nothing_and_one_of_the_others_succeeds(bad: Bad) -> None:
    place = Bucket()
    with pytest.raises(KeyfoldError, match="users-1: "):
        exported(bad.logs[0], place, partitions=(0, 1, 2))
    assert place.names() == []
    found = exported(bad.logs[0], place, partitions=(0, 2))
    assert [one.rows for one in found] == [5, 5]


@on_all
def test_a_follower_of_all_partitions_stops_at_the_bad_one_and_can_follow_the_others(bad: Bad) -> None:
    with pytest.raises(KeyfoldError, match="users-1: "):
        for _ in bad.log.follow():
            pass
    follower = bad.log.follow([0, 2])
    assert sorted((partition, record.offset) for partition, record in (next(follower) for _ in range(10))) == [
        (partition, offset) for partition in (0, 2) for offset in range(5)
    ]
