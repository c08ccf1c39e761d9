"""One run: read manifests, choose, claim, map, rewrite, commit, delete, report.

    look        every partition's manifest, in parallel; what has nothing to do costs this one GET
    expire      segments past retention leave the start of every log that asks for it, in a claim of their own: also
                where cleaning fails, and before the first long pass
    choose      `keyfold_compactor.policy`; overdue logs first, then the dirtiest; huge ones after the others
    clean       in batches of about a minute (`keyfold_compactor.batching`), so that a partition is claimed shortly
                before its work begins and other compactors find some that are free: claim, judge again with what the
                claim saw, and pass (`keyfold_compactor.passes`). A log that another compactor holds keeps its place in
                the queue: each batch tries it again, until a batch finds none that is free
    sweep       objects that were replaced long enough ago, and orphans, in every partition that was claimed; a
                partition that has only such chores is claimed for them without a lease, as retention does

The executor is asked for when there is something to clean, so a run with nothing to do starts no Spark, and before
anything is claimed: while Spark starts, other compactors may clean. A partition that fails is reported and holds up no
other. Nothing here knows Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, TypeVar

from keyfold.clock import Clock
from keyfold.errors import CommitRefused, Fenced, FirstCopyUnfinished, KeyfoldError, LeaseHeld, LogNotFound
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import CompactorSession, PartitionLog, Pinned
from keyfold.store.api import ObjectStore
from keyfold_compactor.batching import LOGS_MAX, SHARES, BatchLimits, CleaningRate, work_bytes
from keyfold_compactor.claims import Claim, LeaseKeeper
from keyfold_compactor.floor import Settled
from keyfold_compactor.horizon import purge_of
from keyfold_compactor.janitor import Swept, sweep
from keyfold_compactor.passes import UNIT_BYTES_MIN, Passes, release
from keyfold_compactor.plan import TASK_BYTES_MIN
from keyfold_compactor.policy import Chore, Verdict, forecast, judge
from keyfold_compactor.progress import FIRST_STAGE, NoProgress, Progress
from keyfold_compactor.report import Expired, LogSize, Outcome, PartitionReport, RunReport, log_size
from keyfold_compactor.retention import expire
from keyfold_compactor.settings import TopicSettings
from keyfold_compactor.standing import standing
from keyfold_compactor.work import Executor, LogJob, reason

T = TypeVar("T")
R = TypeVar("R")

PASS_BYTES_MAX: Final = 16 * 1024**3


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run goes by apart from the topics' settings, in stored bytes.

    `batch_bytes` and `batch_logs` are claimed at once at the most, and one of `shares` parts of what is due;
    `pass_bytes` is what one part of a pass may move. A log that is dealt to several tasks is cut into units of at least
    `unit_bytes_min`, and a rewriting task has at least `task_bytes_min` where there is enough for each slot. `settled`
    is what earlier runs of this process have found not worth cleaning, `rate` how fast they have cleaned.
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
class Look:
    """What the first look at a partition showed: a version and what to do about it, or an error."""

    place: Place
    pinned: Pinned | None = None
    verdict: Verdict | None = None
    error: KeyfoldError | None = None

    @property
    def size_bytes(self) -> int:
        """Stored bytes of the log's clean and cleanable part."""
        return self.verdict.range.clean_bytes + self.verdict.range.cleanable_bytes if self.verdict else 0


