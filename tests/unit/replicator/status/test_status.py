"""A replica's status over two stores in memory, from its registration on, with unavailable sides."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from keyfold.errors import AccessDenied, ConfigError, StoreUnavailable
from keyfold.log.names import Place
from keyfold.replicas.documents import Registration, registration_key, status_key
from keyfold.replicas.registry import EnablementStore, ReplicaRegistry
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Blob, Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import Fault, FaultyStore, every_fault
from keyfold_replicator.registry.open_replica import RegisteredDocuments
from keyfold_replicator.registry.replica_pair import LogDirectory, ReplicaPair, ReplicaSettings
from keyfold_replicator.rounds.runner import Runner
from keyfold_replicator.state.figures import Lag, Pending
from keyfold_replicator.state.states import PartitionState, SyncState
from keyfold_replicator.state.totals import RoundTotals, Tally
from keyfold_replicator.status.status import ReplicaStatus, gather_status
from keyfold_replicator.status.status_report import HEARTBEAT_MS, StatusReport, StatusWriter, load_report, report_of
from keyfold_replicator.status.status_text import LINES_MAX, status_document, status_lines
from tests.support.cleaning import PLACE, Sink, clean, record
from tests.support.root import ROOT
from tests.support.untyped import untyped

CONFIG = {"s3.bucket.name": "second", "topics.dir": "dr/topics", "store.url": "http://s3.second"}


class Scene:
    """A registered replica of a source with one log."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.first, self.second = MemoryStore("first", self.clock), MemoryStore("second", self.clock)
        self.registry = ReplicaRegistry(self.first, "topics", self.clock, Random(1))
        self.registration = self.registry.add(Registration("dr", CONFIG))
        self.source = LogDirectory(self.first, "topics", "s3://first/topics", "s3.first")
        self.replica = LogDirectory(self.second, "dr/topics", "s3://second/dr/topics", "s3.second")
        self.sink = Sink.open(self.first, clock=self.clock)
        self.tally = Tally()
        self.writer = StatusWriter(self.first, "topics", "dr", holder="host:7", clock=self.clock, tally=self.tally)

    def append(self, *offsets: int) -> None:
        self.clock.advance(10_000)
        self.sink.append([record(o, f"k{o}", "v" * 50, timestamp=1_000 * o) for o in offsets])

    def replicate(self) -> Runner:
        documents = RegisteredDocuments(self.registration, self.source, self.replica, self.clock, Random(2))
        pair = ReplicaPair("dr", self.registration.hold_name, self.source, self.replica)
        settings = ReplicaSettings(threads=1, retry_timeout_s=1.0)
        runner = Runner(
            pair,
            documents,
            settings,
            clock=self.clock,
            random=Random(3),
            tally=self.tally,
            publish=self.writer.write_running,
        )
        with runner:
            runner.once()
        return runner

    def status(self, **changes: Any) -> ReplicaStatus:
        values: dict[str, Any] = {"source": self.source, "replica": self.replica, "now_ms": self.clock.now_ms()}
        return gather_status(self.registry.load("dr"), **{**values, **changes})


@pytest.fixture
def scene() -> Scene:
    return Scene()


class Refusing:
    """A store in front of another that answers every GET with an error."""

    def __init__(self, inner: ObjectStore, error: Exception) -> None:
        self._inner, self._error = inner, error
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        self.asked += 1
        raise self._error


# Both sides


def test_a_replica_goes_from_empty_to_in_sync_to_behind(scene: Scene) -> None:
    scene.append(0, 1, 2)
    before = scene.status()
    assert before.summary.state is SyncState.PENDING
    assert (before.summary.pending.records, before.summary.pending.segments) == (3, 1)
    assert (before.summary.pending.earliest_ms, before.summary.pending.latest_ms) == (0, 2_000)
    assert before.reported is None
    assert "keyfold replica run" in "\n".join(status_lines(before))

    scene.replicate()
    after = scene.status()
    assert after.summary.state is SyncState.IN_SYNC
    assert after.summary.pending == Pending()
    assert after.is_replicating
    assert scene.tally.totals.sent_bytes == before.summary.pending.bytes

    scene.append(3)
    scene.clock.advance(5_000)
    scene.sink.append([record(4, "k4", "v")])
    behind = scene.status().summary
    assert (behind.state, behind.pending.segments, behind.lag.records) == (SyncState.PENDING, 2, 2)
    assert 5_000 <= behind.lag.ms <= 7_000


