"""Who is the source, on two real servers: switched over beside a process that replicates, failed over, brought back."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from keyfold.errors import IsReplica
from keyfold.log.record import Record
from tests.support.cleaning import load, read_all, record
from tests.support.moto import REGION
from tests.support.replica_scene import NAME, WAIT_TIMEOUT_S, End, Scene, open_sink, until

FIRST = [record(0, "a", "1"), record(1, "b", "2"), record(2, "a", "3")]
SECOND = [record(3, "c", "1"), record(4, "b", None)]
THIRD = [record(5, "d", "1")]


def config(scene: Scene, end: End, path: Path, key: str, secret: str) -> str:
    """A file that says how to reach one end; `key` and `secret` are variables."""
    assert scene.environ[key] == end.location.access_key_id
    values = {
        "s3.bucket.name": end.location.bucket,
        "topics.dir": "topics",
        "store.url": end.location.endpoint_url,
        "s3.region": REGION,
        "aws.access.key.id": f"${{env:{key}}}",
        "aws.secret.access.key": f"${{env:{secret}}}",
        "replica.env.allowlist.pattern": "AWS_ACCESS_KEY_ID|AWS_SECRET_ACCESS_KEY",
    }
    path.write_text(json.dumps(values))
    return str(path)


@pytest.fixture
def far(between: Scene, tmp_path: Path) -> str:
    """The replica's end, as a file."""
    return config(between, between.replica, tmp_path / "far.json", "KEYFOLD_REPLICA_KEY", "KEYFOLD_REPLICA_SECRET")


def append(end: End, scene: Scene, batch: list[Record], seed: int = 1) -> None:
    store = end.direct.open()
    try:
        open_sink(store, scene.place(), seed).append(batch)
    finally:
        store.close()


def records_at(end: End, scene: Scene) -> list[Record]:
    store = end.direct.open()
    try:
        return read_all(store, load(store, scene.place()), scene.place())
    finally:
        store.close()


def follow_the_other_way(scene: Scene, far: str, name: str) -> None:
    """What the command says is next, with the old source's endpoint."""
    near = scene.source
    scene.keyfold(
        "replica", "add", far, name, "--to", near.url, "--endpoint-url", str(near.location.endpoint_url),
        "--region", REGION, "--access-key-id", "${env:AWS_ACCESS_KEY_ID}",
        "--secret-access-key", "${env:AWS_SECRET_ACCESS_KEY}",
    )  # fmt: skip
    scene.keyfold("replica", "run", far, "--once")
    assert records_at(scene.source, scene) == records_at(scene.replica, scene)


def test_a_source_is_switched_over_while_a_replicator_runs(between: Scene, far: str) -> None:
    scene = between
    append(scene.source, scene, FIRST)
    scene.add()
    scene.keyfold("replica", "enable-compaction", far)
    process = scene.start("replica", "run", scene.source.url)
    until(lambda: scene.json("replica", "status", *scene.registered)["state"] == "in-sync", "the first round")
    store = scene.source.direct.open()
    sink = open_sink(store, scene.place(), 1)
    sink.append(SECOND)

    lines = scene.keyfold("replica", "promote", *scene.registered)

    assert lines[0].startswith("users-0: promoted, ends at offset 5")
    with pytest.raises(IsReplica):
        sink.append(THIRD)
    store.close()
    assert records_at(scene.replica, scene) == FIRST + SECOND
    append(scene.replica, scene, THIRD, seed=2)
    follow_the_other_way(scene, far, scene.source.location.bucket)
    assert process.poll() is None, "it waits for other replicas to be registered"
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_TIMEOUT_S) == 0


def test_a_lost_source_is_failed_over_and_switched_back(between: Scene, far: str) -> None:
    scene = between
    append(scene.source, scene, FIRST)
    scene.add()
    assert scene.replicate() == 0
    append(scene.source, scene, SECOND)
    with scene.source.gate.shut():
        scene.keyfold("replica", "promote", far, code=1)
        assert "--force" in scene.errors
        scene.keyfold("replica", "promote", far, "--force")
        assert records_at(scene.replica, scene) == FIRST
        append(scene.replica, scene, [record(3, "x", "1")], seed=2)

    name = scene.source.location.bucket
    (found,) = scene.json("replica", "demote", scene.source.url, "--to-replica-of", far, code=1)
    assert (found["lost_from"], found["lost_to"]) == (3, 5)
    scene.keyfold("replica", "demote", scene.source.url, "--to-replica-of", far, "--discard")
    scene.keyfold("replica", "remove", scene.source.url, NAME)
    follow_the_other_way(scene, far, name)
    assert [r.offset for r in records_at(scene.source, scene)] == [0, 1, 2, 3]

    # And it fails back, with nothing lost.
    scene.keyfold("replica", "promote", far, name)
    append(scene.source, scene, [record(4, "y", "1")], seed=3)
    assert [r.offset for r in records_at(scene.source, scene)] == [0, 1, 2, 3, 4]