@dataclass(frozen=True, slots=True)
class Held:
    """A log that another compactor has claimed; `report` is what the run says of it if it stays so."""

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
        """What the run has done so far; `RunReport.so_far` gives a copy that other threads may read."""
        return self._report

    def look(self, places: Sequence[Place]) -> list[Look]:
        """Read and judge every partition. An empty place is left out, and a replica's first copy."""
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
        """The whole run. `should_stop` is asked between batches. In `resting` partitions only segments expire."""
        started_s = self._clock.monotonic_s()
        # A claim reads its manifest anew. Those of the looks, of thousands of logs, would be kept for nothing.
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
        """How a log stands after its pass."""
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
        """Claim a partition for its retention alone, without a lease; report what went."""
        place = look.place
        try:
            session = self._log(place).claim_compactor(lease_ms=0, holder=self._settings.holder)
            self._expire_claimed(session)
        except CommitRefused:
            return  # another compactor is there and does it
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
        """Clean what is due, batch by batch, until nothing of it is free."""
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
        """Ask for the executor before anything is claimed; False where there is none, and all that is due has failed.

        Not where another compactor was seen at work on all of it: there may be nothing to do.
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
        """Claim the first logs of the queue that are free, up to the limits; those that are held, and the rest.

        `claims` grows while their leases are being kept: where others hold many logs, it takes a while.
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
        """The executor failed as a whole: nothing of what is not committed yet will be."""

        def end(claim: Claim) -> None:
            with claim.lock:
                claim.keep = False
            outcome = Outcome.FAILED if release(claim.session) else Outcome.LOST
            self._report.add(PartitionReport(claim.job.place, outcome, why=why))

        self._parallel(end, [c for c in claims if c.job.place not in self._report.by_place])

    def _claim(self, number: int, look: Look) -> Claim | Held | None:
        """Claim one partition; None, and a report, where that ends its part of the run."""
        try:
            return self._claimed(number, look)
        except (LeaseHeld, Fenced) as error:  # fenced: the other one's claim was faster
            return Held(look, PartitionReport(look.place, Outcome.SKIPPED, why=str(error)))
        except CommitRefused as error:
            self._report.add(PartitionReport(look.place, Outcome.LOST, why=str(error)))
        except KeyfoldError as error:
            self._report.add(PartitionReport(look.place, Outcome.FAILED, why=str(error)))
        return None

    def _claimed(self, number: int, look: Look) -> Claim | None:
        """Claim a partition that is still due, and judge it again by what the claim saw.

        The first look may be an hour old by now: the manifest is read again, for a lease counts from its time. A log
        that another run has cleaned meanwhile costs that one request.
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
        except KeyfoldError:  # what is followed has changed since the look, and contradicts itself now
            release(session)
            raise
        if due is None:
            release(session)
            return None
        verdict, settings = due
        job = log_job(number, place, pinned, verdict, settings, session.epoch)
        return Claim(session, job, verdict, settings, size_bytes=look.size_bytes)

    def _due(self, place: Place, pinned: Pinned) -> tuple[Verdict, TopicSettings] | None:
        """The verdict on a log of the queue, by its newest settings; None, and a report, where it is due no more."""
        settings = self._settings.settings_of(place.topic, pinned.manifest)
        verdict = judge(pinned.manifest, settings, pinned.seen_ms, force=self._settings.force)
        if verdict.is_due:
            return verdict, settings
        self._report.add(PartitionReport(place, Outcome.UNCHANGED, why="another run has just cleaned this log"))
        return None

    def _pass(self, claims: Sequence[Claim], should_stop: Callable[[], bool]) -> None:
        """Map, plan, rewrite and commit what was claimed."""
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
        """Why the rest of a pass in parts is not wanted any more, by the newest settings; nothing where it is."""
        try:
            settings = self._settings.settings_of(claim.job.place.topic, claim.session.manifest)
        except KeyfoldError as error:
            return f"stopped: {error}"
        if settings.compact or claim.verdict.is_merge:
            return ""
        return "stopped: cleanup.policy no longer includes `compact`"

    # Deleting

    def _tidy(self, look: Look) -> None:
        """Claim a partition for its chores alone: no lease, so it costs one commit (and one more to forget)."""
        try:
            session = self._log(look.place).claim_compactor(lease_ms=0, holder=self._settings.holder)
            settings = self._settings.settings_of(look.place.topic, session.manifest)
        except CommitRefused:
            return  # another compactor is there and does it
        except KeyfoldError as error:
            self._report.swept(look.place, Swept(), reason(error))
            return
        self._sweep(session, settings)

    def _sweep(self, session: CompactorSession, settings: TopicSettings) -> None:
        try:
            swept = sweep(self._store, session, settings.file_delete_delay_ms, settings.replica_hold_max_ms)
        except CommitRefused:
            return  # another compactor has claimed the partition: its business now
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


def log_job(
    number: int,
    place: Place,
    pinned: Pinned,
    verdict: Verdict,
    settings: TopicSettings,
    epoch: int,
) -> LogJob:
    """What tasks need to know of one log."""
    manifest = pinned.manifest
    return LogJob(
        number=number,
        place=place,
        entries=tuple(s for s in manifest.segments if s.next_offset <= verdict.end),
        first_dirty=verdict.range.first_dirty,
        end=verdict.end,
        epoch=epoch,
        sync_marker=manifest.sync_marker,
        purge=purge_of(manifest, settings, pinned.seen_ms),
        remove_keyless=settings.remove_keyless,
        encoding=settings.encoding,
    )


def by_urgency(looks: Iterable[Look], batch_bytes: int) -> list[Look]:
    """Logs that are due in the order in which they are claimed.

    A log that fills a batch by itself comes after all others of its urgency (forced, overdue, dirty, only merged): its
    pass may take hours, and they need not wait for it. It waits for them no longer than one run takes.
    """
    return sorted(looks, key=lambda k: _rank(k, batch_bytes))


def _rank(look: Look, batch_bytes: int) -> tuple[int, bool, bool, int, float]:
    assert look.verdict is not None
    first, overdue, dirtiest = look.verdict.rank
    return (first, overdue == 0, look.size_bytes > batch_bytes, overdue, dirtiest)
