"""The compaction rule from start to end: compacted logs are copied only to replicas that enable compaction."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from keyfold.log.record import Record
from keyfold.replicas.registry import EnablementStore
from keyfold.runtime.clock import SystemClock
from tests.support.cleaning import EAGER, Sink, latest, load, read_all, record
from tests.support.replica_scene import NAME, Scene, open_sink, until

RAW = [
    [record(0, "a", "1"), record(1, "b", "2"), record(2, "c", "3")],
    [record(3, "a", "4"), record(4, "b", None), record(5, "d", "5")],
]
LAZY = replace(EAGER, file_delete_delay_ms=600_000)
SECRETS = ("farsecret", "testsecret")


def write(scene: Scene, *batches: list[Record]) -> Sink:
    with scene.stores() as (source, _):
        sink = open_sink(source, scene.place())
    for batch in batches:
        sink.append(batch)
    return sink


def status(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = scene.json("replica", "status", scene.source.url, NAME)
    assert not any(secret in str(found) for secret in SECRETS)
    return found


def at_replica(scene: Scene) -> list[Record]:
    with scene.stores() as (_, replica):
        return read_all(replica, load(replica, scene.place()), scene.place())


def test_compaction_waits_until_the_replica_allows_it(between: Scene) -> None:
    scene = between
    write(scene, *RAW)
    scene.add()

    # Never compacted: it goes either way, and nobody has enabled anything.
    scene.settle()
    assert status(scene)["state"] == "in-sync"
    raw = [r for batch in RAW for r in batch]
    assert at_replica(scene) == raw

    # Compacted at the source: the replica does not take it, says what to run, and keeps what it has.
    assert scene.compact(LAZY).partitions[0].superseded == 2
    assert scene.replicate() == 1
    found = status(scene)
    assert found["state"] == "waiting"
    (error,) = found["errors"]
    assert error["code"] == "CompactionNotEnabled"
    assert error["host"] == scene.replica.gate.url.removeprefix("http://")
    assert "keyfold replica enable-compaction" in error["hint"]
    assert at_replica(scene) == raw

    # It is tried again, less and less often.
    process = scene.start_replicator()
    waits: list[int] = []

    def has_waited() -> bool:
        (partition,) = status(scene)["partitions"]
        waits.append(partition["backoff_ms"])
        assert partition["next_attempt_ms"] >= partition["last_attempt_ms"] or not partition["attempts"]
        return bool(partition["attempts"] >= 3)

    until(has_waited, "the process tries again and again")
    assert max(waits) > min(w for w in waits if w > 0), "the waits grow"
    assert at_replica(scene) == raw

    # Enabled in the replica's bucket: the process goes on by itself.
    scene.keyfold("replica", "enable-compaction", *scene.registered)
    until(lambda: status(scene)["state"] == "in-sync", "the process resumes")
    assert process.poll() is None
    assert at_replica(scene) == [raw[2], raw[3], raw[4], raw[5]]
    process.kill()
    process.wait()
    scene.settle()

    # Disabled for this topic: what has come stays, what is new waits; enabled again, it is brought up to date.
    scene.keyfold("replica", "disable-compaction", *scene.registered, "--topic", "users")
    write(scene, [record(6, "c", None), record(7, "e", "6")])
    assert scene.replicate() == 1
    assert status(scene)["errors"][0]["code"] == "CompactionNotEnabled"
    assert latest(at_replica(scene)) == latest(raw)
    scene.keyfold("replica", "enable-compaction", *scene.registered, "--topic", "users")
    scene.settle()
    assert set(latest(at_replica(scene))) == {b"a", b"d", b"e"}


def test_a_format_unreadable_at_the_replica_waits_for_its_upgrade(between: Scene) -> None:
    scene = between
    write(scene, *RAW)
    scene.add()
    scene.keyfold("replica", "enable-compaction", *scene.registered)
    scene.settle()
    with scene.stores() as (_, replica):
        EnablementStore(replica, "topics", SystemClock(), Random(0)).enable(0)
    scene.compact(LAZY)
    assert scene.replicate() == 1
    assert status(scene)["errors"][0]["code"] == "ReplicaFormatTooOld"
    scene.keyfold("replica", "enable-compaction", *scene.registered)
    scene.settle()


def test_a_paused_replica_copies_nothing_and_holds_tombstones(between: Scene) -> None:
    scene = between
    write(scene, *RAW)
    scene.add()
    scene.keyfold("replica", "enable-compaction", *scene.registered)
    scene.settle()
    scene.keyfold("replica", "pause", scene.source.url, NAME)
    write(scene, [record(6, "d", None)])
    scene.replicate()
    assert len(at_replica(scene)) == 6
    for seed in range(3):
        scene.compact(EAGER, seed=seed + 1)
    source, _ = scene.manifests()
    assert source.purged_to < 6, "the tombstone of d waits for the replica"
    assert status(scene)["paused"]
    scene.keyfold("replica", "resume", scene.source.url, NAME)
    scene.settle()
    assert set(latest(at_replica(scene))) == {b"a", b"c"}
    for seed in range(3):
        scene.compact(EAGER, seed=seed + 11)
    scene.settle()
    source, replica = scene.manifests()
    assert source.purged_to == replica.purged_to == 6


def test_no_credential_is_stored_in_either_bucket(between: Scene) -> None:
    scene = between
    write(scene, *RAW)
    scene.add()
    scene.settle()
    with scene.stores() as stores:
        for store in stores:
            for info in store.list(""):
                data = store.get(info.key).data
                assert not any(secret.encode() in data for secret in SECRETS), info.key


def test_a_replica_with_wrong_credentials_is_broken_and_later_resumes(between: Scene) -> None:
    scene = between
    write(scene, *RAW)
    scene.add()
    right = scene.replica.location
    scene.replica.location = replace(right, access_key_id="stranger")
    assert scene.replicate() == 1
    found = status(scene)
    assert found["state"] == "broken"
    assert found["errors"][0]["code"] == "AccessDenied"
    scene.replica.location = right
    scene.settle()


@pytest.mark.parametrize("topic", ["users"])
def test_registrations_are_listed_and_removed(between: Scene, topic: str) -> None:
    scene = between
    write(scene, *RAW)
    scene.add(topics=topic)
    (row,) = scene.json("replica", "list", scene.source.url)
    assert row["name"] == NAME
    assert row["topics"] == [topic]
    scene.settle()
    assert scene.manifests()[0].holds
    scene.keyfold("replica", "remove", scene.source.url, NAME)
    assert scene.manifests()[0].holds == ()
    assert scene.keyfold("replica", "list", scene.source.url) == []
