"""One run: read manifests, choose, claim, map, rewrite, commit, delete, report.

    look        read every partition's manifest, in parallel; a partition with nothing to do costs only this GET
    expire      remove segments past retention from the start of every log that asks for it, each with a claim of its
                own. This happens before the first long pass, and also in logs whose cleaning fails
    choose      `decide.policy`: overdue logs first, then the dirtiest, huge ones last
    clean       in batches of about a minute (`decide.batching`): claim, judge again with the manifest that
                the claim read, and pass (`execute.passes`). So a partition is claimed shortly before its work
                begins, and other compactors find free ones. A log that another compactor holds keeps its place in the
                queue: each batch tries it again, until a batch finds no free log
    sweep       delete objects that were replaced long enough ago, and orphans, in every claimed partition. A partition
                that needs only this is claimed without a lease, as for retention

The executor is started only when there is something to clean, so a run with nothing to do starts no Spark. It is
started before anything is claimed, so that other compactors can clean while Spark starts. A partition that fails is
reported and delays no other. Nothing here depends on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar

from keyfold.errors import CommitRefused, Fenced, FirstCopyUnfinished, KeyfoldError, LeaseHeld, LogNotFound
from keyfold.log.gc import Swept, sweep
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import CompactorSession, PartitionLog, Pinned
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore
from keyfold_compactor.decide.batching import LOGS_MAX, SHARES, BatchLimits, CleaningRate, work_bytes
from keyfold_compactor.decide.min_garbage import Settled
from keyfold_compactor.decide.plan import TASK_BYTES_MIN
from keyfold_compactor.decide.policy import Chore, Look, Verdict, by_urgency, forecast, judge
from keyfold_compactor.decide.retention import Expiry, expiry
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import log_job, reason
from keyfold_compactor.execute.claims import Claim, LeaseKeeper
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.passes import UNIT_BYTES_MIN, Passes, release
from keyfold_compactor.report.log_state import standing
from keyfold_compactor.report.progress import FIRST_STAGE, NoProgress, Progress
from keyfold_compactor.report.report import Expired, LogSize, Outcome, PartitionReport, RunReport, log_size

T = TypeVar("T")
R = TypeVar("R")

PASS_BYTES_MAX: Final = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run apart from those of topics; sizes are stored bytes.

    A run claims at most `batch_bytes` and `batch_logs` at once, and at most one of `shares` parts of what is due. One
    part of a pass moves at most `pass_bytes`. A log that several tasks clean is cut into units of at least
    `unit_bytes_min`. A rewriting task gets at least `task_bytes_min` if there is enough for each slot. `settled` are
    the logs that earlier runs of this process found not worth cleaning, and `rate` is how fast those runs cleaned.
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
    patience_s: float = 60.0
    settled: Settled = field(default_factory=Settled)
    rate: CleaningRate = field(default_factory=CleaningRate)


@dataclass(frozen=True, slots=True)
class Held:
    """A log that another compactor has claimed; `report` is used if it stays claimed."""

    look: Look
    report: PartitionReport


class Run:
    """One run over some partitions."""

    def __init__(
        self,
        store: ObjectStore,
        settings: RunSettings,
        executor: Callable[[], Executor],
        *,
        clock: Clock,
        random: Random,
        progress: Progress | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._make_executor = executor
        self._executor: Executor | None = None
        self._clock = clock
        self._random = random
        self._progress: Progress = progress or NoProgress()
        self._report = RunReport()

    @property
    def report(self) -> RunReport:
        """The report so far; `RunReport.so_far` returns a copy that other threads may read."""
        return self._report

    def look(self, places: Sequence[Place]) -> list[Look]:
        """Read and judge every partition. Leave out empty folders and unfinished first copies of replicas."""
        return self._looks(places, self._look)

    def _looks(self, places: Sequence[Place], look: Callable[[Place], Look]) -> list[Look]:
        self._progress.begin(FIRST_STAGE, len(places))
        nothing_yet = (LogNotFound, FirstCopyUnfinished)
        return [found for found in self._parallel(look, places) if not isinstance(found.error, nothing_yet)]

    def clean(
        self,
        places: Sequence[Place],
        should_stop: Callable[[], bool] = lambda: False,
        *,
        resting: Collection[Place] = (),
    ) -> RunReport:
        """Do the whole run. `should_stop` is called between batches. In `resting` partitions only segments expire."""
        started_s = self._clock.monotonic_s()
        # A claim reads its manifest again. Do not keep the manifests of the looks, of thousands of logs, until then.
        looks = self._looks([*places, *resting], lambda place: replace(self._look(place), pinned=None))
        self._retain(looks)
        rested = frozenset(resting)
        looks = [k for k in looks if k.place not in rested]
        for look in looks:
            if look.error is not None:
                self._report.add(PartitionReport(look.place, Outcome.FAILED, why=str(look.error)))
            elif self._settings.force and look.verdict and look.verdict.follows:
                self._report.add(PartitionReport(look.place, Outcome.SKIPPED, why=look.verdict.why_not))
        self._clean_due([k for k in looks if k.verdict and k.verdict.is_due], should_stop)
        chores = [k for k in looks if k.verdict and not k.verdict.is_due and self._has_chores(k.verdict)]
        if chores and not should_stop():
            self._progress.begin("deleting", len(chores))
            self._parallel(self._tidy, chores)
        reported = self._report.reported
        self._report.quiet_partitions = sum(k.place not in reported for k in looks)
        self._report.seconds = self._clock.monotonic_s() - started_s
        return self._report

    # Looking

    def _look(self, place: Place) -> Look:
        try:
            pinned = self._log(place).load()
            settings = self._settings.settings_of(pinned.manifest.topic, pinned.manifest)
            verdict = self._judge(place, pinned, settings)
            self._report.standings[place] = standing(place, pinned, verdict, settings)
            return Look(place, pinned, verdict)
        except KeyfoldError as error:
            return Look(place, error=error)

    def _judge(self, place: Place, pinned: Pinned, settings: TopicSettings) -> Verdict:
        verdict = forecast(pinned.manifest, settings, pinned.seen_ms, force=self._settings.force)
        if self._settings.settled.knows(place, pinned.manifest, verdict, settings, pinned.seen_ms):
            why_not = "the garbage that is left is below segment.min.garbage.ratio"
            return replace(verdict, reasons=(), why_not=why_not)
        return verdict

    def _look_back(self, claim: Claim) -> None:
        """Record the state of a log after its pass."""
        place, pinned = claim.job.place, claim.session.pinned
        verdict = judge(pinned.manifest, claim.settings, pinned.seen_ms)
        self._report.standings[place] = standing(place, pinned, verdict, claim.settings)

    def _has_chores(self, verdict: Verdict) -> bool:
        return not verdict.follows and (bool(verdict.chores) or self._settings.collect_orphans)

    def _log(self, place: Place) -> PartitionLog:
        return PartitionLog(
            self._store, place, clock=self._clock, random=self._random, patience_s=self._settings.patience_s
        )

    # Retention

    def _retain(self, looks: Sequence[Look]) -> None:
        due = [k for k in looks if k.verdict and Chore.EXPIRE in k.verdict.chores]
        if due:
            self._progress.begin("expiring", len(due))
            self._parallel(self._expire, due)

    def _expire(self, look: Look) -> None:
        """Claim a partition for retention alone, without a lease, and report what was removed."""
        place = look.place
        try:
            session = self._log(place).claim_compactor(lease_ms=0, holder=self._settings.holder)
            self._expire_claimed(session)
        except CommitRefused:
            return  # another compactor is at work here and will do it
        except KeyfoldError as error:
            self._report.expired(place, Expired(error=reason(error)), LogSize(), LogSize())

    def _expire_claimed(self, session: CompactorSession) -> None:
        before = session.manifest
        found = expire(session, self._settings.settings_of(session.place.topic, before))
        if found.segments:
            expired = Expired(len(found.segments), found.record_count, found.size_bytes)
            self._report.expired(session.place, expired, log_size(before), log_size(session.manifest))

    # Cleaning

    def _clean_due(self, due: Sequence[Look], should_stop: Callable[[], bool]) -> None:
        """Clean the logs that are due, batch by batch, until none of them is free."""
        queue = by_urgency(due, self._settings.batch_bytes)
        due_bytes = sum(work_bytes(look.size_bytes) for look in queue)
        while queue and not should_stop():
            if not self._start_executor(queue):
                return
            begun_s = self._clock.monotonic_s()
            claims: list[Claim] = []
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
            queue = [*(each.look for each in held), *queue]

    def _start_executor(self, queue: Sequence[Look]) -> bool:
        """Start the executor before anything is claimed. If that fails, report all logs as failed and return False.

        Do not start it if another compactor was seen at work on all of them: there may be nothing to do.
        """
        standings = self._report.standings
        if self._executor is not None or all(standings[look.place].is_in_progress for look in queue):
            return True
        try:
            self._executor = self._make_executor()
        except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting is told of each partition
            self._report.executor_error = reason(error)
            for look in queue:
                self._report.add(PartitionReport(look.place, Outcome.FAILED, why=reason(error)))
        return self._executor is not None

    def _limits(self, due_bytes: int) -> BatchLimits:
        settings, slots = self._settings, self._executor.slots if self._executor else 1
        per_second = settings.rate.per_second(slots, settings.io_bytes_per_second)
        return BatchLimits.of(
            per_second, due_bytes / settings.shares, slots, size_bytes=settings.batch_bytes, logs=settings.batch_logs
        )

    def _claim_batch(
        self, queue: Sequence[Look], limits: BatchLimits, claims: list[Claim]
    ) -> tuple[list[Held], list[Look]]:
        """Claim the first free logs of the queue, up to the limits. Return the held ones, and the rest of the queue.

        `claims` grows while the leases in it are being renewed: if others hold many logs, claiming takes a while.
        """
        held: list[Held] = []
        tried = 0
        while count := limits.fitting([k.size_bytes for k in queue[tried:]], [c.size_bytes for c in claims]):
            chosen = list(enumerate(queue[tried : tried + count], tried))
            self._progress.begin("claiming", count)
            found = self._parallel(lambda pair: self._claim(*pair), chosen)
            claims.extend(c for c in found if isinstance(c, Claim))
            held.extend(h for h in found if isinstance(h, Held))
            tried += count
        return held, list(queue[tried:])

    def _clean_batch(self, claims: Sequence[Claim], should_stop: Callable[[], bool]) -> None:
        try:
            self._pass(claims, should_stop)
        except Exception as error:  # noqa: BLE001 - what ends Spark's job ends this batch and not the run
            self._report.executor_error = reason(error)
            self._give_up(claims, reason(error))

    def _finish_batch(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._look_back(claim)
        self._progress.begin("deleting", len(claims))
        self._parallel(lambda claim: self._sweep(claim.session, claim.settings), claims)

    def _give_up(self, claims: Sequence[Claim], why: str) -> None:
        """End all passes after the executor failed as a whole: nothing more will be committed."""

        def end(claim: Claim) -> None:
            with claim.lock:
                claim.keep = False
            outcome = Outcome.FAILED if release(claim.session) else Outcome.LOST
            self._report.add(PartitionReport(claim.job.place, outcome, why=why))

        self._parallel(end, [c for c in claims if c.job.place not in self._report.by_place])

    def _claim(self, number: int, look: Look) -> Claim | Held | None:
        """Claim one partition. Return None, after a report, if its part of the run ends here."""
        try:
            return self._claimed(number, look)
        except (LeaseHeld, Fenced) as error:  # fenced: another compactor claimed first
            return Held(look, PartitionReport(look.place, Outcome.SKIPPED, why=str(error)))
        except CommitRefused as error:
            self._report.add(PartitionReport(look.place, Outcome.LOST, why=str(error)))
        except KeyfoldError as error:
            self._report.add(PartitionReport(look.place, Outcome.FAILED, why=str(error)))
        return None

    def _claimed(self, number: int, look: Look) -> Claim | None:
        """Claim a partition that is still due, and judge it again with the manifest that the claim read.

        The first look may be an hour old by now, and a lease counts from the manifest's time. So the manifest is read
        again. A log that another run has cleaned in the meantime costs only that request.
        """
        place = look.place
        log = self._log(place)
        seen = log.load()
        if self._due(place, seen) is None:
            return None
        session = log.claim_compactor(lease_ms=self._settings.lease_ms, holder=self._settings.holder, base=seen)
        pinned = session.pinned
        try:
            due = self._due(place, pinned)
        except KeyfoldError:  # the followed settings have changed since the look, and contradict each other now
            release(session)
            raise
        if due is None:
            release(session)
            return None
        verdict, settings = due
        job = log_job(number, place, pinned, verdict, settings, session.epoch)
        return Claim(session, job, verdict, settings, size_bytes=look.size_bytes)

    def _due(self, place: Place, pinned: Pinned) -> tuple[Verdict, TopicSettings] | None:
        """Return the verdict on a log by its newest settings. Return None, after a report, if it is no longer due."""
        settings = self._settings.settings_of(place.topic, pinned.manifest)
        verdict = judge(pinned.manifest, settings, pinned.seen_ms, force=self._settings.force)
        if verdict.is_due:
            return verdict, settings
        self._report.add(PartitionReport(place, Outcome.UNCHANGED, why="another run has just cleaned this log"))
        return None

    def _pass(self, claims: Sequence[Claim], should_stop: Callable[[], bool]) -> None:
        """Map, plan, rewrite and commit the claimed logs."""
        self._executor = self._executor or self._make_executor()
        Passes(
            self._executor,
            max_bytes=self._settings.pass_bytes,
            unit_bytes_min=self._settings.unit_bytes_min,
            task_bytes_min=self._settings.task_bytes_min,
            settled=self._settings.settled,
            report=self._report,
            progress=self._progress,
            parallel=self._parallel,
            clock=self._clock,
            why_stop=self._why_stop,
        ).clean(claims, should_stop)

    def _why_stop(self, claim: Claim) -> str:
        """Return why the rest of a pass in parts must not continue, by the newest settings; empty if it may."""
        try:
            settings = self._settings.settings_of(claim.job.place.topic, claim.session.manifest)
        except KeyfoldError as error:
            return f"stopped: {error}"
        if settings.compact or claim.verdict.is_merge:
            return ""
        return "stopped: cleanup.policy no longer includes `compact`"

    # Deleting

    def _tidy(self, look: Look) -> None:
        """Claim a partition for chores alone, without a lease. It costs one commit, and one more to forget names."""
        try:
            session = self._log(look.place).claim_compactor(lease_ms=0, holder=self._settings.holder)
            settings = self._settings.settings_of(look.place.topic, session.manifest)
        except CommitRefused:
            return  # another compactor is at work here and will do it
        except KeyfoldError as error:
            self._report.swept(look.place, Swept(), reason(error))
            return
        self._sweep(session, settings)

    def _sweep(self, session: CompactorSession, settings: TopicSettings) -> None:
        try:
            swept = sweep(self._store, session, settings.file_delete_delay_ms, settings.replica_hold_max_ms)
        except CommitRefused:
            return  # another compactor has claimed the partition and will do it
        except KeyfoldError as error:
            self._report.swept(session.place, Swept(), reason(error))
            return
        if swept.object_count:
            self._report.swept(session.place, swept, "")

    def _parallel(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        def one(item: T) -> R:
            result = work(item)
            self._progress.step()
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
