"""The compactor beside replicas: for whom it holds tombstones, what it says of that, and rounds after its runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from keyfold.errors import AccessDenied, BucketMissing, StoreUnavailable
from keyfold.log.manifest import Manifest
from keyfold.log.partition_log import PartitionLog
from keyfold.replicas.documents import Registration, registration_key
from keyfold.replicas.registry import EnablementStore, ReplicaRegistry
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectInfo, ObjectStore, StoreLocation, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.pacing import Pacer
from keyfold.store.s3 import S3Location
from keyfold_compactor.decide.policy import Reason
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.replica_holds import UNKNOWN, ReplicaHolds, load_replica_holds
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.replicating import replicating
from keyfold_compactor.report import metric_names as names
from keyfold_compactor.report.metrics import run_values
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from keyfold_compactor.report.report_text import text_lines
from keyfold_compactor.report.run_meter import RunMeter
from keyfold_compactor.report.show import plan_document, plan_lines, report_document
from tests.support.cleaning import FAST, PLACE, Sink, load, memory_log, read_all, record, retry_policy
from tests.support.held import tell
from tests.support.untyped import untyped

CONFIG = {
    "s3.bucket.name": "b",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "replica.hold.max.ms": "60000",
    "file.delete.delay.ms": "0",
}


def job(store: ObjectStore, clock: ManualClock, selection: RunSelection | None = None, **others: object) -> Job:
    options = CompactOptions.parse(CONFIG)
    return Job(
        options,
        selection or RunSelection(),
        store,
        lambda _: LocalExecutor(store, retry_policy(clock, Random(1))),
        clock=clock,
        random=Random(2),
        **others,  # type: ignore[arg-type]  # fields by name, of any type
    )


def register(store: ObjectStore, name: str = "eu", **config: str) -> Registration:
    values = {"s3.bucket.name": f"bucket-{name}", **{key.replace("_", "."): value for key, value in config.items()}}
    return ReplicaRegistry(store, "topics", ManualClock(), Random(name)).add(Registration(name, values))


def deleted_log(clock: ManualClock) -> tuple[MemoryStore, Sink]:
    """A clean log whose tombstones, at 2 and 3, are past their delete horizon."""
    first = [record(0, "a", "1"), record(1, "b", "1"), record(2, "a", None), record(3, "b", None)]
    store, sink = memory_log(first, [record(4, "c", "1")], clock=clock)
    job(store, clock).once()
    clock.advance(500)
    job(store, clock).once()  # stamps the first
    clock.advance(5_000)
    return store, sink


def tombstones(store: ObjectStore) -> list[int]:
    return [r.offset for r in read_all(store) if r.is_tombstone]


def test_tombstones_go_when_the_last_registered_replica_has_received_them() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    eu, us = register(store, "eu"), register(store, "us")
    assert job(store, clock).once().quiet_partitions == 1
    tell(store, eu.hold_name, received_to=5)
    tell(store, us.hold_name, received_to=2)
    version = load(store).version
    assert job(store, clock).once().quiet_partitions == 1
    assert (tombstones(store), load(store).version) == ([2, 3], version), "and nothing was claimed for it"
    tell(store, us.hold_name, received_to=5)
    report = job(store, clock).once()
    assert report.partitions[0].reasons == (Reason.HORIZON.value,)
    assert (tombstones(store), load(store).purged_to) == ([], 3)


def test_a_tombstone_waits_for_a_replica_at_most_the_maximum_hold() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    register(store)
    clock.advance(50_000)
    assert job(store, clock).once().quiet_partitions == 1
    clock.advance(10_000)
    assert job(store, clock).once().partitions[0].purged_tombstones == 2
    assert load(store).purged_to == 3, "by which the replica knows that it needs a resync"


def test_a_pass_for_another_reason_removes_received_tombstones_and_reports_held_ones() -> None:
    clock = ManualClock()
    store, sink = deleted_log(clock)
    tell(store, register(store).hold_name, received_to=3)
    assert job(store, clock).once().quiet_partitions == 1, "the segment of both is not received to its end"
    sink.session.refresh()
    sink.append([record(5, "c", "2")])
    report = job(store, clock).once()
    (part,) = report.partitions
    assert (part.purged_tombstones, part.held_tombstones) == (1, 1)
    assert (tombstones(store), load(store).purged_to) == ([3], 2)
    assert "1 kept, 1 of them held for replicas" in " ".join(text_lines(report, is_verbose=True))
    assert untyped(report_document(report))["totals"]["tombstones_held"] == 1


def test_a_pass_for_received_tombstones_includes_partly_received_segments() -> None:
    clock = ManualClock()
    store, sink = deleted_log(clock)
    replica = register(store)
    sink.session.refresh()
    sink.append([record(5, "d", None), record(6, "e", "x" * 10_000), record(7, "f", None)])
    for _ in range(2):
        job(store, clock).once()
        clock.advance(5_000)
    assert [s.tombstone_count for s in load(store).segments] == [2, 0, 2]
    tell(store, replica.hold_name, received_to=6)
    (part,) = job(store, clock).once().partitions
    assert (part.purged_tombstones, part.held_tombstones) == (3, 1)
    assert tombstones(store) == [7]
    assert job(store, clock).once().quiet_partitions == 1


def test_a_plan_shows_what_is_held_and_for_which_replica() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    tell(store, register(store).hold_name, received_to=2)
    looks = job(store, clock).review()
    (line,) = [line for line in plan_lines(looks) if "held" in line]
    assert "from offset 2 on" in line
    assert "until they reach replica eu" in line
    (found,) = untyped(plan_document(looks))["partitions"]
    (stamp,) = load(store).passes
    until_ms = stamp.committed_at_ms + 61_000
    assert found["held_tombstones"] == {"from_offset": 2, "replicas": ["eu"], "segments": 1, "until_ms": until_ms}
    tell(store, register(store, "us", topics="orders").hold_name, received_to=0)
    assert plan_document(job(store, clock).review())["partitions"] == [found], "it takes another topic"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_paused_replica_holds_and_a_removed_one_does_not(command: str) -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    register(store)
    registry = ReplicaRegistry(store, "topics", clock, Random(4))
    getattr(registry, command)("eu")
    assert job(store, clock).once().quiet_partitions == 1
    registry.remove("eu")
    assert job(store, clock).once().partitions[0].purged_tombstones == 2


def test_what_another_location_received_under_the_same_name_does_not_count() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    tell(store, register(store).hold_name, received_to=5)
    ReplicaRegistry(store, "topics", clock, Random(5)).edit("eu", {"s3.bucket.name": "elsewhere"})
    assert job(store, clock).once().quiet_partitions == 1
    assert tombstones(store) == [2, 3]


def test_a_registration_that_cannot_be_read_holds_the_tombstones_of_all_topics() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    tell(store, register(store).hold_name, received_to=5)
    key = registration_key("topics", "eu")
    store.put(key, b"{", Update(store.get(key).etag))
    found = load_replica_holds(store, "topics", clock, Random(0))
    assert (found.of("any"), found.unreadable) == (("eu",), ("eu",))
    assert "the registration of replica eu cannot be read" in found.problems[0]
    assert job(store, clock).once().quiet_partitions == 1
    assert "until they reach replica eu" in " ".join(plan_lines(job(store, clock).review()))


def test_a_pattern_that_never_finishes_holds_all_tombstones_but_delays_no_run() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    hold_name = register(store, topics_regex="(a+)+$|users").hold_name
    found = load_replica_holds(store, "topics", clock, Random(0), {"users", "a" * 100 + "!"})
    assert found.of("users") == found.of("b") == (hold_name,)
    assert "the topics of replica eu cannot be determined" in found.problems[0]
    assert "topics.regex" in found.problems[0]


class Unlistable(MemoryStore):
    """A store that does not list everything."""

    error: Exception = AccessDenied("s3://b/topics/_replicas/", "ListBucket is not allowed")

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        if prefix.endswith("_replicas/"):
            raise self.error
        return super().list(prefix, start_after=start_after)


def test_replicas_that_cannot_be_listed_hold_everything_and_stop_no_run() -> None:
    clock = ManualClock()
    store = Unlistable("test", clock)
    sink = Sink.open(store, clock=clock)
    sink.append([record(0, "a", "1"), record(1, "a", None)])
    for _ in range(2):
        assert job(store, clock).once().exit_code == 0
        clock.advance(5_000)
    assert load_replica_holds(store, "topics", clock, Random(0)).of("any") == (UNKNOWN,)
    assert tombstones(store) == [1]
    clock.advance(60_000)
    job(store, clock).once()
    assert tombstones(store) == []


def test_an_unavailable_store_fails_the_run() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    away = Unlistable("test", clock)
    away.error = StoreUnavailable("s3://b/topics/_replicas/", "503")
    with pytest.raises(StoreUnavailable):
        load_replica_holds(away, "topics", clock, Random(0))
    assert load_replica_holds(store, "topics", clock, Random(0)) == ReplicaHolds()


def test_a_missing_bucket_is_not_reported_as_a_replica_problem() -> None:
    missing = Unlistable("test", ManualClock())
    missing.error = BucketMissing("topics/_replicas/", "404 NoSuchBucket")
    with pytest.raises(BucketMissing):
        load_replica_holds(missing, "topics", ManualClock(), Random(0))


# Replicas in the compactor's hands


class Buckets:
    """Stores by bucket, as they are opened."""

    def __init__(self, clock: ManualClock, **stores: ObjectStore) -> None:
        self.clock = clock
        self.stores: dict[str, ObjectStore] = dict(stores)
        self.pacers: list[Pacer | None] = []

    def open(self, location: StoreLocation, pacer: Pacer | None = None) -> ObjectStore:
        self.pacers.append(pacer)
        return self.stores.setdefault(location.bucket, MemoryStore(location.bucket, self.clock))


def replica_of(buckets: Buckets, name: str = "eu") -> Manifest:
    store = buckets.stores[f"bucket-{name}"]
    return PartitionLog(store, PLACE, clock=buckets.clock, random=Random(0), backoff=FAST).load().manifest


def run_with_replicas(
    buckets: Buckets, *, topics: frozenset[str] = frozenset(), metrics: CollectorRegistry | None = None
) -> RunReport:
    options = CompactOptions.parse({**CONFIG, "replicas.run": "true", "log.cleaner.driver.threads": "2"})
    with replicating(
        options, topics, clock=buckets.clock, random=Random(3), metrics=metrics, opener=buckets.open
    ) as replicate:
        return job(buckets.stores["b"], buckets.clock, replicate=replicate).once()


def test_a_runs_cleaning_is_at_the_replica_when_the_run_ends() -> None:
    clock = ManualClock()
    store, sink = memory_log([record(0, "a", "1"), record(1, "a", None)], clock=clock)
    buckets = Buckets(clock, b=store)
    register(store)
    report = run_with_replicas(buckets)
    assert (report.partitions[0].outcome, report.exit_code) == (PartitionOutcome.CLEANED, 1)
    (replica,) = untyped(report_document(report))["replicas"]
    assert replica["partitions"][0]["code"] == "CompactionNotEnabled"
    EnablementStore(buckets.stores["bucket-eu"], "topics", clock, Random(0)).enable(1)
    metrics = CollectorRegistry()
    report = run_with_replicas(buckets, metrics=metrics)
    assert (report.exit_code, report.is_quiet) == (0, False)
    (replica,) = json.loads(json.dumps(report_document(report)))["replicas"]
    assert (replica["in_sync"], replica["partitions_in_sync"], replica["partitions"]) == (True, 1, [])
    assert replica["carried"]["commits"] == 1
    assert "1 of 1 partition in sync" in " ".join(text_lines(report, is_verbose=True))
    assert read_all(buckets.stores["bucket-eu"], replica_of(buckets)) == read_all(store)
    assert metrics.get_sample_value("keyfold_replica_commits_total", {"replica": "eu"}) == 1
    report = run_with_replicas(buckets)
    assert (report.exit_code, report.is_quiet) == (0, True)
    clock.advance(10_000)
    report = run_with_replicas(buckets)
    assert report.partitions[0].purged_tombstones == 1, "received, so nobody holds it any more"
    assert read_all(buckets.stores["bucket-eu"], replica_of(buckets)) == []
    sink.session.refresh()
    sink.append([record(2, "b", "1")])
    run_with_replicas(buckets, topics=frozenset({"other", "third"}))
    assert replica_of(buckets).next_offset == 2
    run_with_replicas(buckets)
    assert replica_of(buckets).next_offset == 3


def test_an_unavailable_replica_fails_the_run_but_not_the_cleaning() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    register(
        store,
        aws_access_key_id="${env:KEYFOLD_REPLICA_NOT_SET}",
        aws_secret_access_key="${env:KEYFOLD_REPLICA_NOT_SET}",
    )
    report = run_with_replicas(Buckets(clock, b=store))
    assert report.partitions[0].outcome is PartitionOutcome.CLEANED
    assert report.exit_code == 1
    assert "`KEYFOLD_REPLICA_NOT_SET` is not set" in " ".join(report.replicas[0].lines)


def test_earlier_copies_are_not_reported_again_for_an_unopenable_replica() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    register(store)
    buckets = Buckets(clock, b=store)
    with replicating(CompactOptions.parse(CONFIG), clock=clock, random=Random(3), opener=buckets.open) as replicate:
        assert untyped(replicate(lambda: False)[0].document["carried"])["commits"] == 1
        key = registration_key("topics", "eu")
        store.put(key, b"{", Update(store.head(key).etag))
        (found,) = replicate(lambda: False)
    assert (found.is_failure, untyped(found.document["carried"])["commits"]) == (True, 0)


def test_source_and_replica_share_the_configured_rate() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    register(store)
    buckets = Buckets(clock, b=store)
    options = CompactOptions.parse({**CONFIG, "log.cleaner.io.max.bytes.per.second": "1000000"})
    with replicating(options, clock=clock, random=Random(3), opener=buckets.open) as replicate:
        replicate(lambda: False)
    first, second = buckets.pacers
    assert first is second is not None


def test_nothing_is_copied_after_the_run_was_stopped() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    register(store)
    buckets = Buckets(clock, b=store)
    options = CompactOptions.parse(CONFIG)
    with replicating(options, clock=clock, random=Random(3), opener=buckets.open) as replicate:
        assert replicate(lambda: True) == ()
    assert list(buckets.stores) == ["b"]


def test_the_compactor_skips_a_replica_and_reports_it_if_forced() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    buckets = Buckets(clock, b=store)
    register(store)
    options = CompactOptions.parse(CONFIG)
    with replicating(options, clock=clock, random=Random(3), opener=buckets.open) as replicate:
        assert not replicate(lambda: False)[0].is_failure
    there = buckets.stores["bucket-eu"]
    assert isinstance(there, MemoryStore)
    version = replica_of(buckets).version
    assert job(there, clock).once().quiet_partitions == 1
    assert job(there, clock, RunSelection(collect_orphans=True)).once().quiet_partitions == 1
    (part,) = job(there, clock, RunSelection(force=True)).once().partitions
    assert (part.outcome, replica_of(buckets).version) == (PartitionOutcome.SKIPPED, version)
    assert "this log is a replica of memory://" in part.why
    assert job(there, clock).costs(job(there, clock).review()) == {}
    assert load(there).replica is not None


def test_metrics_count_partitions_with_held_tombstones_but_no_replicas() -> None:
    clock = ManualClock()
    store, _ = deleted_log(clock)
    assert job(store, clock).once().exit_code == 0
    store, _ = deleted_log(clock)
    register(store)
    buckets = Buckets(clock, b=store)
    EnablementStore(buckets.open(S3Location("bucket-eu")), "topics", clock, Random(0)).enable(1)
    run = job(store, clock)
    values = run_values(run.once())
    assert (values[names.HELD], values[names.PARTITIONS]) == (1, 1)
    report = run_with_replicas(buckets)
    assert not any(r.is_failure for r in report.replicas)
    values = run_values(run.once())
    assert values[names.HELD] == 0
    there = run_values(job(buckets.stores["bucket-eu"], clock).once())
    assert (there[names.HELD], there[names.PARTITIONS]) == (0, 0), "a replica is not cleaned where it is"


def test_a_run_that_cannot_list_replicas_has_failed() -> None:
    clock = ManualClock()
    away = Unlistable("test", clock)
    away.error = StoreUnavailable("topics/_replicas/", "503")
    meter = RunMeter(clock)
    with pytest.raises(StoreUnavailable):
        job(away, clock, observer=meter).once()
    assert meter.values()[names.FAILED]["run",] == 1  # type: ignore[index]  # it is there, or the test fails