def test_the_compaction_rule_is_shown_without_a_running_process(scene: Scene) -> None:
    scene.append(0, 1)
    scene.append(2, 3)
    scene.replicate()
    assert scene.status().summary.state is SyncState.IN_SYNC
    clean(scene.first, clock=scene.clock)
    refused = scene.status()
    assert refused.summary.state is SyncState.WAITING
    (failing,) = refused.summary.errors
    assert (failing.failure.code, failing.failure.host) == ("CompactionNotEnabled", "s3.second")
    assert any("keyfold replica enable-compaction" in line for line in status_lines(refused))
    EnablementStore(scene.second, "dr/topics", scene.clock, Random(4)).enable(1)
    assert scene.status().summary.state is SyncState.PENDING


def test_a_paused_replica_and_uncovered_topics_are_shown(scene: Scene) -> None:
    scene.append(0)
    scene.registry.pause("dr")
    paused = scene.status()
    assert (paused.summary.state, paused.summary.pending.segments) == (SyncState.PAUSED, 1)
    assert status_document(paused)["paused"] is True
    scene.registry.edit("dr", {"topics": "others"})
    assert scene.status().summary.partitions == 0
    scene.registry.resume("dr")
    none = scene.status()
    assert none.summary.state is SyncState.IN_SYNC
    assert any("no partition" in line for line in status_lines(none))


def test_a_status_takes_two_requests_per_partition(scene: Scene) -> None:
    for topic in ("a", "b", "c"):
        Sink.open(scene.first, Place("topics", topic, 0), clock=scene.clock).append([record(0, "k", "v")])
    source, replica = CountedStore(scene.first), CountedStore(scene.second)
    found = scene.status(source=replace(scene.source, store=source), replica=replace(scene.replica, store=replica))
    assert found.summary.partitions == 4
    assert replica.calls == {"get": 1 + 4}
    assert source.calls == {"get": 1 + 4, "list_folders": 1 + 4}, "what the process says, and the manifests"


# One side


def test_an_unavailable_replica_is_asked_once_and_assessed_by_its_cursor(scene: Scene) -> None:
    scene.append(0)
    scene.replicate()
    scene.append(1)
    Sink.open(scene.first, Place("topics", "orders", 0), clock=scene.clock).append([record(0, "k", "v")])
    away = Refusing(scene.second, StoreUnavailable("k", "timed out"))
    found = scene.status(replica=replace(scene.replica, store=away))
    assert away.asked == 1
    assert (found.summary.state, found.summary.is_by_cursor) == (SyncState.WAITING, True)
    assert found.summary.pending.segments == 2
    (failing,) = found.summary.errors
    assert (failing.failure.code, failing.failure.host, len(failing.places)) == ("StoreUnavailable", "s3.second", 2)
    assert any("the replica did not answer for every partition" in line for line in status_lines(found))


def test_a_replica_that_the_caller_may_not_read_is_broken(scene: Scene) -> None:
    scene.append(0)
    denied = Refusing(scene.second, AccessDenied("k", "403", code="AccessDenied"))
    found = scene.status(replica=replace(scene.replica, store=denied))
    assert found.summary.state is SyncState.BROKEN
    assert {f.failure.code for f in found.summary.errors} == {"AccessDenied"}


def test_an_unopenable_replica_is_an_error_with_its_reason(scene: Scene) -> None:
    scene.append(0)
    found = scene.status(replica=ConfigError("aws.access.key.id", "the variable DR_KEY is not set"))
    (failing,) = found.summary.errors
    assert (failing.failure.code, failing.failure.host) == ("ConfigError", "http://s3.second")
    assert "DR_KEY" in failing.failure.message


def test_a_source_with_one_forbidden_manifest_shows_that_partition_as_broken(scene: Scene) -> None:
    scene.append(0)
    scene.first.delete(PLACE.manifest_key)
    found = scene.status()
    assert found.summary.partitions == 1
    assert found.summary.errors[0].failure.host == "s3.first"


# What the process says


def state(partition: int, kind: SyncState = SyncState.IN_SYNC, **changes: Any) -> PartitionState:
    return PartitionState(Place("topics", "users", partition), kind, **changes)


