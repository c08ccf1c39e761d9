"""`keyfold replica add --enable-compaction`: the registration and the permission, both or neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from keyfold.errors import AccessDenied
from keyfold.log.manifest_codec import FORMAT
from keyfold.store.api import PutMode
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from tests.support.logs import MadeLog, records
from tests.support.replica_command import REPLICA, SOURCE, Bucket, Buckets, Keyfold, made_log, objects, read

ADD = ("add", SOURCE, "dr", "--to", REPLICA, "--enable-compaction")
PERMISSION = "topics/_replica.json"


class DenyingBucket(Bucket):
    """A bucket that refuses to write the keys that end so."""

    def __init__(self, name: str, buckets: Buckets, denied: str) -> None:
        super().__init__(name, buckets.clock)
        self._denied = denied

    def put(self, key: str, data: Any, mode: PutMode) -> Any:
        """See `ObjectStore.put`."""
        if key.endswith(self._denied):
            raise AccessDenied(key, "403")
        return super().put(key, data, mode)


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def keyfold(buckets: Buckets, capsys: pytest.CaptureFixture[str]) -> Keyfold:
    return Keyfold(buckets, capsys)


def deny(buckets: Buckets, bucket: str, key: str) -> None:
    buckets.stores[bucket] = FaultyStore(DenyingBucket(bucket, buckets, key))


def enabled(buckets: Buckets) -> dict[str, Any]:
    """The entries of the replica's bucket."""
    found = objects(buckets, "dr").get(f"dr/{PERMISSION}")
    entries: dict[str, Any] = {} if found is None else json.loads(found)["compaction"]
    return entries


def is_put_of(ending: str) -> Callable[[Call], bool]:
    return lambda call: call.operation == "put" and call.key.endswith(ending)


def test_one_command_makes_a_replica_of_compacted_logs(keyfold: Keyfold, buckets: Buckets) -> None:
    made = made_log(buckets)
    made.compact()
    lines = keyfold(*ADD)
    assert lines[0] == "dr is registered: s3://dr/topics, all topics"
    assert lines[1] == f"{REPLICA}: compaction is enabled for all topics, up to format {FORMAT}"
    assert not any("not replicated until" in line for line in lines)
    assert keyfold("run", SOURCE, "--once") == ["dr: 1 of 1 partition in sync"]
    assert read(buckets, "dr") == read(buckets, "log")


def test_the_document_has_the_registration_and_the_permission(keyfold: Keyfold, buckets: Buckets) -> None:
    made_log(buckets).compact()
    (found,) = keyfold.json(*ADD)
    assert (found["name"], found["found"]["topics_not_enabled"]) == ("dr", [])
    assert found["enablement"]["compaction"]["*"]["enabled"] is True
    assert found["enablement"]["url"] == REPLICA
    keyfold("remove", SOURCE, "dr")
    (found,) = keyfold.json("add", SOURCE, "dr", "--to", REPLICA)
    assert found["enablement"] is None


def test_older_entries_of_topics_still_apply_and_are_named(keyfold: Keyfold, buckets: Buckets) -> None:
    made_log(buckets).compact()
    keyfold("disable-compaction", REPLICA, "--topic", "users")
    text = "\n".join(keyfold(*ADD))
    assert "older entries of single topics say otherwise and still apply: users" in text
    assert f"`keyfold replica enable-compaction {SOURCE} dr --topic TOPIC`" in text
    assert "not replicated until compaction is enabled: users" in text


def test_nothing_is_written_if_the_replicas_bucket_refuses_the_permission(keyfold: Keyfold, buckets: Buckets) -> None:
    made_log(buckets)
    deny(buckets, "dr", PERMISSION)
    before = objects(buckets, "log", "dr")
    keyfold(*ADD, code=1)
    assert "the replica was not registered" in " ".join(keyfold.errors)
    assert objects(buckets, "log", "dr") == before


def test_the_permission_is_set_back_if_the_source_refuses_the_registration(keyfold: Keyfold, buckets: Buckets) -> None:
    deny(buckets, "log", "_replicas/dr.json")
    made_log(buckets)
    keyfold("enable-compaction", REPLICA, "--topic", "old", "--format", "1")
    before = enabled(buckets)
    keyfold(*ADD, code=1)
    assert enabled(buckets) == before
    assert keyfold.json("list", SOURCE) == []
    assert "disable-compaction" not in " ".join(keyfold.errors), "nothing is left to do"


def test_a_permission_that_cannot_be_set_back_is_named(keyfold: Keyfold, buckets: Buckets) -> None:
    deny(buckets, "log", "_replicas/dr.json")
    made_log(buckets)
    puts: list[Call] = []

    def is_second(call: Call) -> bool:
        if is_put_of(PERMISSION)(call):
            puts.append(call)
        return len(puts) > 1 and is_put_of(PERMISSION)(call)

    buckets["dr"].add(Fault(is_second, FaultKind.UNAVAILABLE, times=1 << 40))
    keyfold(*ADD, code=1)
    assert f"compaction stays enabled at {REPLICA}" in " ".join(keyfold.errors)
    assert f"`keyfold replica disable-compaction {REPLICA}`" in " ".join(keyfold.errors)


def test_a_registration_without_an_answer_keeps_its_permission(keyfold: Keyfold, buckets: Buckets) -> None:
    made_log(buckets)
    buckets["log"].add(Fault(is_put_of("_replicas/dr.json"), FaultKind.UNAVAILABLE, times=1 << 40))
    keyfold(*ADD, code=1)
    assert "the registration may have been saved" in " ".join(keyfold.errors)
    assert enabled(buckets)["*"]["enabled"] is True
    buckets.stores["log"] = FaultyStore(buckets["log"].inner)
    keyfold(*ADD)


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LATE, FaultKind.CONFLICT])
@pytest.mark.parametrize(("bucket", "key"), [("dr", PERMISSION), ("log", "_replicas/dr.json")])
def test_a_passing_fault_changes_nothing(
    keyfold: Keyfold, buckets: Buckets, bucket: str, key: str, kind: FaultKind
) -> None:
    made_log(buckets)
    buckets[bucket].add(Fault(is_put_of(key), kind))
    keyfold(*ADD)
    assert enabled(buckets)["*"]["enabled"] is True
    assert [row["name"] for row in keyfold.json("list", SOURCE)] == ["dr"]


def test_a_name_that_is_taken_enables_nothing(keyfold: Keyfold, buckets: Buckets) -> None:
    made_log(buckets)
    keyfold("add", SOURCE, "dr", "--to", "s3://other/topics")
    keyfold(*ADD, code=1)
    assert "already registered" in keyfold.errors[0]
    assert enabled(buckets) == {}


def test_a_bucket_that_is_not_contacted_cannot_be_changed(keyfold: Keyfold, buckets: Buckets) -> None:
    made_log(buckets)
    keyfold(*ADD, "--no-probe", code=2)
    assert keyfold.json("list", SOURCE) == []


def test_the_printed_hint_of_a_plain_add_still_works(keyfold: Keyfold, buckets: Buckets) -> None:
    made: MadeLog = made_log(buckets)
    made.compact()
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    made.append(records("z=1", made.manifest.next_offset))
    keyfold("enable-compaction", SOURCE, "dr")
    assert keyfold("run", SOURCE, "--once") == ["dr: 1 of 1 partition in sync"]
