"""What a run does and reports when a pass in parts does not come to its end."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import ConfigError, Fenced, StoreUnavailable
from keyfold.log.manifest import Manifest
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitAnswer, UnitJob
from keyfold_compactor.execute.claims import LeaseKeeper, PartitionClaim
from keyfold_compactor.execute.executor import Done
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.passes import STOPPED
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import PartitionOutcome, RunReport
from keyfold_compactor.report.report_text import text_lines
from tests.support.cleaning import (
    EAGER,
    PLACE,
    clean,
    last_per_key,
    load,
    memory_log,
    new_run,
    read_all,
    record,
    retry_policy,
)

UNMERGED = replace(EAGER, segment_bytes=1)


class DiesLater(LocalExecutor):
    """Does the first part, and dies in the second."""

    rounds = 0

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = lambda _: None) -> list[UnitAnswer]:
        self.rounds += 1
        if self.rounds > 1:
            self.before_death()
            raise RuntimeError("the driver lost its executors")
        return super().rewrite(portions, done)

    def before_death(self) -> None:
        """What happens meanwhile."""


def run(store: ObjectStore, executor: LocalExecutor, clock: ManualClock) -> RunReport:
    settings = RunSettings(settings_of=lambda *_: UNMERGED, threads=1, pass_bytes=1, retry_timeout_s=1.0)
    return Run(store, settings, lambda _: executor, clock=clock, random=Random(1)).clean([PLACE])


def parted_log(clock: ManualClock) -> tuple[MemoryStore, list[Record]]:
    """Every segment loses some records and keeps some, so each is a part."""
    batches = [
        [record(4 * n + i, key, f"{n}" * 200) for i, key in enumerate(["a", "b", "c", f"only-{n}"])] for n in range(4)
    ]
    store, _ = memory_log(*batches, clock=clock)
    return store, [each for batch in batches for each in batch]


def test_committed_parts_are_reported_if_the_executor_dies() -> None:
    clock = ManualClock()
    store, appended = parted_log(clock)
    before = load(store)
    report = run(store, DiesLater(store, retry_policy(clock, Random(1))), clock)
    (part,) = report.partitions
    assert part.outcome is PartitionOutcome.FAILED
    assert part.why == "RuntimeError: the driver lost its executors"
    assert (part.parts_committed, part.segments_written) == (1, 1)
    assert part.superseded == before.record_count - load(store).record_count > 0
    assert part.after.records == load(store).record_count
    assert (report.exit_code, load(store).compactor.lease_until_ms) == (1, 0)
    assert report.executor_error == "RuntimeError: the driver lost its executors"
    told = f"1 of 3 parts were committed before that and remain in effect: {part.superseded} records removed"
    assert told in "\n".join(text_lines(report, is_verbose=True))
    clean(store, clock=clock)
    assert read_all(store) == last_per_key(appended)


def test_a_pass_fenced_before_the_executor_died_is_reported_as_lost() -> None:
    clock = ManualClock()
    store, appended = parted_log(clock)

    class Overtaken(DiesLater):
        def before_death(self) -> None:
            clock.advance(60_001)
            PartitionLog(store, PLACE, clock=clock, random=Random(4)).claim_compactor(lease_ms=1, holder="another")

    report = run(store, Overtaken(store, retry_policy(clock, Random(1))), clock)
    assert [(p.outcome, p.parts_committed) for p in report.partitions] == [(PartitionOutcome.LOST, 1)]
    clock.advance(60_001)
    clean(store, clock=clock, seed=3)
    assert read_all(store) == last_per_key(appended)


def test_a_part_with_a_refused_commit_is_a_lost_claim_and_not_a_failure() -> None:
    clock = ManualClock()
    store, _ = parted_log(clock)

    class Overtaken(LocalExecutor):
        rounds = 0

        def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = lambda _: None) -> list[UnitAnswer]:
            answers = super().rewrite(portions, done)
            self.rounds += 1
            if self.rounds == 2:
                clock.advance(60_001)
                PartitionLog(store, PLACE, clock=clock, random=Random(4)).claim_compactor(lease_ms=1, holder="another")
            return answers

    report = run(store, Overtaken(store, retry_policy(clock, Random(1))), clock)
    (part,) = report.partitions
    assert (part.outcome, part.parts_committed, report.exit_code) == (PartitionOutcome.LOST, 1, 0)
    assert "another compactor has claimed" in part.why
    assert part.superseded > 0, "what the first part has removed"


@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_commit_with_unknown_result_ends_the_pass_and_the_next_run_continues(part: int) -> None:
    """The commit lands, its answer and every look afterwards are lost: no further part may build on it."""
    clock = ManualClock()
    inner, appended = parted_log(clock)
    rounds = 0
    is_away = False

    def is_commit(call: Call) -> bool:
        return is_away and call.operation == "put" and call.key.endswith("_manifest.avro")

    faults = [Fault(is_commit, FaultKind.LOST_ANSWER), Fault(lambda _: is_away, FaultKind.UNAVAILABLE, times=10**6)]
    store = FaultyStore(inner, faults)

    class Watching(LocalExecutor):
        def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = lambda _: None) -> list[UnitAnswer]:
            nonlocal rounds, is_away
            rounds += 1
            answers = super().rewrite(portions, done)
            is_away = rounds == part
            return answers

    versions = load(inner).version
    report = run(store, Watching(store, retry_policy(clock, Random(1))), clock)
    is_away = False
    (found,) = report.partitions
    assert found.outcome is PartitionOutcome.FAILED
    assert (found.parts_committed, rounds) == (part - 1, part)
    assert load(inner).version == versions + 1 + part, "the claim, and each part, the last of them unheard"
    clock.advance(60_001)
    clean(inner, clock=clock, seed=3)
    assert read_all(inner) == last_per_key(appended)


def followed(_topic: str, manifest: Manifest) -> TopicSettings:
    """As the topic is set in Kafka; `both` is a contradiction."""
    policy = manifest.settings["cleanup.policy"]
    if policy == "both":
        raise ConfigError("min.compaction.lag.ms", "must not exceed max.compaction.lag.ms")
    return replace(UNMERGED, compact=policy == "compact", merge_span_ms=0)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("delete", "stopped: cleanup.policy no longer includes `compact`"),
        ("both", "stopped: `min.compaction.lag.ms`: must not exceed max.compaction.lag.ms"),
    ],
)
def test_a_pass_in_parts_stops_when_its_topic_is_no_longer_compacted(policy: str, why: str) -> None:
    clock = ManualClock()
    store, appended = parted_log(clock)
    sink = PartitionLog(store, PLACE, clock=clock, random=Random(7)).claim_sink()

    class Changed(LocalExecutor):
        rounds = 0

        def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = lambda _: None) -> list[UnitAnswer]:
            self.rounds += 1
            if self.rounds == 2:
                sink.follow({"cleanup.policy": policy})
            return super().rewrite(portions, done)

    executor = Changed(store, retry_policy(clock, Random(1)))
    settings = RunSettings(settings_of=followed, threads=1, pass_bytes=1)
    (part,) = Run(store, settings, lambda _: executor, clock=clock, random=Random(1)).clean([PLACE]).partitions
    assert (part.outcome, part.parts, part.parts_committed, part.why) == (PartitionOutcome.CLEANED, 3, 2, why)
    assert load(store).compactor.lease_until_ms == 0
    here = {r.offset for r in read_all(store)}
    assert here >= {r.offset for r in appended if r.offset >= load(store).first_dirty_offset}
    clean(store, clock=clock, seed=3)
    assert read_all(store) == last_per_key(appended)


def test_the_last_part_also_marks_the_output_of_earlier_parts() -> None:
    clock = ManualClock()
    batches = [
        [record(3 * n, "k", f"{n}"), record(3 * n + 1, f"gone-{n}", None), record(3 * n + 2, f"only-{n}", "v")]
        for n in range(4)
    ]
    store, _ = memory_log(*batches, clock=clock)
    (part,) = run(store, LocalExecutor(store, retry_policy(clock, Random(1))), clock).partitions
    assert (part.parts, part.parts_committed, part.marked_tombstones) == (3, 3, 4)
    manifest = load(store)
    assert [s.unmarked_tombstone_count for s in manifest.segments] == [0] * 4
    assert {e for s in manifest.segments for e in s.cleaned_epochs} == {manifest.last_pass_epoch}
    assert [p.epoch for p in manifest.passes] == [manifest.last_pass_epoch]


def test_marks_left_by_a_stopped_pass_are_made_even_without_dirty_data() -> None:
    clock = ManualClock()
    batches = [[record(2 * n, "k", f"{n}"), record(2 * n + 1, f"gone-{n}", None)] for n in range(3)]
    store, _ = memory_log(*batches, clock=clock)
    answers = iter([False, True])
    new_run(store, UNMERGED, clock=clock, pass_bytes=1).clean([PLACE], lambda: next(answers))
    assert [s.unmarked_tombstone_count for s in load(store).segments] == [1, 1, 1]
    (part,) = clean(store, replace(UNMERGED, min_cleanable_dirty_ratio=1.0), clock=clock, seed=2).partitions
    manifest = load(store)
    assert (part.outcome, part.marked_tombstones, part.removed) == (PartitionOutcome.CLEANED, 1, 0)
    assert [s.cleaned_epochs for s in manifest.segments] == [(manifest.last_pass_epoch,), (), ()]


def test_the_lease_is_kept_while_parts_are_left_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store, _ = parted_log(clock)
    kept: list[bool] = []
    batches: list[Sequence[PartitionClaim]] = []

    class Keeper(LeaseKeeper):
        def __init__(self, batch: Sequence[PartitionClaim], lease_ms: int) -> None:
            batches.append(batch)  # which grows while its logs are claimed
            super().__init__(batch, lease_ms)

    class Watching(LocalExecutor):
        def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done = lambda _: None) -> list[UnitAnswer]:
            (claims,) = batches
            kept.extend(c.keep for c in claims)
            clock.advance(50_000)
            for claim in claims:
                claim.session.renew(60_000)
            return super().rewrite(portions, done)

    monkeypatch.setattr("keyfold_compactor.execute.run.LeaseKeeper", Keeper)
    (part,) = run(store, Watching(store, retry_policy(clock, Random(1))), clock).partitions
    assert (part.outcome, part.parts_committed, kept) == (PartitionOutcome.CLEANED, 3, [True, True, True])
    assert [c.keep for claims in batches for c in claims] == [False]


def test_a_stopped_run_reports_each_pass_with_parts_left() -> None:
    clock = ManualClock()
    store, _ = parted_log(clock)
    settings = RunSettings(settings_of=lambda *_: UNMERGED, threads=1, pass_bytes=1)
    run = Run(
        store, settings, lambda _: LocalExecutor(store, retry_policy(clock, Random(1))), clock=clock, random=Random(1)
    )
    answers = iter([False, True, True])
    (part,) = run.clean([PLACE], lambda: next(answers)).partitions
    assert (part.outcome, part.parts_committed, part.why) == (PartitionOutcome.CLEANED, 1, STOPPED)


def test_a_pass_stopped_after_losing_its_claim_is_reported_as_lost() -> None:
    clock = ManualClock()
    store, _ = parted_log(clock)

    def stop_overtaken() -> bool:
        if load(store).compactor.epoch == 0:
            return False  # asked before the batch
        clock.advance(60_001)
        PartitionLog(store, PLACE, clock=clock, random=Random(4)).claim_compactor(lease_ms=1, holder="another")
        return True

    settings = RunSettings(settings_of=lambda *_: UNMERGED, threads=1, pass_bytes=1)
    executor = LocalExecutor(store, retry_policy(clock, Random(1)))
    report = Run(store, settings, lambda _: executor, clock=clock, random=Random(1)).clean([PLACE], stop_overtaken)
    assert [(p.outcome, p.parts_committed) for p in report.partitions] == [(PartitionOutcome.LOST, 1)]


def test_merges_in_parts_finish_and_map_nothing() -> None:
    clock = ManualClock()
    store, _ = memory_log(*[[record(n, f"k{n}", "v" * 300)] for n in range(8)], clock=clock)
    before = read_all(store)
    topic = replace(EAGER, compact=False, segment_bytes=load(store).size_bytes // 3, merge_span_ms=86_400_000)
    mapped: list[int] = []

    class Watching(LocalExecutor):
        def map_logs(self, jobs: Iterable[LogJob], done: Done = lambda _: None) -> list[MapAnswer]:
            jobs = list(jobs)
            mapped.append(len(jobs))
            return super().map_logs(jobs, done)

    settings = RunSettings(settings_of=lambda *_: topic, threads=1, pass_bytes=1)
    executor = Watching(store, retry_policy(clock, Random(1)))
    (part,) = Run(store, settings, lambda _: executor, clock=clock, random=Random(1)).clean([PLACE]).partitions
    assert part.outcome is PartitionOutcome.CLEANED
    assert part.parts == part.parts_committed > 1
    assert mapped == [0]
    assert read_all(store) == before
    manifest = load(store)
    assert (manifest.first_dirty_offset, manifest.last_pass_epoch, len(manifest.segments)) == (0, 0, 4)


def test_settings_that_became_contradictory_fail_only_their_partition() -> None:
    """Raised from the claim it would end the run, and the leases of all others would be left to run out."""
    clock = ManualClock()
    store, _ = parted_log(clock)
    asked = 0

    def settings_of(topic: str, manifest: Manifest) -> TopicSettings:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise ConfigError("min.compaction.lag.ms", "must not exceed max.compaction.lag.ms")
        return UNMERGED

    settings = RunSettings(settings_of=settings_of, threads=1)
    executor = LocalExecutor(store, retry_policy(clock, Random(1)))
    report = Run(store, settings, lambda _: executor, clock=clock, random=Random(1)).clean([PLACE])
    (part,) = report.partitions
    assert (part.outcome, report.exit_code) == (PartitionOutcome.FAILED, 1)
    assert "must not exceed" in part.why
    assert load(store).compactor.lease_until_ms == 0


def test_maintenance_of_a_log_with_contradictory_settings_fails_alone() -> None:
    clock = ManualClock()
    store, _ = parted_log(clock)
    clean(store, replace(UNMERGED, file_delete_delay_ms=60_000), clock=clock)
    clock.advance(200_000)
    assert load(store).replaced
    asked = 0

    def settings_of(topic: str, manifest: Manifest) -> TopicSettings:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise ConfigError("min.compaction.lag.ms", "must not exceed max.compaction.lag.ms")
        return UNMERGED

    settings = RunSettings(settings_of=settings_of, threads=1)
    report = Run(store, settings, LocalExecutor, clock=clock, random=Random(1)).clean([PLACE])  # type: ignore[arg-type]  # an executor of this test
    (part,) = report.partitions
    assert "must not exceed" in part.gc_error


def test_a_hanging_renewal_lets_no_other_lease_expire() -> None:
    renewed: list[str] = []
    goes_on = threading.Event()

    class Session:
        def __init__(self, name: str) -> None:
            self.name = name

        def renew(self, lease_ms: int) -> None:
            if self.name == "slow":
                goes_on.wait(60)
            renewed.append(self.name)

    keeper = LeaseKeeper([PartitionClaim(Session(n), None, None, None) for n in ("slow", "fine")], 60_000)  # type: ignore[arg-type]  # only the session is used
    try:
        for turn in (1, 2, 3):
            slow, fine = keeper.start_renewals()
            fine.result(60)
            assert (renewed, slow.done()) == (["fine"] * turn, False)
    finally:
        goes_on.set()
    slow.result(60)
    assert renewed.count("slow") == 1, "not twice at once: a session is one thread's"
    keeper.renew()
    assert renewed.count("slow") == 2


def test_an_unexpected_renewal_error_stops_no_other_renewal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renewed: list[str] = []

    class Session:
        def __init__(self, name: str, error: Exception | None) -> None:
            self.name, self.error = name, error

        def renew(self, lease_ms: int) -> None:
            renewed.append(f"{self.name} {lease_ms}")
            if self.error is not None:
                raise self.error

    lost = Fenced("users", 0, "another compactor")
    errors = {"odd": RuntimeError("who knows"), "away": StoreUnavailable("k", "503"), "lost": lost, "fine": None}
    claims = [PartitionClaim(Session(n, e), None, None, None) for n, e in errors.items()]  # type: ignore[arg-type]  # only the session is used
    keeper = LeaseKeeper(claims, 60_000)
    keeper.renew()
    assert sorted(renewed) == ["away 60000", "fine 60000", "lost 60000", "odd 60000"]
    assert [c.keep for c in claims] == [True, True, False, True]
    keeper.renew()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return True

    monkeypatch.setattr(keeper._over, "wait", wait)
    keeper._run()
    assert waits == [20.0], "two renewals may fail before the lease runs out"
    assert sorted(renewed[4:]) == ["away 60000", "fine 60000", "odd 60000"]
