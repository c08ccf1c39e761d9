"""Attacks with the credentials of a compromised service: the table of docs/operations/iam.md, executed.

An attacker here has the credentials of a service and sends any request of S3's API. `CAN` says which attacks the
policies let through; every other one must be answered with 403. So the page promises neither too much nor too little.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.errors import AccessDenied, AlreadyExists, ObjectNotFound
from keyfold.log.edits_replica import same_content
from keyfold.log.manifest import Manifest, Replaced, SegmentEntry
from keyfold.log.names import Place, Role, new_name
from keyfold.log.partition_log import PartitionLog
from keyfold.read.log import Log
from keyfold.replicas.registry import ReplicaRegistry
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create, Update
from keyfold_demo.s3_endpoint import s3_client
from tests.support import iam_scenes as scenes
from tests.support.hostile import plant, plant_manifest
from tests.support.iam_recorder import IamS3, User
from tests.support.iam_scenes import PLACE, ROOT, SINK, TABLES_DIR, TOPIC, TOPICS_DIR, Buckets, Stage, policies
from tests.support.logs import MadeLog, records

IAM_PAGE: Final = Path(__file__).parents[2] / "docs" / "operations" / "iam.md"
OTHER: Final = Place(TOPICS_DIR, "other", 0)
EMPTY: Final = Place(TOPICS_DIR, TOPIC, 1)
STRANGE: Final = PLACE.key("part-c0123456789abcdef.avro")
DIRECTORY: Final = f"{TOPICS_DIR}/_keys/{TOPIC}/partition=0/{7:020d}-0123456789abcdef.keys"
NEW_DIRECTORY: Final = DIRECTORY.replace("0123456789abcdef", "fedcba9876543210")
"""An object that another program keeps in a partition's folder."""
CALLERS_KEY: Final = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}


class Attacker:
    """The credentials of a service in a bucket, and `root`, which creates the objects under attack."""

    def __init__(self, stage: Stage, user: str) -> None:
        self.stage, self.bucket = stage, stage.bucket
        self.store, self.root = stage.store(user), stage.store(ROOT)
        self.client: Any = s3_client(stage.s3.url, user)
        self._random = Random(user)

    def name(self, place: Place = PLACE, role: Role = Role.SINK, *, index: bool = False) -> str:
        """Return a key that a segment or an index of this role could have."""
        name = new_name(0, 1, role, self._random)
        return place.key(str(name.index if index else name))

    def there(self, key: str) -> str:
        """Create an object if it does not exist, and return its key."""
        with suppress(AlreadyExists):
            self.root.put(key, b"{}", Create())
        return key

    def read(self, key: str) -> object:
        return self.store.get(self.there(key))

    def delete(self, key: str) -> None:
        self.store.delete(self.there(key))

    def create(self, key: str) -> object:
        return self.store.put(key, b"forged", Create())

    def replace(self, key: str) -> object:
        return self.store.put(key, b"forged", Update(self.root.head(self.there(key)).etag))

    def put(self, key: str, **arguments: object) -> object:
        """Send S3's PUT for an existing object."""
        return self.client.put_object(Bucket=self.bucket, Key=self.there(key), Body=b"forged", **arguments)

    def delete_version(self, key: str) -> object:
        (version, *_) = versions(self.stage, self.there(key))
        return self.client.delete_object(Bucket=self.bucket, Key=key, VersionId=version)

    def can(self) -> set[str]:
        """Try all attacks, and return the names of those that succeed."""
        return {name for name, attack in ATTACKS.items() if works(partial(attack, self))}

    def close(self) -> None:
        """Close the attacker's clients; the stage closes its stores."""
        self.client.close()

    def etag(self, key: str) -> str:
        return self.root.head(self.there(key)).etag


def versions(stage: Stage, key: str) -> dict[str, bytes]:
    """Return all versions of a key in the bucket, deleted or not: version -> bytes, newest first."""
    client = s3_client(stage.s3.url, ROOT)
    try:
        found = [one["VersionId"] for one in client.list_object_versions(Bucket=stage.bucket, Prefix=key)["Versions"]]
        return {one: client.get_object(Bucket=stage.bucket, Key=key, VersionId=one)["Body"].read() for one in found}
    finally:
        client.close()