def test_a_written_status_is_read_back(scene: Scene) -> None:
    waiting = state(
        1, SyncState.WAITING, code="SlowDown", host="h", message="m", hint="i", attempts=3, backoff_ms=400,
        last_attempt_ms=5, next_attempt_ms=6, last_success_ms=4, pending=Pending(1, 2, 3, 4, 5), lag=Lag(6, 7),
        source_version=8, source_next_offset=9, replica_version=7, replica_next_offset=3,
    )  # fmt: skip
    scene.tally.add(RoundTotals(commits=3))
    scene.writer.write_running([state(0), waiting])
    found = load_report(scene.first, "topics", "dr")
    assert found is not None
    assert (found.holder, found.written_at_ms) == ("host:7", scene.clock.now_ms())
    assert found.totals["commits"] == 3
    assert found.partitions == {s.place: s for s in (state(0), waiting)}
    data = scene.first.get(status_key("topics", "dr")).data
    assert json.loads(data)["partitions"][0] == {"topic": "users", "partition": 0, "state": "in-sync"}, "few words"


def test_a_process_is_alive_while_it_writes_regularly(scene: Scene) -> None:
    scene.writer.write_running([state(0)])
    found = load_report(scene.first, "topics", "dr")
    assert found is not None
    assert found.is_alive
    scene.clock.advance(2 * HEARTBEAT_MS)
    late = load_report(scene.first, "topics", "dr")
    assert late is not None
    assert late.is_alive
    scene.clock.advance(HEARTBEAT_MS + 2_000)
    late = load_report(scene.first, "topics", "dr")
    assert late is not None
    assert not late.is_alive
    assert any("last reported 3 min ago" in line for line in status_lines(scene.status()))
    scene.writer.write_ended("the bucket is gone")
    ended = load_report(scene.first, "topics", "dr")
    assert ended is not None
    assert not ended.is_alive
    assert ended.partitions == found.partitions, "its last words on each partition stay"
    assert any("the bucket is gone" in line for line in status_lines(scene.status()))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"partitions": 3}', b"\xff"])
def test_a_status_that_no_version_wrote_is_ignored(data: bytes, scene: Scene) -> None:
    assert report_of(data, "topics") is None
    scene.first.put(status_key("topics", "dr"), data, Create())
    scene.append(0)
    assert scene.status().summary.state is SyncState.PENDING
    scene.writer.write_running([state(0)])
    assert load_report(scene.first, "topics", "dr") is not None, "and is written over"


def test_a_state_of_a_newer_version_is_pending() -> None:
    document = {
        "holder": "h",
        "written_at_ms": 1,
        "running": True,
        "new": 1,
        "partitions": [{"topic": "users", "partition": 0, "state": "dancing", "steps": 3}],
    }
    found = report_of(json.dumps(document).encode(), "topics")
    assert found == StatusReport("h", 1, is_running=True, partitions={state(0).place: state(0, SyncState.PENDING)})


def test_two_processes_overwrite_each_others_status_without_failing(scene: Scene) -> None:
    other = StatusWriter(scene.first, "topics", "dr", holder="host:8", clock=scene.clock, tally=Tally())
    for writer, holder in ((scene.writer, "host:7"), (other, "host:8"), (scene.writer, "host:7")):
        writer.write_running([])
        found = load_report(scene.first, "topics", "dr")
        assert found is not None
        assert found.holder == holder


def test_an_earlier_processs_report_is_not_lost(scene: Scene) -> None:
    scene.writer.write_running(
        [state(0, last_success_ms=5), state(1, SyncState.BROKEN, code="Corrupt", last_success_ms=6)]
    )
    scene.writer.write_ended()

    def next_one() -> StatusWriter:
        return StatusWriter(scene.first, "topics", "dr", holder="host:8", clock=scene.clock, tally=Tally())

    next_one().write_ended("the variable DR_KEY is not set")
    found = load_report(scene.first, "topics", "dr")
    assert found is not None
    assert found.error == "the variable DR_KEY is not set"
    assert [s.code for s in found.partitions.values()] == ["", "Corrupt"], "it never came to know better"
    next_one().write_running([state(0), state(1, last_success_ms=9)])
    found = load_report(scene.first, "topics", "dr")
    assert found is not None
    assert [s.last_success_ms for s in found.partitions.values()] == [5, 9]


def test_a_status_write_does_not_recreate_a_removed_replica(scene: Scene) -> None:
    scene.writer.write_running([state(0)])
    scene.registry.remove("dr")
    scene.writer.write_running([state(0)])
    scene.writer.write_ended()
    keys = [info.key for info in scene.first.list("topics/_replicas/")]
    assert keys == []


