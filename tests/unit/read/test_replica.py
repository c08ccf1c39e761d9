"""What describe, verify and repair say of a log that follows another one."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.cli.log_table import ListedLog, LogFigures, table_of_partitions
from keyfold.cli.output import manifest_json, manifest_lines
from keyfold.errors import LogError
from keyfold.log.names import Place, Role, new_name
from keyfold.log.partition_log import PartitionLog
from keyfold.log.replica_log import ReplicaLog, ReplicaSession
from keyfold.read.log import Log
from keyfold.replicas.documents import ENABLEMENT_NAME
from keyfold.store.api import Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.verify.findings import FindingKind
from keyfold.verify.partition import verify_partition
from keyfold.verify.repair import REPLICA_DOCUMENT, apply_repair, plan_repair
from tests.support.logs import MadeLog, records
from tests.support.untyped import untyped
from tests.support.versioned import VersionedMemory


class Followed:
    """A log and its replica."""

    def __init__(self) -> None:
        self.made = MadeLog()
        self.made.append(records("a=1 b=1 a=2"))
        self.made.append(records("b= c=1", 3))
        self.replica = VersionedMemory()
        self.session: ReplicaSession | None = None
        self.follow()

    @property
    def place(self) -> Place:
        return self.made.place

    def copy(self) -> None:
        for name in self.made.log.load().manifest.object_names():
            if not any(self.replica.list(self.place.key(name))):
                self.replica.put(self.place.key(name), self.made.store.get(self.place.key(name)).data, Create())

    def follow(self) -> None:
        source = self.made.log.load().manifest
        if self.session is None:
            log = ReplicaLog(self.replica, self.place, clock=self.made.clock, random=Random(5))
            self.session = log.claim(source, name="dr", source_url="s3://log/topics")
            source = self.made.log.load().manifest
        self.copy()
        self.session.mirror(source)
        self.made.log.hold("dr", None, received_to=source.next_offset)

    def verify(self, store: ObjectStore) -> list[tuple[FindingKind, str]]:
        report = verify_partition(store, self.place, clock=self.made.clock, random=Random(1))
        return [(f.kind, f.what) for f in report.findings]


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_a_replica_is_read_and_verified_like_any_log(followed: Followed) -> None:
    assert followed.verify(followed.replica) == []
    assert list(Log(followed.replica, "topics", "users").read()) == list(
        Log(followed.made.store, "topics", "users").read()
    )


def test_objects_ahead_of_their_manifest_do_not_mean_an_old_manifest(followed: Followed) -> None:
    followed.made.compact()
    followed.copy()
    found = followed.verify(followed.replica)
    assert {kind for kind, _ in found} == {FindingKind.ORPHAN}
    assert "a running round needs it, or the replicator deletes it" in found[0][1]
    followed.follow()
    assert {kind for kind, _ in followed.verify(followed.replica)} <= {FindingKind.REPLACED}


def test_describe_shows_source_and_replica(followed: Followed) -> None:
    replica = followed.session.manifest if followed.session else None
    assert replica is not None
    lines = "\n".join(manifest_lines(replica, ()))
    assert "replica  `dr` of s3://log/topics, has source version 4; only the replicator writes to it" in lines
    (_, row) = table_of_partitions([ListedLog(followed.place, LogFigures.of(replica))])
    assert row.endswith("  replica of s3://log/topics")
    assert untyped(manifest_json(replica))["replica_of"]["version"] == 4
    source = followed.made.log.load().manifest
    assert "held for replica `dr`, which has offsets below 5" in "\n".join(manifest_lines(source, ()))
    hold = untyped(manifest_json(source))["holds"][0]
    assert (hold["replica"], hold["version"], hold["until_ms"], hold["received_to"]) == ("dr", -1, 0, 5)
    pinned = followed.made.log.hold("dr", source.version, 60_000).manifest
    assert "; holds version 5 until " in "\n".join(manifest_lines(pinned, ()))


def test_a_promoted_log_names_the_log_it_continues_and_is_sound(followed: Followed) -> None:
    assert followed.session is not None
    upload = new_name(5, 40, Role.SINK, Random(3))  # of a round that came to nothing
    followed.replica.put(followed.place.key(str(upload)), b"x", Create())
    old = followed.made.log.load().manifest.log_id
    promoted = followed.session.promote()
    assert f"lineage  continues log {old} from offset 5" in "\n".join(manifest_lines(promoted, ()))
    assert promoted.last_epoch == 40
    assert {kind for kind, _ in followed.verify(followed.replica)} == {FindingKind.ORPHAN}


def test_a_replicas_manifest_is_not_repaired_implicitly(followed: Followed) -> None:
    place, store = followed.place, followed.replica
    store.delete(place.manifest_key)
    with pytest.raises(LogError, match="was the replica `dr` of s3://log/topics; replication recreates its manifest"):
        plan_repair(store, place, clock=followed.made.clock, random=Random(1))
    # Replicating does.
    followed.session = None
    followed.follow()
    assert followed.verify(store) == []


def test_an_unversioned_replica_is_recognised_by_its_marker_objects(followed: Followed) -> None:
    assert REPLICA_DOCUMENT == ENABLEMENT_NAME
    store = MemoryStore()
    for info in list(followed.replica.list("")):
        if info.key != followed.place.manifest_key:
            store.put(info.key, followed.replica.get(info.key).data, Create())
    plan_repair(store, followed.place, clock=followed.made.clock, random=Random(1))
    store.put(f"topics/{REPLICA_DOCUMENT}", b"{}", Create())
    with pytest.raises(LogError, match="was a replica;"):
        plan_repair(store, followed.place, clock=followed.made.clock, random=Random(1))


def test_a_repair_of_a_replica_whose_source_is_lost_makes_a_new_log(followed: Followed) -> None:
    place, store, clock = followed.place, followed.replica, followed.made.clock
    store.delete(place.manifest_key)
    plan = plan_repair(store, place, clock=clock, random=Random(1), base="version")
    assert plan.manifest.replica is None
    apply_repair(store, plan, clock=clock, random=Random(2))
    assert followed.verify(store) == []
    PartitionLog(store, place, clock=clock, random=Random(3)).claim_sink()
