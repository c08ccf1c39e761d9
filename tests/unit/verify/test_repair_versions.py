"""A lost or damaged manifest comes back from an older version of its object, with all that the segments cannot know."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import Literal

import pytest

from keyfold.errors import Corrupt, Fenced, LogError, ManifestLost, StoreError
from keyfold.log.manifest import Gap, Manifest
from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.store.api import Create, ObjectStore, ObjectVersion, Update, VersionedStore
from keyfold.store.memory import MemoryStore
from keyfold.verify.findings import FindingKind
from keyfold.verify.partition import verify_partition
from keyfold.verify.repair import RepairPlan, apply_repair, copy_name, plan_repair
from tests.support.logs import MadeLog, latest_of, record, records
from tests.support.versioned import VersionedMemory

SETTINGS = {"cleanup.policy": "compact", "delete.retention.ms": "7"}


# What a repair takes of a version whose objects are gone; the segments themselves tell or bound all else.
FROM_THE_VERSION = {"topic_id", "cluster_id", "settings", "gaps", "last_leader_epoch", "purged_to", "segments"}
FROM_THE_SEGMENTS = {
    *("topic", "partition", "log_id", "sync_marker", "version", "last_epoch", "sink", "compactor", "log_start_offset"),
    *(
        "next_offset",
        "first_dirty_offset",
        "purged_epoch",
        "last_pass_epoch",
        "mapped_to",
        "passes",
        "holds",
        "replaced",
    ),
    *("replica", "lineage", "min_reader", "min_writer", "features", "unknown", "writer_schema"),
}


def test_a_repair_decides_about_every_field_of_the_manifest() -> None:
    """A new field belongs into one of the two sets, and into `enriched` if only a version knows it."""
    assert {field.name for field in fields(Manifest)} == FROM_THE_VERSION | FROM_THE_SEGMENTS


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog(store=VersionedMemory())
    made.append(records("a=1 b=1 a=2"))
    made.append(records("c=1 b= d=1", 3))
    made.sink.follow(SETTINGS, topic_id="topic-id", cluster_id="cluster-id")
    made.sink.advance(8, gaps=[Gap(6, 8, "skipped")])
    made.compact()
    return made


def lose(made: MadeLog) -> None:
    made.store.delete(made.place.manifest_key)


def damage(made: MadeLog) -> bytes:
    blob = made.store.get(made.place.manifest_key)
    data = blob.data[:100] + b"\0" + blob.data[101:]
    made.store.put(made.place.manifest_key, data, Update(blob.etag))
    return data


def plan(made: MadeLog, base: Literal["auto", "version", "segments"] = "auto", *, damaged: bool = False) -> RepairPlan:
    return plan_repair(made.store, made.place, clock=made.clock, random=Random(3), base=base, replace_damaged=damaged)


def repair(
    made: MadeLog, base: Literal["auto", "version", "segments"] = "auto", *, damaged: bool = False
) -> RepairPlan:
    found = plan(made, base, damaged=damaged)
    apply_repair(made.store, found, clock=made.clock, random=made.random)
    report = verify_partition(made.store, made.place, clock=made.clock, random=made.random)
    assert report.is_sound, [str(f) for f in report.damage]
    return found


def read(made: MadeLog) -> list[Record]:
    return list(Log(made.store, "topics", "users").read())


def kept(manifest: Manifest) -> Manifest:
    """A manifest without the fields that a repair resets."""
    none = type(manifest.sink)()
    return replace(manifest, log_id="", version=0, last_epoch=0, sink=none, compactor=none, holds=())


def test_the_memory_store_and_s3_keep_versions() -> None:
    from keyfold.store.s3 import S3Store

    assert isinstance(VersionedMemory(), VersionedStore)
    assert issubclass(S3Store, VersionedStore)
    assert not isinstance(MemoryStore(), VersionedStore)


def test_a_deleted_manifest_is_restored_from_its_version(made: MadeLog) -> None:
    before, whole = made.manifest, read(made)
    lose(made)
    found = repair(made)
    assert found.source.startswith("version v")
    assert (found.new_indexes, found.left_out) == ((), ())
    after = made.manifest
    assert kept(after) == kept(before)
    assert after.settings == SETTINGS
    assert after.gaps == before.gaps != ()
    assert after.passes == before.passes != ()
    assert read(made) == whole
    assert after.log_id != before.log_id
    assert after.last_epoch > before.last_epoch


def test_earlier_writers_are_fenced_and_new_ones_continue(made: MadeLog) -> None:
    zombie = made.sink
    lose(made)
    repair(made)
    with pytest.raises(Fenced):
        zombie.refresh()
    made._sink = None
    made.append(records("a=3", 8))
    made.compact(purge=True)
    assert [r.offset for r in read(made)] == [3, 5, 8]


def test_a_damaged_manifest_is_replaced_only_on_request_with_a_backup(made: MadeLog) -> None:
    before = made.manifest
    bytes_of_damage = damage(made)
    with pytest.raises(Corrupt):
        plan(made)
    found = plan(made, damaged=True)
    assert found.damaged is not None
    repair(made, damaged=True)
    assert kept(made.manifest) == kept(before)
    assert made.store.get(made.place.key(copy_name(found.damaged))).data == bytes_of_damage
    assert any("newer versions cannot be read" in note for note in found.notes)
    report = verify_partition(made.store, made.place, clock=made.clock, random=made.random)
    assert {f.kind for f in report.findings} == {FindingKind.REPLACED, FindingKind.MANIFEST_COPY}
    assert report.is_sound


def test_a_damaged_manifest_without_versions_is_rebuilt_from_the_segments() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2"))
    damage(made)
    found = repair(made, damaged=True)
    assert found.source == "the segments in the folder"
    assert "this store keeps no object versions" in found.notes
    assert [r.offset for r in read(made)] == [0, 1, 2]


def test_a_manifest_that_appears_meanwhile_is_not_replaced(made: MadeLog) -> None:
    damage(made)
    found = plan(made, damaged=True)
    other = repair(made, "segments", damaged=True)
    with pytest.raises(LogError, match="nothing to repair"):
        apply_repair(made.store, replace(found, manifest=replace(found.manifest, log_id="x")), clock=made.clock,
                     random=made.random)  # fmt: skip
    assert made.manifest.log_id == other.manifest.log_id


def test_appends_after_the_newest_readable_version_are_included(made: MadeLog) -> None:
    made.append(records("e=1 f=1", 8))
    made.append(records("g=1", 10), next_offset=12)
    whole, before = read(made), made.manifest
    versions = made.store._versions[made.place.manifest_key]  # type: ignore[attr-defined]  # the store is in memory
    del versions[-2:]  # the versions of the two appends have expired, or could not be read
    lose(made)
    found = repair(made)
    assert any("2 segments that were appended after this version, from offset 8" in note for note in found.notes)
    assert read(made) == whole
    after = made.manifest
    assert (after.next_offset, after.first_dirty_offset) == (11, 8)
    assert [p.epoch for p in after.passes] == [p.epoch for p in before.passes]
    assert [s.name for s in after.segments] == [s.name for s in before.segments]


def test_a_pass_after_the_version_is_undone_while_its_sources_exist(made: MadeLog) -> None:
    state = latest_of(read(made))
    made.append(records("a=5", 8))
    state = latest_of(read(made))
    versions = made.store._versions[made.place.manifest_key]  # type: ignore[attr-defined]  # the store is in memory
    count = len(versions)
    made.compact(purge=True)
    del versions[count:]
    lose(made)
    found = repair(made)
    if found.source.startswith("version"):
        assert any("is undone" in note for note in found.notes)
    assert latest_of(read(made)) == state


def test_a_version_with_deleted_objects_only_supplements_the_segments(made: MadeLog) -> None:
    versions = made.store._versions[made.place.manifest_key]  # type: ignore[attr-defined]  # the store is in memory
    count = len(versions)
    made.append(records("a=5", 8))
    made.compact(purge=True, merge=True)
    made.delete_replaced()
    state = latest_of(read(made))
    del versions[count:]
    lose(made)
    found = repair(made)
    assert found.source == "the segments in the folder"
    assert any("of its objects are missing" in note for note in found.notes)
    assert latest_of(read(made)) == state
    after = made.manifest
    assert (after.settings, after.topic_id) == (SETTINGS, "topic-id")
    with pytest.raises(LogError):
        plan(made, "version")


def test_a_repair_can_use_only_a_version_or_only_the_segments(made: MadeLog) -> None:
    lose(made)
    assert plan(made, "segments").source == "the segments in the folder"
    assert plan(made, "version").source.startswith("version")
    plain = MadeLog()
    plain.append(records("a=1"))
    lose(plain)
    with pytest.raises(ManifestLost, match="this store keeps no object versions"):
        plan(plain, "version")


def test_a_repair_works_without_permission_to_list_versions(made: MadeLog) -> None:
    class Denied(VersionedMemory):
        def list_versions(self, key: str) -> list[ObjectVersion]:  # type: ignore[override]  # a listing that fails
            raise StoreError(key, "AccessDenied")

    store: ObjectStore = Denied()
    for info in made.store.list(""):
        store.put(info.key, made.store.get(info.key).data, Create())
    made.store = store
    lose(made)
    found = plan(made)
    assert any("cannot be listed" in note for note in found.notes)


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(30))
def test_any_history_is_restored_from_any_of_its_last_versions(seed: int) -> None:
    random = Random(seed)
    keys = (None, *(f"k{n}" for n in range(6)))
    source = [record(o, random.choice(keys), random.choice((None, f"v{o}"))) for o in range(150)]
    made = MadeLog(store=VersionedMemory(), random=Random(seed))

    def append() -> None:
        begin = made.sink.refresh().next_offset
        made.append(source[begin : begin + random.randrange(1, 8)])

    append()
    for _ in range(random.randrange(4, 14)):
        choice = random.random()
        if choice < 0.5:
            append()
        elif choice < 0.8:
            made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)
        elif choice < 0.9:
            made.compact(commit=False)
        else:
            made.delete_replaced(most=random.choice((None, 1, 3)))
    state, end = latest_of(read(made)), made.manifest.next_offset
    versions = made.store._versions[made.place.manifest_key]  # type: ignore[attr-defined]  # the store is in memory
    del versions[len(versions) - random.randrange(0, 4) :]
    lose(made)
    repair(made)
    assert made.manifest.next_offset >= end or read(made)[-1].offset < end
    assert latest_of(read(made)) == state