ATTACKS: Final[Mapping[str, Callable[[Attacker], object]]] = {
    # reading
    "read what the sink wrote": lambda a: a.read(a.name()),
    "read what the compactor wrote": lambda a: a.read(a.name(role=Role.COMPACTOR)),
    "read a directory of keys": lambda a: a.read(DIRECTORY),
    "read a schema": lambda a: a.read(f"{TOPICS_DIR}/_schemas/1.avsc"),
    "read another topic": lambda a: a.read(a.name(OTHER)),
    "read outside the folder": lambda a: a.read(f"elsewhere/{PLACE.manifest_key}"),
    # deleting
    "delete a segment": lambda a: a.delete(a.name()),
    "delete an index": lambda a: a.delete(a.name(index=True)),
    "delete a segment of another topic": lambda a: a.delete(a.name(OTHER)),
    "delete a manifest": lambda a: a.delete(PLACE.manifest_key),
    "delete a schema": lambda a: a.delete(f"{TOPICS_DIR}/_schemas/1.avsc"),
    "delete another program's object": lambda a: a.delete(STRANGE),
    "delete a registration": lambda a: a.delete(f"{TOPICS_DIR}/_replicas/old.json"),
    "delete a file of a table": lambda a: a.delete(f"{TABLES_DIR}/users/metadata/v1.metadata.json"),
    "delete a directory of keys": lambda a: a.delete(DIRECTORY),
    "delete a journal": lambda a: a.delete(f"{TOPICS_DIR}/_restores/{TOPIC}/{TOPIC}@id/plan.json"),
    "delete a version": lambda a: a.delete_version(PLACE.manifest_key),
    "suspend versioning": lambda a: a.client.put_bucket_versioning(
        Bucket=a.bucket, VersioningConfiguration={"Status": "Suspended"}
    ),
    # changing
    "change a segment": lambda a: a.replace(a.name()),
    "change an index": lambda a: a.replace(a.name(role=Role.COMPACTOR, index=True)),
    "change a schema": lambda a: a.replace(f"{TOPICS_DIR}/_schemas/1.avsc"),
    "replace a manifest": lambda a: a.replace(PLACE.manifest_key),
    "replace a manifest of another topic": lambda a: a.replace(OTHER.manifest_key),
    "replace a manifest without a condition": lambda a: a.put(PLACE.manifest_key),
    "encrypt a manifest under its own key": lambda a: a.put(
        PLACE.manifest_key, IfMatch=a.etag(PLACE.manifest_key), **CALLERS_KEY
    ),
    "order the sink": lambda a: a.replace(f"{TOPICS_DIR}/_sinks/{SINK}/orders.json"),
    "speak for the sink's worker": lambda a: a.replace(f"{TOPICS_DIR}/_sinks/{SINK}/workers/one.json"),
    "order another sink": lambda a: a.replace(f"{TOPICS_DIR}/_sinks/others/orders.json"),
    "speak for another sink's worker": lambda a: a.replace(f"{TOPICS_DIR}/_sinks/others/workers/one.json"),
    "redirect a replica": lambda a: a.replace(f"{TOPICS_DIR}/_replicas/dr.json"),
    "speak for a replicator": lambda a: a.replace(f"{TOPICS_DIR}/_replicas/dr/status.json"),
    "enable compaction at a replica": lambda a: a.replace(f"{TOPICS_DIR}/_replica.json"),
    "take a restore's lease": lambda a: a.replace(f"{TOPICS_DIR}/_restores/{TOPIC}/{TOPIC}@id/lease.json"),
    # adding
    "add a segment of the sink": lambda a: a.create(a.name()),
    "add a segment of the compactor": lambda a: a.create(a.name(role=Role.COMPACTOR)),
    "add a segment to another topic": lambda a: a.create(a.name(OTHER)),
    "create a manifest": lambda a: a.create(EMPTY.manifest_key),
    "create a schema": lambda a: a.create(f"{TOPICS_DIR}/_schemas/2.avsc"),
    "announce a window": lambda a: a.create(f"{TOPICS_DIR}/_restores/{TOPIC}/{TOPIC}@id/partition=0/0000000001.window"),
    "create a directory of keys": lambda a: a.create(NEW_DIRECTORY),
    "create a file of a table": lambda a: a.create(f"{TABLES_DIR}/users/data/1.parquet"),
    "write outside the folder": lambda a: a.create(f"elsewhere/{a.name()}"),
}


