"""One run: read manifests, choose, claim, map, rewrite, commit, delete, report.

    review      read every partition's manifest, in parallel; a partition with nothing to do costs only this GET
    expire      remove segments past retention from the start of every log that asks for it, each with a claim of its
                own. This happens before the first long pass, and also in logs whose cleaning fails
    choose      `decide.policy`: overdue logs first, then the dirtiest, huge ones last
    clean       in batches of about a minute (`decide.batching`): claim, decide again with the manifest that the
                claim read, and pass (`execute.passes`). So a partition is claimed shortly before its work
                begins, and other compactors find free ones. A log that another compactor holds keeps its place in the
                queue: each batch tries it again, until a batch finds no free log
    gc          delete objects that were replaced long enough ago, and orphans, in every claimed partition. A partition
                that needs only this is claimed without a lease, as for retention

The executor is asked for only when there is something to clean, by the work that is due. So a run with little or
nothing to do starts no Spark. Spark is started before anything is claimed, so that other compactors can clean
meanwhile. A partition that fails is reported and delays no other. Nothing here depends on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar

from keyfold.errors import CommitRefused, Fenced, FirstCopyUnfinished, KeyfoldError, LeaseHeld, LogNotFound
from keyfold.log.gc import CollectedGarbage, collect_garbage
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import CompactorSession, PartitionLog, Pinned
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore
from keyfold_compactor.decide.batching import LOGS_MAX, SHARES, BatchLimits, CleaningRate, work_bytes
from keyfold_compactor.decide.min_garbage import LogsBelowMinGarbage
from keyfold_compactor.decide.plan import TASK_BYTES_MIN
from keyfold_compactor.decide.policy import (
    CleaningDecision,
    MaintenanceTask,
    PartitionReview,
    by_urgency,
    decide_cleaning,
    forecast,
)
from keyfold_compactor.decide.retention import Expiry, expiry
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import log_job, reason
from keyfold_compactor.execute.claims import LeaseKeeper, PartitionClaim
from keyfold_compactor.execute.executor import Executor, ExecutorFactory
from keyfold_compactor.execute.passes import UNIT_BYTES_MIN, BatchPasses, release
from keyfold_compactor.report.log_state import log_state
from keyfold_compactor.report.progress import FIRST_STAGE, NoProgress, RunProgress
from keyfold_compactor.report.report import Expired, LogSize, PartitionOutcome, PartitionReport, RunReport, log_size

T = TypeVar("T")
R = TypeVar("R")

PASS_BYTES_MAX: Final = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run apart from those of topics; sizes are stored bytes.

    A run claims at most `batch_bytes` and `batch_logs` at once, and at most one of `shares` parts of what is due. One
    part of a pass moves at most `pass_bytes`. A log that several tasks clean is cut into units of at least
    `unit_bytes_min`. A rewriting task gets at least `task_bytes_min` if there is enough for each slot.
    `below_min_garbage` are the logs that earlier runs of this process found not worth cleaning. `rate` is how fast
    those runs cleaned.
    """

    settings_of: Callable[[str, Manifest], TopicSettings]
    lease_ms: int = 60_000
    holder: str = "keyfold-compactor"
    batch_bytes: int = 4 * 1024**3
    batch_logs: int = LOGS_MAX
    shares: int = SHARES
    io_bytes_per_second: float | None = None
    pass_bytes: int = PASS_BYTES_MAX
    unit_bytes_min: int = UNIT_BYTES_MIN
    task_bytes_min: int = TASK_BYTES_MIN
    threads: int = 16
    force: bool = False
    collect_orphans: bool = False
    retry_timeout_s: float = 60.0
    below_min_garbage: LogsBelowMinGarbage = field(default_factory=LogsBelowMinGarbage)
    rate: CleaningRate = field(default_factory=CleaningRate)


@dataclass(frozen=True, slots=True)
class ClaimedElsewhere:
    """A log that another compactor has claimed; `report` is used if it stays claimed."""

    review: PartitionReview
    report: PartitionReport


