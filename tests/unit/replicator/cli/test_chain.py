"""A replica of a replica: the same log in a third bucket, by way of the second, and what becomes of its deletions."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.log.edits_replica import same_content
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from tests.support.logs import MadeLog, records
from tests.support.replica_command import REPLICA, SOURCE, Buckets, Keyfold, latest, made_log, read

THIRD = "s3://far/topics"


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def keyfold(buckets: Buckets, capsys: pytest.CaptureFixture[str]) -> Keyfold:
    return Keyfold(buckets, capsys)


@pytest.fixture
def made(keyfold: Keyfold) -> MadeLog:
    """The first source; all of it is in the second bucket and in the third."""
    made = made_log(keyfold.buckets)
    keyfold("add", SOURCE, "dr", "--to", REPLICA)
    keyfold("enable-compaction", REPLICA)
    keyfold("run", SOURCE, "--once")
    keyfold("add", REPLICA, "far", "--to", THIRD)
    keyfold("enable-compaction", THIRD)
    keyfold("run", REPLICA, "--once")
    return made


def replicate(keyfold: Keyfold) -> None:
    keyfold("run", SOURCE, "--once")
    keyfold("run", REPLICA, "--once")


def at(buckets: Buckets, bucket: str) -> MadeLog:
    return MadeLog(buckets[bucket], Place("topics", "users", 0), buckets.clock, Random(f"new writer at {bucket}"))


def manifest(buckets: Buckets, bucket: str) -> Manifest:
    return at(buckets, bucket).manifest


def test_appends_and_cleaning_at_the_first_source_reach_the_last_replica(keyfold: Keyfold, made: MadeLog) -> None:
    buckets = keyfold.buckets
    assert read(buckets, "far") == read(buckets, "dr") == read(buckets, "log")
    made.append(records("c=1 b= a=3", 3))
    replicate(keyfold)
    assert read(buckets, "far") == read(buckets, "log")
    made.compact(merge=True)
    replicate(keyfold)
    assert len(read(buckets, "log")) == 3
    assert read(buckets, "far") == read(buckets, "log")
    first, second, third = (manifest(buckets, bucket) for bucket in ("log", "dr", "far"))
    assert same_content(first, second)
    assert same_content(second, third)
    assert third.replica is not None
    assert second.replica is not None
    assert (third.replica.source, third.replica.source_log_id) == (REPLICA, first.log_id)
    assert third.replica.source_version == second.replica.source_version, "versions are those of the first source"
    assert [(h.replica.partition("@")[0], h.received_to) for h in first.holds] == [("dr", 6)]
    assert [(h.replica.partition("@")[0], h.received_to) for h in second.holds] == [("far", 6)]
    commits = [m.version for m in (first, second, third)]
    replicate(keyfold)
    assert [manifest(buckets, b).version for b in ("log", "dr", "far")] == commits, "nothing new, nothing written"


def test_a_deletion_missed_only_by_the_last_replica_requires_its_resync(keyfold: Keyfold, made: MadeLog) -> None:
    """The first source waits for its own replica only; what that one passed on it does not know."""
    buckets = keyfold.buckets
    made.append(records("a= c=1", 3))
    made.compact()
    keyfold("run", SOURCE, "--once")
    made.compact(purge=True)
    keyfold("run", SOURCE, "--once")
    assert read(buckets, "dr") == read(buckets, "log")
    before = read(buckets, "far")
    keyfold("run", REPLICA, "--once", code=1)
    assert keyfold.json("status", REPLICA, "far")[0]["state"] == "resync-required"
    assert read(buckets, "far") == before, "an older state, whole"
    keyfold("resync", REPLICA, "far")
    assert read(buckets, "far") == read(buckets, "log")
    assert b"a" not in latest(read(buckets, "far"))


def test_the_last_replica_follows_the_second_log_after_its_promotion(keyfold: Keyfold, made: MadeLog) -> None:
    buckets = keyfold.buckets
    made.append(records("c=1", 3))
    keyfold("promote", SOURCE, "dr")
    at(buckets, "dr").append(records("d=1", 4))
    keyfold("run", REPLICA, "--once")
    assert read(buckets, "far") == read(buckets, "dr")
    assert [record.key for record in read(buckets, "far")][-2:] == [b"c", b"d"]
    assert manifest(buckets, "far").log_id == manifest(buckets, "dr").log_id != made.manifest.log_id