@dataclass(frozen=True, slots=True)
class Service:
    """The policies of a service in one bucket, and the attacks that they allow."""

    policies: tuple[str, ...]
    can: frozenset[str]


_READS_RECORDS: Final = {"read what the sink wrote", "read what the compactor wrote"}
_READS_WRITERS: Final = _READS_RECORDS | {"read a schema"}
_READS: Final = _READS_WRITERS | {"read a directory of keys"}
_AT_THE_SOURCE: Final = _READS_WRITERS | {"replace a manifest", "speak for a replicator"}
_AT_THE_REPLICA: Final = _READS_WRITERS | {
    "delete a segment", "delete an index", "replace a manifest", "create a manifest", "create a schema",
    "add a segment of the sink", "add a segment of the compactor",
}  # fmt: skip
_REGISTERS: Final = {"delete a registration", "redirect a replica", "speak for a replicator",
                     "enable compaction at a replica"}  # fmt: skip
CAN: Final[Mapping[str, Service]] = {
    "sink": Service(
        ("sink",),
        frozenset(
            {"read what the sink wrote", "read a schema", "replace a manifest", "create a manifest", "create a schema",
             "add a segment of the sink", "order the sink", "speak for the sink's worker"}
        ),
    ),
    "compactor": Service(
        ("compactor",),
        frozenset(
            _READS_RECORDS
            | {"replace a manifest", "delete a segment", "delete an index", "add a segment of the compactor"}
        ),
    ),
    "keys": Service(
        ("keys",),
        frozenset({"read a directory of keys", "create a directory of keys", "delete a directory of keys"}),
    ),
    "server": Service(("reader", "serve"), frozenset(_READS)),
    "replicator at the source": Service(("replica-source",), frozenset(_AT_THE_SOURCE)),
    "replicator at the replica": Service(("replica-target",), frozenset(_AT_THE_REPLICA)),
    "reader": Service(("reader",), frozenset(_READS)),
    "table": Service(("reader", "table"), frozenset(_READS | {"create a file of a table", "delete a file of a table"})),
    "restore": Service(
        ("reader", "restore"), frozenset(_READS | {"take a restore's lease", "announce a window"})
    ),
    "repair": Service(("reader", "repair"), frozenset(_READS | {"replace a manifest", "create a manifest"})),
    "operator of registrations": Service(("operator",), frozenset(_REGISTERS)),
    "operator": Service(
        ("replica-source", "replica-target", "operator"), frozenset(_AT_THE_SOURCE | _AT_THE_REPLICA | _REGISTERS)
    ),
}  # fmt: skip


def works(attack: Callable[[], object]) -> bool:
    """Return whether S3 allows the attack; False for a 403. Any other error is raised."""
    try:
        attack()
    except AccessDenied:
        return False
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 403:
            raise
        return False
    return True


@pytest.mark.sharded
@pytest.mark.parametrize("service", CAN)
def test_a_compromised_service_can_do_exactly_what_the_page_lists(
    service: str, s3: IamS3, stage: Callable[[], Stage]
) -> None:
    at = stage()
    user = re.sub(r"\W", "-", service)
    s3.add_user(user, *policies(at.bucket, *CAN[service].policies, topics=TOPIC))
    with closing(Attacker(at, user)) as attacker:
        assert attacker.can() == CAN[service].can


def test_the_attacks_work_without_policies(stage: Callable[[], Stage], s3: IamS3) -> None:
    """A refused attack is refused by a policy, and not because the attack is wrong."""
    at = stage()
    s3.bucket_policies.pop(at.bucket)
    with closing(Attacker(at, ROOT)) as attacker:
        assert attacker.can() == {*ATTACKS}