class Run:
    """One run over some partitions."""

    def __init__(
        self,
        store: ObjectStore,
        settings: RunSettings,
        executor: ExecutorFactory,
        *,
        clock: Clock,
        random: Random,
        progress: RunProgress | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._make_executor = executor
        self._executor: Executor | None = None
        self._due_bytes = 0
        self._clock = clock
        self._random = random
        self._progress: RunProgress = progress or NoProgress()
        self._report = RunReport()

    @property
    def report(self) -> RunReport:
        """The report so far; `RunReport.so_far` returns a copy that other threads may read."""
        return self._report

    def review(self, places: Sequence[Place]) -> list[PartitionReview]:
        """Read every partition and decide about it. Leave out empty folders and unfinished first copies of replicas."""
        return self._reviews(places, self._review)

    def _reviews(self, places: Sequence[Place], review: Callable[[Place], PartitionReview]) -> list[PartitionReview]:
        self._progress.begin_stage(FIRST_STAGE, len(places))
        nothing_yet = (LogNotFound, FirstCopyUnfinished)
        return [found for found in self._parallel(review, places) if not isinstance(found.error, nothing_yet)]

    def clean(
        self,
        places: Sequence[Place],
        should_stop: Callable[[], bool] = lambda: False,
        *,
        resting: Collection[Place] = (),
    ) -> RunReport:
        """Do the whole run. `should_stop` is called between batches. In `resting` partitions only segments expire."""
        started_s = self._clock.monotonic_s()
        # A claim reads its manifest again. Do not keep the manifests of all reviews, of thousands of logs, until then.
        reviews = self._reviews([*places, *resting], lambda place: replace(self._review(place), pinned=None))
        self._expire(reviews)
        rested = frozenset(resting)
        reviews = [review for review in reviews if review.place not in rested]
        for review in reviews:
            if review.error is not None:
                self._report.add(PartitionReport(review.place, PartitionOutcome.FAILED, why=str(review.error)))
            elif self._settings.force and review.decision and review.decision.replica_of:
                self._report.add(PartitionReport(review.place, PartitionOutcome.SKIPPED, why=review.decision.why_not))
        self._clean_due([review for review in reviews if review.decision and review.decision.is_due], should_stop)
        idle = [
            review
            for review in reviews
            if review.decision and not review.decision.is_due and self._needs_maintenance(review.decision)
        ]
        if idle and not should_stop():
            self._progress.begin_stage("deleting", len(idle))
            self._parallel(self._maintain, idle)
        reported = self._report.reported
        self._report.quiet_partitions = sum(review.place not in reported for review in reviews)
        self._report.seconds = self._clock.monotonic_s() - started_s
        return self._report

    # Reviewing

    def _review(self, place: Place) -> PartitionReview:
        try:
            pinned = self._log(place).load()
            settings = self._settings.settings_of(pinned.manifest.topic, pinned.manifest)
            decision = self._decide(place, pinned, settings)
            self._report.log_states[place] = log_state(place, pinned, decision, settings)
            return PartitionReview(place, pinned, decision)
        except KeyfoldError as error:
            return PartitionReview(place, error=error)

    def _decide(self, place: Place, pinned: Pinned, settings: TopicSettings) -> CleaningDecision:
        decision = forecast(pinned.manifest, settings, pinned.seen_ms, force=self._settings.force)
        if self._settings.below_min_garbage.knows(place, pinned.manifest, decision, settings, pinned.seen_ms):
            why_not = "the garbage that is left is below segment.min.garbage.ratio"
            return replace(decision, reasons=(), why_not=why_not)
        return decision

    def _record_log_state(self, claim: PartitionClaim) -> None:
        """Record the state of a log after its pass."""
        place, pinned = claim.job.place, claim.session.pinned
        decision = decide_cleaning(pinned.manifest, claim.settings, pinned.seen_ms)
        self._report.log_states[place] = log_state(place, pinned, decision, claim.settings)

    def _needs_maintenance(self, decision: CleaningDecision) -> bool:
        return not decision.replica_of and (bool(decision.maintenance) or self._settings.collect_orphans)

    def _log(self, place: Place) -> PartitionLog:
        return PartitionLog(
            self._store, place, clock=self._clock, random=self._random, retry_timeout_s=self._settings.retry_timeout_s
        )

    # Retention

    def _expire(self, reviews: Sequence[PartitionReview]) -> None:
        due = [
            review for review in reviews if review.decision and MaintenanceTask.EXPIRE in review.decision.maintenance
        ]
        if due:
            self._progress.begin_stage("expiring", len(due))
            self._parallel(self._expire_partition, due)

    def _expire_partition(self, review: PartitionReview) -> None:
        """Claim a partition for retention alone, without a lease, and report what was removed."""
        place = review.place
        try:
            session = self._log(place).claim_compactor(lease_ms=0, holder=self._settings.holder)
            self._expire_claimed(session)
        except CommitRefused:
            return  # another compactor is at work here and will do it
        except KeyfoldError as error:
            self._report.add_expired(place, Expired(error=reason(error)), LogSize(), LogSize())

    def _expire_claimed(self, session: CompactorSession) -> None:
        before = session.manifest
        found = expire(session, self._settings.settings_of(session.place.topic, before))
        if found.segments:
            expired = Expired(len(found.segments), found.record_count, found.size_bytes)
            self._report.add_expired(session.place, expired, log_size(before), log_size(session.manifest))

    # Cleaning

    def _clean_due(self, due: Sequence[PartitionReview], should_stop: Callable[[], bool]) -> None:
        """Clean the logs that are due, batch by batch, until none of them is free."""
        queue = by_urgency(due, self._settings.batch_bytes)
        due_bytes = self._due_bytes = sum(work_bytes(review.size_bytes) for review in queue)
        while queue and not should_stop():
            asked_s = self._clock.monotonic_s()
            if not self._start_executor(queue):
                return
            begun_s = self._clock.monotonic_s()
            if begun_s > asked_s and should_stop():  # Spark takes seconds to start
                return
            claims: list[PartitionClaim] = []
            with LeaseKeeper(claims, self._settings.lease_ms):
                held, queue = self._claim_batch(queue, self._limits(due_bytes), claims)
                if not claims:
                    for each in held:
                        self._report.add(each.report)
                    return
                self._clean_batch(claims, should_stop)
            self._finish_batch(claims)
            if not self._report.executor_error:
                cleaned_bytes = sum(work_bytes(claim.size_bytes) for claim in claims)
                self._settings.rate.learn(cleaned_bytes, self._clock.monotonic_s() - begun_s)
            queue = [*(each.review for each in held), *queue]

    def _start_executor(self, queue: Sequence[PartitionReview]) -> bool:
        """Start the executor before anything is claimed. If that fails, report all logs as failed and return False.

        Do not start it if another compactor was seen at work on all of them: there may be nothing to do.
        """
        log_states = self._report.log_states
        if self._executor is not None or all(log_states[review.place].is_in_progress for review in queue):
            return True
        try:
            self._executor = self._make_executor(self._due_bytes)
        except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting is told of each partition
            self._report.executor_error = reason(error)
            for review in queue:
                self._report.add(PartitionReport(review.place, PartitionOutcome.FAILED, why=reason(error)))
        return self._executor is not None

    def _limits(self, due_bytes: int) -> BatchLimits:
        settings, slots = self._settings, self._executor.slots if self._executor else 1
        per_second = settings.rate.per_second(slots, settings.io_bytes_per_second)
        return BatchLimits.of(
            per_second, due_bytes / settings.shares, slots, size_bytes=settings.batch_bytes, logs=settings.batch_logs
        )

    def _claim_batch(
        self, queue: Sequence[PartitionReview], limits: BatchLimits, claims: list[PartitionClaim]
    ) -> tuple[list[ClaimedElsewhere], list[PartitionReview]]:
        """Claim the first free logs of the queue, up to the limits. Return the held ones, and the rest of the queue.

        `claims` grows while the leases in it are being renewed: if others hold many logs, claiming takes a while.
        """
        held: list[ClaimedElsewhere] = []
        tried = 0
        while count := limits.fitting([review.size_bytes for review in queue[tried:]], [c.size_bytes for c in claims]):
            chosen = list(enumerate(queue[tried : tried + count], tried))
            self._progress.begin_stage("claiming", count)
            found = self._parallel(lambda pair: self._claim(*pair), chosen)
            claims.extend(c for c in found if isinstance(c, PartitionClaim))
            held.extend(h for h in found if isinstance(h, ClaimedElsewhere))
            tried += count
        return held, list(queue[tried:])

    def _clean_batch(self, claims: Sequence[PartitionClaim], should_stop: Callable[[], bool]) -> None:
        try:
            self._pass(claims, should_stop)
        except Exception as error:  # noqa: BLE001 - what ends Spark's job ends this batch and not the run
            self._report.executor_error = reason(error)
            self._give_up(claims, reason(error))

    def _finish_batch(self, claims: Sequence[PartitionClaim]) -> None:
        for claim in claims:
            self._record_log_state(claim)
        self._progress.begin_stage("deleting", len(claims))
        self._parallel(lambda claim: self._collect_garbage(claim.session, claim.settings), claims)

    def _give_up(self, claims: Sequence[PartitionClaim], why: str) -> None:
        """End all passes after the executor failed as a whole: nothing more will be committed."""

        def end(claim: PartitionClaim) -> None:
            with claim.lock:
                claim.keep = False
            outcome = PartitionOutcome.FAILED if release(claim.session) else PartitionOutcome.LOST
            self._report.add(PartitionReport(claim.job.place, outcome, why=why))

        self._parallel(end, [c for c in claims if c.job.place not in self._report.by_place])

    def _claim(self, number: int, review: PartitionReview) -> PartitionClaim | ClaimedElsewhere | None:
        """Claim one partition. Return None, after a report, if its part of the run ends here."""
        try:
            return self._claimed(number, review)
        except (LeaseHeld, Fenced) as error:  # fenced: another compactor claimed first
            return ClaimedElsewhere(review, PartitionReport(review.place, PartitionOutcome.SKIPPED, why=str(error)))
        except CommitRefused as error:
            self._report.add(PartitionReport(review.place, PartitionOutcome.LOST, why=str(error)))
        except KeyfoldError as error:
            self._report.add(PartitionReport(review.place, PartitionOutcome.FAILED, why=str(error)))
        return None

    def _claimed(self, number: int, review: PartitionReview) -> PartitionClaim | None:
        """Claim a partition that is still due, and decide again with the manifest that the claim read.

        The first review may be an hour old by now, and a lease counts from the manifest's time. So the manifest is read
        again. A log that another run has cleaned in the meantime costs only that request.
        """
        place = review.place
        log = self._log(place)
        seen = log.load()
        if self._due(place, seen) is None:
            return None
        session = log.claim_compactor(lease_ms=self._settings.lease_ms, holder=self._settings.holder, base=seen)
        pinned = session.pinned
        try:
            due = self._due(place, pinned)
        except KeyfoldError:  # the followed settings have changed since the review, and contradict each other now
            release(session)
            raise
        if due is None:
            release(session)
            return None
        decision, settings = due
        job = log_job(number, place, pinned, decision, settings, session.epoch)
        return PartitionClaim(session, job, decision, settings, size_bytes=review.size_bytes)

    def _due(self, place: Place, pinned: Pinned) -> tuple[CleaningDecision, TopicSettings] | None:
        """Decide about a log by its newest settings. Return None, after a report, if it is no longer due."""
        settings = self._settings.settings_of(place.topic, pinned.manifest)
        decision = decide_cleaning(pinned.manifest, settings, pinned.seen_ms, force=self._settings.force)
        if decision.is_due:
            return decision, settings
        self._report.add(
            PartitionReport(place, PartitionOutcome.UNCHANGED, why="another run has just cleaned this log")
        )
        return None

    def _pass(self, claims: Sequence[PartitionClaim], should_stop: Callable[[], bool]) -> None:
        """Map, plan, rewrite and commit the claimed logs."""
        self._executor = self._executor or self._make_executor(self._due_bytes)
        BatchPasses(
            self._executor,
            max_bytes=self._settings.pass_bytes,
            unit_bytes_min=self._settings.unit_bytes_min,
            task_bytes_min=self._settings.task_bytes_min,
            below_min_garbage=self._settings.below_min_garbage,
            report=self._report,
            progress=self._progress,
            parallel=self._parallel,
            clock=self._clock,
            why_stop=self._why_stop,
        ).clean(claims, should_stop)

    def _why_stop(self, claim: PartitionClaim) -> str:
        """Return why the rest of a pass in parts must not continue, by the newest settings; empty if it may."""
        try:
            settings = self._settings.settings_of(claim.job.place.topic, claim.session.manifest)
        except KeyfoldError as error:
            return f"stopped: {error}"
        if settings.compact or claim.decision.is_merge:
            return ""
        return "stopped: cleanup.policy no longer includes `compact`"

    # Deleting

    def _maintain(self, review: PartitionReview) -> None:
        """Claim a partition without a lease, only to maintain it. It costs one commit, and one more to forget names."""
        try:
            session = self._log(review.place).claim_compactor(lease_ms=0, holder=self._settings.holder)
            settings = self._settings.settings_of(review.place.topic, session.manifest)
        except CommitRefused:
            return  # another compactor is at work here and will do it
        except KeyfoldError as error:
            self._report.add_garbage(review.place, CollectedGarbage(), reason(error))
            return
        self._collect_garbage(session, settings)

    def _collect_garbage(self, session: CompactorSession, settings: TopicSettings) -> None:
        try:
            garbage = collect_garbage(self._store, session, settings.file_delete_delay_ms, settings.replica_hold_max_ms)
        except CommitRefused:
            return  # another compactor has claimed the partition and will do it
        except KeyfoldError as error:
            self._report.add_garbage(session.place, CollectedGarbage(), reason(error))
            return
        if garbage.object_count:
            self._report.add_garbage(session.place, garbage, "")

    def _parallel(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        def one(item: T) -> R:
            result = work(item)
            self._progress.advance()
            return result

        if len(items) <= 1 or self._settings.threads <= 1:
            return [one(item) for item in items]
        with ThreadPoolExecutor(min(self._settings.threads, len(items))) as pool:
            return list(pool.map(one, items))


def expire(session: CompactorSession, settings: TopicSettings) -> Expiry:
    """Commit the removal of expired segments in a claimed partition; without any, send nothing.

    Raise `SegmentsMoved` or `Fenced` if the claim was lost, and `StoreError`.
    """
    found = expiry(session.manifest, settings, session.pinned.seen_ms)
    if found.segments:
        session.expire(found.segments)
    return found
