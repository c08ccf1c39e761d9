"""The replica becomes the source, and the old source its replica: with warning, without, and back again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold import Position
from keyfold.errors import CommitRefused, IsReplica
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.read.position import anchor_of
from tests.support.cleaning import EAGER, latest, load, read_all, record
from tests.support.replica_scene import NAME, TOPIC, TOPICS_DIR, Scene, open_sink

FIRST = [
    [record(0, "a", "1"), record(1, "b", "2"), record(2, "c", "3")],
    [record(3, "a", "4"), record(4, "b", None), record(5, "d", "5")],
]
LAZY = replace(EAGER, file_delete_delay_ms=600_000)


def log_of(scene: Scene) -> list[Record]:
    """What the scene's source has."""
    with scene.stores() as (source, _):
        return read_all(source, load(source, scene.place()), scene.place())


def append(scene: Scene, *batches: list[Record]) -> None:
    """As a sink does that takes the partition at the scene's source."""
    with scene.stores() as (source, _):
        sink = open_sink(source, scene.place())
        for batch in batches:
            sink.append(batch)


def replicated(scene: Scene) -> None:
    append(scene, *FIRST)
    scene.add()
    scene.keyfold("replica", "enable-compaction", *scene.registered)
    scene.settle()


def demotion(scene: Scene) -> tuple[str, ...]:
    """The command that makes the scene's source a replica."""
    old, new = scene.source.config(scene.folder), scene.replica.config(scene.folder)
    return ("replica", "demote", old, "--to-replica-of", new)


def registered_back(scene: Scene) -> Scene:
    """The other way round: what was the source is the replica now."""
    back = scene.swapped()
    back.add()
    back.keyfold("replica", "enable-compaction", *back.registered)
    return back


def test_a_planned_switch_over_loses_nothing_and_can_be_reversed(between: Scene) -> None:
    scene = between
    replicated(scene)
    with scene.stores() as (source, _):
        old_sink = open_sink(source, scene.place(), seed=5)
    old_sink.append([record(6, "e", "6"), record(7, "c", None)])  # not carried over yet
    old_log_id = old_sink.session.manifest.log_id

    scene.keyfold("replica", "promote", *scene.registered, "--old-name", NAME)
    old, new = scene.manifests()
    assert old.is_replica
    assert not new.is_replica
    assert new.log_id != old_log_id
    assert new.next_offset == 8
    with pytest.raises(CommitRefused):
        old_sink.append([record(8, "late", "x")])
    with pytest.raises(IsReplica):
        append(scene, [record(8, "late", "x")])

    back = registered_back(scene)
    append(back, [record(8, "f", "7"), record(9, "a", None)])
    for seed in range(3):
        back.compact(EAGER, seed=seed + 1)
    back.settle()
    assert set(latest(log_of(back))) == {b"d", b"e", b"f"}
    assert log_of(back) == log_of(scene)

    # And back again, with all that has happened in between.
    back.keyfold("replica", "promote", *back.registered, "--old-name", NAME)
    again = registered_back(back)
    append(again, [record(10, "g", "8")])
    again.compact(LAZY, seed=9)
    again.settle()
    assert set(latest(log_of(again))) == {b"d", b"e", b"f", b"g"}
    assert len(again.manifests()[0].lineage) == 2


def test_repeating_a_promotion_changes_nothing(between: Scene) -> None:
    scene = between
    replicated(scene)
    scene.keyfold("replica", "promote", *scene.registered, "--old-name", NAME, "--dry-run")
    assert not scene.manifests()[0].is_replica
    scene.keyfold("replica", "promote", *scene.registered, "--old-name", NAME)
    first = scene.manifests()
    there, here = scene.replica.config(scene.folder), scene.source.config(scene.folder)
    scene.keyfold("replica", "promote", there, "--source", here)
    assert scene.manifests() == first


def test_after_an_unplanned_failover_records_only_at_the_old_source_are_reported_before_they_are_lost(
    between: Scene,
) -> None:
    scene = between
    replicated(scene)
    append(scene, [record(6, "lost", "6"), record(7, "c", None)])
    back = scene.swapped()
    with scene.source.gate.shut():
        back.keyfold("replica", "promote", scene.replica.config(scene.folder), code=1)
        back.keyfold("replica", "promote", scene.replica.config(scene.folder), "--force")
        append(back, [record(6, "new", "6")])
        back.compact(LAZY, seed=2)
    assert set(latest(log_of(back))) == {b"a", b"c", b"d", b"new"}

    demote = (
        "replica",
        "demote",
        scene.source.config(scene.folder),
        "--to-replica-of",
        scene.replica.config(scene.folder),
    )
    (row,) = back.json(*demote, "--name", NAME, code=1)
    assert (row["lost_from"], row["lost_to"]) == (6, 8)
    assert set(latest(log_of(scene))) >= {b"lost"}
    back.keyfold(*demote, "--name", NAME, "--discard")
    registered_back(scene)
    back.settle()
    assert set(latest(log_of(scene))) == {b"a", b"c", b"d", b"new"}


@pytest.mark.full
def test_an_old_source_without_extra_records_continues_as_a_replica(between: Scene) -> None:
    scene = between
    replicated(scene)
    back = scene.swapped()
    with scene.source.gate.shut():
        back.keyfold("replica", "promote", scene.replica.config(scene.folder), "--force")
        append(back, [record(6, "new", "6"), record(7, "a", None)])
    demote = (
        "replica",
        "demote",
        scene.source.config(scene.folder),
        "--to-replica-of",
        scene.replica.config(scene.folder),
    )
    back.keyfold(*demote, "--name", NAME)
    registered_back(scene)
    for seed in range(3):
        back.compact(EAGER, seed=seed + 1)
    back.settle()
    assert set(latest(log_of(scene))) == {b"c", b"d", b"new"}


def test_a_follower_of_the_old_source_continues_at_the_new_one(between: Scene) -> None:
    scene = between
    replicated(scene)
    with scene.stores() as (source, replica):
        before = Log(source, TOPICS_DIR, TOPIC)
        position = Position(6, anchor_of(before.manifest(0)))
        scene.keyfold("replica", "promote", *scene.registered, "--old-name", NAME)
        append(scene.swapped(), [record(6, "f", "7")])
        after = Log(replica, TOPICS_DIR, TOPIC)

        class Enough:
            def is_set(self) -> bool:
                return follower.positions()[0].offset >= 7

            def wait(self, timeout: float | None = None) -> bool:
                return self.is_set()

        follower = after.follow(0, start={0: position}, stop=Enough())  # type: ignore[arg-type]  # has what is called of it
        assert [r.offset for _, r in follower] == [6]