# What the attacks that are let through lead to


def test_a_manifest_forged_by_the_sink_causes_deletions_that_versions_undo(
    s3: IamS3, stage: Callable[[], Stage]
) -> None:
    at = stage()
    s3.add_user("sink", *policies(at.bucket, "sink", topics=TOPIC))
    s3.add_user("compactor", *policies(at.bucket, "compactor", topics=TOPIC))
    made, root = at.made_log(), at.store(ROOT)
    lost = made.append(records("a=1 b=2"))
    made.append(records("c=3", 2))
    segment, before = PLACE.key(lost.name), root.get(PLACE.manifest_key).data
    data = root.get(segment).data
    assert not works(lambda: at.store("sink").delete(segment))
    plant_manifest(at.store("sink"), PLACE, _without(made.manifest, lost))
    scenes.job(at.store("compactor")).once()
    with pytest.raises(ObjectNotFound):
        root.get(segment)
    assert [*versions(at, segment).values()] == [data]
    assert before in versions(at, PLACE.manifest_key).values()


def test_a_forged_name_outside_the_partition_causes_no_deletion(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    s3.add_user("sink", *policies(at.bucket, "sink", topics=TOPIC))
    compactor = s3.add_user("compactor", *policies(at.bucket, "compactor", topics=TOPIC))
    made = at.made_log()
    made.append(records("a=1 b=2"))
    stray = f"../../../elsewhere/{made.manifest.segments[0].name}"
    forgery = replace(made.manifest, replaced=(Replaced(stray, 1, 1), Replaced("_manifest.avro", 1, 1)))
    plant_manifest(at.store("sink"), PLACE, forgery)
    scenes.job(at.store("compactor")).once()
    asked = {call.action for call in (*compactor.allowed, *compactor.refused)}
    assert "s3:GetObject" in asked
    assert "s3:DeleteObject" not in asked


def test_a_compromised_sink_can_add_records_and_end_a_log(s3: IamS3, stage: Callable[[], Stage]) -> None:
    at = stage()
    s3.add_user("sink", *policies(at.bucket, "sink", topics=TOPIC))
    s3.add_user("reader", *policies(at.bucket, "reader", topics=TOPIC))
    at.made_log().append(records("a=1"))
    forger = MadeLog(at.store("sink"), PLACE, SystemClock(), Random(1))
    forger.append(records("a=invented", 1))
    log = Log(at.store("reader"), TOPICS_DIR, TOPIC)
    assert [record.value for record in log.read(0)] == [b"1", b"invented"]
    ended = replace(forger.manifest, segments=(), log_start_offset=2, first_dirty_offset=2)
    plant_manifest(at.store("sink"), PLACE, ended)
    assert [*log.read(0)] == []


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and its replica, and a replicator with its two users."""

    source: Stage
    replica: Stage
    keyfold: Buckets
    near: User
    far: User

    def carry(self, code: int | None = 0) -> str:
        return self.keyfold("replica", "run", self.source.url, "--once", code=code)

    def names(self) -> set[str]:
        """Return the replica's records of the partition."""
        return {info.key.removeprefix(PLACE.folder) for info in self.replica.store(ROOT).list(PLACE.folder)}


@pytest.fixture
def pair(s3: IamS3, stage: Callable[[], Stage]) -> Pair:
    source, replica = stage(), stage()
    near = s3.add_user("near", *policies(source.bucket, "replica-source", topics=TOPIC))
    far = s3.add_user("far", *policies(replica.bucket, "replica-target", topics=TOPIC))
    scenes.registered(Buckets(source, replica, ROOT, ROOT))
    return Pair(source, replica, Buckets(source, replica, "near", "far"), near, far)


def test_a_compromised_source_can_delete_a_replicas_segments_and_send_schemas(pair: Pair) -> None:
    made, root = pair.source.made_log(), pair.source.store(ROOT)
    lost = made.append(records("a=1 b=2"))
    made.append(records("c=3", 2))
    root.put(f"{TOPICS_DIR}/_schemas/9.avsc", b'{"type": "string"}', Create())
    pair.carry()
    assert lost.name in pair.names()
    plant_manifest(root, PLACE, _without(made.manifest, lost))
    give_up = time.monotonic() + 60
    while lost.name in pair.names() and time.monotonic() < give_up:  # when it may go is by the store's clock
        pair.carry()
    assert lost.name not in pair.names()
    assert pair.replica.store(ROOT).get(f"{TOPICS_DIR}/_schemas/9.avsc").data == b'{"type": "string"}'


def test_a_source_cannot_make_the_replicator_read_or_write_outside_the_partition(pair: Pair) -> None:
    made = pair.source.made_log()
    entry = made.append(records("a=1 b=2"))
    stray = f"../../../elsewhere/{entry.name}"
    plant_manifest(pair.source.store(ROOT), PLACE, replace(made.manifest, segments=(replace(entry, name=stray),)))
    pair.carry(code=None)
    for user in (pair.near, pair.far):
        asked = [str(call) for call in (*user.allowed, *user.refused)]
        assert not [call for call in asked if "elsewhere" in call or ".." in call]
    assert entry.name not in pair.names()


def test_a_compromised_replica_can_overstate_its_progress_and_cannot_change_the_source(pair: Pair) -> None:
    made = pair.source.made_log()
    made.append(records("a=1"))
    pair.carry()
    entry = made.append(records("a=", 1))
    far = PartitionLog(pair.replica.store(ROOT), PLACE, clock=SystemClock(), random=Random(1)).load().manifest
    assert far.replica is not None
    theirs = replace(far.replica, source_version=made.manifest.version)
    said = replace(made.manifest, holds=(), version=far.version + 1, replica=theirs)
    plant_manifest(pair.replica.store(ROOT), PLACE, said)
    before = made.manifest
    pair.carry()
    (hold,) = made.manifest.holds
    assert hold.received_to == entry.next_offset
    assert entry.name not in pair.names()
    assert made.manifest.segments == before.segments
    assert same_content(made.manifest, before)


def test_a_compromised_replica_can_fail_its_replicator_without_effect_on_the_source(pair: Pair) -> None:
    made = pair.source.made_log()
    made.append(records("a=1"))
    pair.carry()
    plant(pair.replica.store(ROOT), PLACE.manifest_key, b"no manifest")
    made.append(records("b=2", 1))
    before = made.manifest
    pair.carry(code=None)
    assert "Corrupt" in pair.keyfold("replica", "status", pair.source.url, "dr", code=None)
    assert same_content(made.manifest, before)


def test_an_operator_of_registrations_can_redirect_the_copies_of_a_log(pair: Pair, s3: IamS3) -> None:
    s3.add_user("on-call", *policies(pair.source.bucket, "operator"))
    on_call = Buckets(pair.source, pair.replica, "on-call", "on-call")
    there = ("--to", "s3://theirs/topics", "--endpoint-url", "https://theirs.example")
    on_call("replica", "edit", pair.source.url, "dr", *there, "--no-probe", code=None)
    registry = ReplicaRegistry(pair.source.store(ROOT), TOPICS_DIR, SystemClock(), Random(1))
    location = registry.load("dr").location({}, AllowedCredentials())
    assert (location.bucket, location.host) == ("theirs", "theirs.example")


def _without(manifest: Manifest, lost: SegmentEntry) -> Manifest:
    """Return the next manifest, in which a segment at the log's start was replaced long ago."""
    return replace(
        manifest,
        version=manifest.version + 1,
        segments=tuple(entry for entry in manifest.segments if entry.name != lost.name),
        log_start_offset=lost.next_offset,
        first_dirty_offset=lost.next_offset,
        replaced=(Replaced(lost.name, 1, 1), Replaced(lost.index_name, 1, 1)),
    )


def test_the_page_has_a_row_for_each_service() -> None:
    table = IAM_PAGE.read_text().split("## What a compromised service can do")[1].split("\n## ")[0]
    rows = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    assert rows - {"compromised service", "---"} == {*CAN, "source", "replica"}
