"""Runs again and again, leases of long passes, failing partitions that back off, an executor that dies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random

import pytest

from keyfold.errors import BucketMissing, ConfigError, KeyfoldError, StoreUnavailable
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.replicas.documents import Registration
from keyfold.replicas.registry import ReplicaRegistry
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore, every_fault
from keyfold_compactor.decide.policy import decide_cleaning
from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitAnswer, UnitJob, log_job
from keyfold_compactor.execute.claims import LeaseKeeper, PartitionClaim
from keyfold_compactor.execute.executor import Done, Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from keyfold_compactor.report.report_text import text_lines
from tests.support.cleaning import EAGER, FAST, PLACE, Sink, load, memory_log, read_all, record, retry_policy

CONFIG = {
    "s3.bucket.name": "b",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
    "log.cleaner.backoff.ms": "0",
}


def job(store: ObjectStore, clock: ManualClock, selection: RunSelection | None = None, **config: str) -> Job:
    def executor(_due_bytes: int) -> Executor:
        return LocalExecutor(store, retry_policy(clock, Random(1)))

    options = CompactOptions.parse({**CONFIG, **{key.replace("_", "."): value for key, value in config.items()}})
    return Job(options, selection or RunSelection(), store, executor, clock=clock, random=Random(2))


def claimed(store: MemoryStore, clock: ManualClock) -> PartitionClaim:
    log = PartitionLog(store, PLACE, clock=clock, random=Random(3), backoff=FAST, retry_timeout_s=1.0)
    session = log.claim_compactor(lease_ms=60_000, holder="me")
    decision = decide_cleaning(session.manifest, EAGER, session.pinned.seen_ms)
    return PartitionClaim(session, log_job(0, PLACE, session.pinned, decision, EAGER, session.epoch), decision, EAGER)


def test_a_long_pass_has_its_lease_renewed_until_it_commits() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    claim = claimed(store, clock)
    keeper = LeaseKeeper([claim], 60_000)
    clock.advance(40_000)
    keeper.renew()
    assert load(store).compactor.lease_until_ms == clock.now_ms() + 60_000
    claim.keep = False
    version = load(store).version
    keeper.renew()
    assert load(store).version == version


def test_a_lost_lease_is_not_taken_back() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    claim = claimed(store, clock)
    clock.advance(60_001)
    log = PartitionLog(store, PLACE, clock=clock, random=Random(4), backoff=FAST)
    log.claim_compactor(lease_ms=60_000, holder="another")
    LeaseKeeper([claim], 60_000).renew()
    assert not claim.keep
    assert load(store).compactor.lease_holder == "another"


def test_the_keepers_thread_renews_and_ends() -> None:
    before = set(threading.enumerate())
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    claim = claimed(store, clock)
    version = load(store).version
    with LeaseKeeper([claim], 30):
        threading.Event().wait(0.1)
    assert load(store).version > version
    assert not [t for t in set(threading.enumerate()) - before if t.name == "keyfold-lease"]


class Dying:
    """An executor whose Spark dies in the middle."""

    slots = 2

    def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:
        raise RuntimeError(f"the driver lost its executors while it mapped {len(jobs)} logs")

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done) -> list[UnitAnswer]:
        raise AssertionError(portions)

    def forget(self) -> None:
        """Nothing is kept."""


def test_an_executors_death_fails_the_batch_and_releases_the_leases() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    settings = RunSettings(settings_of=lambda *_: EAGER, threads=1)
    report = Run(store, settings, lambda _: Dying(), clock=clock, random=Random(1)).clean([PLACE])
    assert report.exit_code == 1
    assert "lost its executors" in report.partitions[0].why
    assert load(store).compactor.lease_until_ms == 0
    assert [r.offset for r in read_all(store)] == [0, 1]


def test_a_failed_partition_backs_off_and_is_retried() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    entry = load(store).segments[0]
    data = store.get(PLACE.key(entry.index_name)).data
    store.delete(PLACE.key(entry.index_name))
    runs = job(store, clock)
    assert runs.once().partitions[0].outcome is PartitionOutcome.FAILED
    assert runs.once().partitions == [], "left alone for now"
    clock.advance(31_000)
    assert runs.once().partitions[0].outcome is PartitionOutcome.FAILED
    from keyfold.store.api import Create

    store.put(PLACE.key(entry.index_name), data, Create())
    clock.advance(31_000)
    clock.advance(31_000)
    assert runs.once().partitions[0].outcome is PartitionOutcome.CLEANED
    assert [r.offset for r in read_all(store)] == [1]


def test_an_idle_partition_costs_one_get() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "b", "2")], clock=clock)
    for _ in range(3):
        job(store, clock).once()
    counted = CountedStore(store)
    report = job(counted, clock).once()
    assert report.quiet_partitions == 1
    calls = {name: count for name, count in counted.calls.items() if name != "list_folders"}
    assert calls == {"get": 1, "list": 1}, "and one listing a run: which replicas there are"


def test_the_loop_survives_an_unavailable_store_and_ends_at_an_unretriable_error() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    stop = threading.Event()
    failures: list[KeyfoldError] = [BucketMissing("b", "gone"), StoreUnavailable("b", "503")]
    runs = job(store, clock)
    places = runs.places
    reports: list[RunReport] = []

    def flaky() -> list[Place]:
        if failures and len(reports) == 1:
            raise failures.pop()
        return places()

    runs.places = flaky  # type: ignore[method-assign]  # replaced for this test
    runs._delays = lambda: iter([0.0] * 9)  # type: ignore[method-assign]  # replaced for this test
    with pytest.raises(BucketMissing):
        runs.loop(stop, reports.append)
    assert len(reports) == 1
    stop.set()
    runs.loop(stop, reports.append)
    assert len(reports) == 1


def test_topics_are_chosen_by_name_by_expression_or_all() -> None:
    clock = ManualClock()
    store = MemoryStore("b", clock)
    for topic, partition in (("users", 0), ("users", 1), ("orders", 0), ("_schemas", 0)):
        Sink.open(store, Place("topics", topic, partition), clock=clock)
    assert len(job(store, clock).places()) == 4
    assert [p.topic for p in job(store, clock, topics="orders").places()] == ["orders"]
    assert [p.topic for p in job(store, clock, topics_regex="_s.*").places()] == ["_schemas"]
    assert [str(p) for p in job(store, clock, RunSelection(["users"], [1])).places()] == ["users-1"]
    with pytest.raises(KeyfoldError, match="partition 7 of topic `users` not found under `s3://b/topics`"):
        job(store, clock, RunSelection(["users"], [7])).places()
    with pytest.raises(ConfigError):
        job(store, clock, RunSelection(["users"]), topics="orders").places()


def test_the_report_as_text_says_what_happened() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", None)], clock=clock)
    report = job(store, clock).once()
    first = "\n".join(text_lines(report, is_verbose=True))
    assert "users-0: 2 -> 1 record (1 superseded, 0 tombstones purged, 1 marked, 1 kept)" in first
    whole, run = text_lines(report)
    assert whole.startswith("users: 1 cleaned; 1 record removed, ")
    assert run.startswith("1 partition in ")
    assert run.count("; 1 record removed, ") == 1
    assert "1 tombstone purged" in "\n".join(text_lines(job(store, clock).once(), is_verbose=True))


class Forgetful(LocalExecutor):
    """Loses the answer of every unit."""

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = lambda _: None) -> list[UnitAnswer]:
        super().rewrite(portions, done)
        return []


def test_a_defect_during_a_pass_is_reported_and_releases_the_lease() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    settings = RunSettings(settings_of=lambda *_: EAGER, threads=1)
    executor = Forgetful(store, retry_policy(clock, Random(1)))
    report = Run(store, settings, lambda _: executor, clock=clock, random=Random(1)).clean([PLACE])
    assert [p.outcome for p in report.partitions] == [PartitionOutcome.FAILED]
    assert (report.exit_code, load(store).compactor.lease_until_ms) == (1, 0)
    assert [r.offset for r in read_all(store)] == [0, 1]


def test_a_claim_that_was_lost_before_the_executor_died_is_reported_as_lost() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)

    class Overtaken(Dying):
        def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:
            clock.advance(60_001)
            PartitionLog(store, PLACE, clock=clock, random=Random(4)).claim_compactor(lease_ms=1, holder="another")
            return super().map_logs(jobs, done)

    settings = RunSettings(settings_of=lambda *_: EAGER, threads=1)
    report = Run(store, settings, lambda _: Overtaken(), clock=clock, random=Random(1)).clean([PLACE])
    assert [p.outcome for p in report.partitions] == [PartitionOutcome.LOST]


def test_masks_of_a_failed_batch_are_invisible_to_the_next() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    executor = LocalExecutor(store, retry_policy(clock, Random(1)))
    executor.map_logs([claimed(store, clock).job])
    assert executor._masks
    executor.map_logs([])
    assert not executor._masks


def test_repeated_spark_failures_end_the_loop() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    options = CompactOptions.parse({**CONFIG, "cleanup.policy": "compact"})
    found = Job(options, RunSelection(), store, lambda _: Dying(), clock=clock, random=Random(2))
    reports: list[RunReport] = []

    def publish(report: RunReport) -> None:
        reports.append(report)
        clock.advance(3_600_000)  # beyond every penalty

    with pytest.raises(KeyfoldError, match=r"Spark failed in 3 runs in a row.*lost its executors"):
        found.loop(threading.Event(), publish)
    assert [r.exit_code for r in reports] == [1, 1, 1]


def test_a_missing_requested_topic_or_partition_is_an_error() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    with pytest.raises(KeyfoldError, match="topic `orders` not found under `s3://b/topics`"):
        job(store, clock, RunSelection(["orders"])).places()
    with pytest.raises(KeyfoldError, match="partition 7 of topic `users` not found under `s3://b/topics`"):
        job(store, clock, RunSelection(["users"], [7])).places()
    assert job(store, clock, topics="orders").places() == [], "a configured topic may come later"


def test_kafkas_empty_cleanup_policy_means_that_nothing_is_cleaned() -> None:
    options = CompactOptions.parse(CONFIG)
    assert not options.settings_of("users", {"cleanup.policy": ""}).compact
    assert options.settings_of("users", {"cleanup.policy": "delete, compact"}).compact


@pytest.mark.parametrize("kind", [FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.LATE])
def test_no_single_failed_request_ends_a_run(kind: FaultKind) -> None:
    """From the probe to the commit, each request fails once, and the run does what it would have done.

    What comes after it lists and deletes: the S3 store repeats that by itself, and what stays is due in the next run.
    """

    def run(*faults: Fault) -> tuple[FaultyStore, RunReport]:
        clock = ManualClock()
        inner, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
        registry = ReplicaRegistry(inner, PLACE.topics_dir, clock, Random(5))
        registry.add(Registration("dr", {"s3.bucket.name": "dr"}))
        store = FaultyStore(inner, faults)
        runs = job(store, clock)
        runs.prove_store()
        return store, runs.once()

    clean, expected = run()
    assert (expected.exit_code, expected.partitions[0].outcome) == (0, PartitionOutcome.CLEANED)
    probing_ends = max(call.number for call in clean.calls if "/_probe/" in call.key)
    deleting = next(c.number for c in clean.calls[probing_ends:] if (c.operation, c.key) == ("list", PLACE.folder))
    assert deleting > probing_ends + 10
    for fault in every_fault(clean.calls[: deleting - 1]):
        if fault.kind is kind:
            store, report = run(fault)
            failed = str(store.calls[int(str(fault.at)) - 1])
            assert (report.exit_code, [p.outcome for p in report.partitions]) == (0, [PartitionOutcome.CLEANED]), failed
            assert [r.offset for r in read_all(store)] == [1], failed


def test_no_single_failed_request_ends_a_plan() -> None:
    clock = ManualClock()
    inner, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    clean = FaultyStore(inner)
    assert job(clean, clock).review()[0].error is None
    for call in clean.calls:
        (look,) = job(FaultyStore(inner, [Fault(call.number, FaultKind.UNAVAILABLE)]), clock).review()
        assert look.error is None, str(call)
