"""A DELETE whose answer never comes on a real HTTP connection, whether it was executed, lost, or lands later.

`keyfold.store.wrappers.faults` has the same kinds for stores in memory; `test_cleaning_faults` and
`test_replica_faults` try them at each call. Here it is boto3 that repeats the request, and a pass or a round that meets
the error at last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import StoreUnavailable
from keyfold.log.edits_replica import same_content
from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create
from keyfold.store.s3 import S3Location, S3Store
from keyfold_replicator.rounds.runner import Runner
from tests.support.cleaning import EAGER, PLACE, Sink, clean, last_per_key, load, object_names, read_all, record
from tests.support.moto import DROP, Fault, LocalS3Process
from tests.support.replica_rounds import SETTINGS, FixedDocuments, pair

BATCHES = [
    [record(0, "a", "1"), record(1, "b", "2")],
    [record(2, "a", None), record(3, "c", "3")],
    [record(4, "b", "5"), record(5, "c", None), record(6, "e", "6")],
]
LIVE = [r for r in last_per_key([r for batch in BATCHES for r in batch]) if not r.is_tombstone]
KINDS = {
    "applied": Fault("^DELETE ", status=DROP, applied=True),
    "not applied": Fault("^DELETE ", status=DROP),
    "applied late": Fault("^DELETE ", status=DROP, late_ms=500),
}
REPLICA_PLACE = Place("far/logs", PLACE.topic, PLACE.partition)
QUICK = replace(SETTINGS, file_delete_delay_ms=0, collect_ms=0, poll_ms=0, retry_timeout_s=2.0)


@pytest.fixture
def store(location: S3Location) -> Iterator[S3Store]:
    opened = replace(location, read_attempts=2).open()
    yield opened
    opened.close()


def filled(store: S3Store) -> None:
    sink = Sink.open(store, clock=SystemClock())
    for batch in BATCHES:
        sink.append(batch)


def finish(store: S3Store) -> None:
    for seed in (10, 11, 12):
        report = clean(store, EAGER, clock=SystemClock(), seed=seed, collect_orphans=True)
        assert report.exit_code == 0, report.document()
    assert read_all(store) == LIVE
    assert object_names(store) == load(store).object_names()
    assert load(store).replaced == ()


@pytest.mark.parametrize("kind", KINDS)
def test_one_lost_answer_to_a_deletion_is_retried_silently(store: S3Store, local_s3: LocalS3Process, kind: str) -> None:
    store.put("x", b"1", Create())
    local_s3.set_faults(KINDS[kind])
    store.delete("x")
    assert list(store.list("x")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_that_is_never_answered_is_reported(store: S3Store, local_s3: LocalS3Process, kind: str) -> None:
    store.put("x", b"1", Create())
    local_s3.set_faults(replace(KINDS[kind], times=-1))
    with pytest.raises(StoreUnavailable):
        store.delete("x")


@pytest.mark.sharded
@pytest.mark.parametrize("times", [1, -1], ids=["one answer lost", "no answer ever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_whose_deletions_time_out_leaves_the_log_sound_and_the_next_pass_finishes(
    store: S3Store, local_s3: LocalS3Process, kind: str, times: int
) -> None:
    filled(store)
    local_s3.set_faults(replace(KINDS[kind], times=times))
    clean(store, EAGER, clock=SystemClock())
    assert read_all(store)[-1].offset == BATCHES[-1][-1].offset
    local_s3.set_faults()
    finish(store)


@pytest.mark.sharded
@pytest.mark.parametrize("times", [1, -1], ids=["one answer lost", "no answer ever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replicator_whose_deletions_time_out_continues_and_deletes_later(
    store: S3Store, local_s3: LocalS3Process, kind: str, times: int
) -> None:
    filled(store)
    with Runner(pair(store, store), FixedDocuments(), QUICK, clock=SystemClock(), random=Random(1)) as runner:
        assert runner.once().is_in_sync
        clean(store, EAGER, clock=SystemClock(), seed=2)
        local_s3.set_faults(replace(KINDS[kind], times=times))
        runner.once()
        runner.once()
        assert same_content(load(store), load(store, REPLICA_PLACE)), "records do not wait for deletions"
        assert read_all(store, place=REPLICA_PLACE) == read_all(store)
    local_s3.set_faults()
    with Runner(pair(store, store), FixedDocuments(), QUICK, clock=SystemClock(), random=Random(2)) as runner:
        for _ in range(4):
            runner.once()
    assert object_names(store, REPLICA_PLACE) == load(store, REPLICA_PLACE).object_names()
    assert load(store, REPLICA_PLACE).replaced == ()