def test_a_deleted_status_is_written_again(scene: Scene) -> None:
    scene.writer.write_running([state(0)])
    scene.first.delete(status_key("topics", "dr"))
    assert scene.first.head(registration_key("topics", "dr"))
    scene.writer.write_running([state(0)])
    assert load_report(scene.first, "topics", "dr") is not None


def test_a_failed_status_write_is_made_up_by_the_next_ones(scene: Scene) -> None:
    def published(faults: list[Fault]) -> FaultyStore:
        scene.first.delete(status_key("topics", "dr"))
        store = FaultyStore(scene.first, faults)
        writer = StatusWriter(store, "topics", "dr", holder="h", clock=scene.clock, tally=Tally())
        for partition in range(3):
            writer.write_running([state(partition)])
            store.land()
        writer.write_running([state(7)])
        found = load_report(scene.first, "topics", "dr")
        assert found is not None, faults
        assert list(found.partitions) == [state(7).place], faults
        return store

    calls = published([]).calls[:4]
    assert [call.operation for call in calls] == ["get", "head", "put", "put"]
    for fault in every_fault(calls):
        if not fault.kind.name.startswith("CRASH"):
            published([fault])


# How it is shown


def test_the_document_contains_plain_json(scene: Scene) -> None:
    scene.append(0, 1)
    scene.replicate()
    scene.append(2)
    found = json.loads(json.dumps(status_document(scene.status())))
    assert (found["name"], found["state"], found["is_up_to_date"]) == ("dr", "pending", False)
    assert (found["source"], found["replica"]) == ("s3://first/topics", "s3://second/dr/topics")
    assert found["process"]["holder"] == "host:7"
    assert found["partitions_by_state"] == {"pending": 1}
    (partition,) = found["partitions"]
    assert (partition["topic"], partition["partition"], partition["state"]) == ("users", 0, "pending")
    assert partition["pending_segments"] == 1
    assert partition["errors"] == []
    assert found["pending_bytes"] == partition["pending_bytes"] > 0


def test_the_page_lists_exactly_the_documents_fields(scene: Scene) -> None:
    scene.append(0, 1)
    scene.replicate()
    found = untyped(status_document(scene.status(replica=AccessDenied("k", "403"))))
    partition, process, error = found["partitions"][0], found["process"], found["errors"][0]
    assert listed_fields("## In the status") == sorted(found)
    assert listed_fields("### Fields of `process`") == sorted(process)
    assert listed_fields("### Fields of an error") == sorted(error)
    assert listed_fields("### Fields of a partition") == sorted(set(partition) - set(found))


def listed_fields(heading: str) -> list[str]:
    """The fields that the table below a heading of the page lists."""
    page = (ROOT / "docs" / "metrics-replica.md").read_text(encoding="utf-8")
    section = page.partition(f"{heading}\n")[2].partition("\n##")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return sorted(name for row in rows for name in re.findall(r"`([a-z_]+)`", row))


def test_the_lines_name_errors_once_and_the_worst_partitions(scene: Scene) -> None:
    for topic in range(LINES_MAX + 3):
        place = Place("topics", f"t{topic:02}", 0)
        Sink.open(scene.first, place, clock=scene.clock).append([record(0, "k", "v")])
    lines = list(status_lines(scene.status(replica=AccessDenied("k", "403"))))
    assert sum("AccessDenied at" in line for line in lines) == 1
    assert lines[-1].strip() == "... and 4 more partitions not in sync (--json has all)"
    everything = list(status_lines(scene.status(), all_partitions=True))
    assert sum(": pending: " in line for line in everything) == LINES_MAX + 4 + 1


@pytest.mark.parametrize("skew_ms", [0, -86_400_000, 86_400_000])
def test_waits_are_shown_for_any_clock_of_the_process(skew_ms: int, scene: Scene) -> None:
    scene.append(0)
    now_ms = scene.clock.now_ms() + skew_ms
    clock = ManualClock(now_ms)
    scene.writer = StatusWriter(scene.first, "topics", "dr", holder="host:7", clock=clock, tally=scene.tally)
    scene.writer.write_running(
        [state(0, SyncState.WAITING, code="SlowDown", host="h", message="m", hint="do", attempts=2, backoff_ms=30_000,
               last_attempt_ms=now_ms, next_attempt_ms=now_ms + 25_000)]
    )  # fmt: skip
    text = "\n".join(status_lines(scene.status()))
    assert "next attempt in 25 s, longest backoff 30 s" in text
    assert "SlowDown at h (1 partition: users-0): m" in text
    assert "try 3 in 25 s" in text
