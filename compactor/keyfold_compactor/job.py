"""The compactor's job: takes options, runs until told to stop, and returns reports.

    once        one run; exit code 1 when a partition failed
    loop        runs with `log.cleaner.backoff.ms` between them until SIGTERM or SIGINT. A partition that failed is
                skipped for a time that doubles with each failure, then retried; it never stays uncleanable

The first run that needs Spark starts it (`keyfold_compactor.engine`), and later runs reuse it.
`keyfold_compactor.spark.keeper` says what happens when Spark dies.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import structlog

from keyfold.errors import ConfigError, KeyfoldError
from keyfold.log import catalog
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import Pinned
from keyfold.replicas.after_run import AfterRunStep
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.probe import LOOP_RETRY_TIMEOUT_S, RETRY_TIMEOUT_S, probe
from keyfold_compactor.decide.batching import CleaningRate
from keyfold_compactor.decide.min_garbage import LogsBelowMinGarbage, min_garbage_ratio_of
from keyfold_compactor.decide.policy import CleaningDecision, PartitionReview
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.single_stage import plan_pass
from keyfold_compactor.decide.work import UnitLimits, log_job
from keyfold_compactor.execute.executor import ExecutorFactory
from keyfold_compactor.execute.passes import UNIT_BYTES_MIN
from keyfold_compactor.execute.replica_holds import ReplicaHolds, load_replica_holds
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.cost import Cost, cost
from keyfold_compactor.report.gain import Gain, exact_gain, gain
from keyfold_compactor.report.log_state import LogState
from keyfold_compactor.report.progress import RunProgress
from keyfold_compactor.report.report import NoRunObserver, RunObserver, RunReport

log = structlog.get_logger(__name__)

FAILED_BACKOFF = Backoff(first_ms=30_000, cap_ms=3_600_000)
EXECUTOR_FAILURES_MAX = 3


@dataclass(frozen=True, slots=True)
class RunSelection:
    """What the command line limits a run to; without topics or without partitions: all of the configured ones."""

    topics: Sequence[str] = ()
    partitions: Collection[int] = ()
    force: bool = False
    collect_orphans: bool = False


@dataclass(slots=True)
class PartitionBackoff:
    """Partitions that failed, and until when they are skipped (local monotonic seconds)."""

    clock: Clock
    random: Random
    _until_s: dict[Place, float] = field(default_factory=dict)
    _delays: dict[Place, Iterator[float]] = field(default_factory=dict)

    def is_out(self, place: Place) -> bool:
        """Whether a partition is still to be skipped."""
        return self._until_s.get(place, 0.0) > self.clock.monotonic_s()

    @property
    def failing(self) -> frozenset[Place]:
        """Partitions whose last attempt failed."""
        return frozenset(self._delays)

    def learn(self, report: RunReport, resting: frozenset[Place] = frozenset()) -> None:
        """Record which partitions failed. Reset all others except those in `resting`, which were not retried."""
        failed = {p.place for p in report.failed} - resting
        for place in self.failing - failed - resting:
            del self._until_s[place], self._delays[place]
        for place in failed:
            delays = self._delays.setdefault(place, FAILED_BACKOFF.delays_s(self.random))
            self._until_s[place] = self.clock.monotonic_s() + next(delays)


class Job:
    """Runs of one configuration."""

    def __init__(
        self,
        options: CompactOptions,
        selection: RunSelection,
        store: ObjectStore,
        executor: ExecutorFactory,
        *,
        clock: Clock,
        random: Random,
        progress: RunProgress | None = None,
        check_executor: Callable[[], None] = lambda: None,
        observer: RunObserver | None = None,
        replicate: AfterRunStep = lambda _: (),
        keep_directories: AfterRunStep = lambda _: (),
        sync_tables: AfterRunStep = lambda _: (),
    ) -> None:
        """Call `check_executor` between runs to check the executor; an error that it raises ends the loop.

        `replicate`, `keep_directories` and `sync_tables` are called after a run, and return what they did.
        """
        self._options = options
        self._selection = selection
        self._store = store
        self._executor = executor
        self._clock = clock
        self._random = random
        self._progress = progress
        self._check_executor = check_executor
        self._observer: RunObserver = observer or NoRunObserver()
        self._replicate = replicate
        self._keep_directories = keep_directories
        self._sync_tables = sync_tables
        self._backoff = PartitionBackoff(clock, random)
        self._holder = f"{options.name}-{random.getrandbits(32):08x}"
        self._below_min_garbage = LogsBelowMinGarbage()
        self._rate = CleaningRate()
        self._failed_states: dict[Place, LogState] = {}
        self._replica_holds = ReplicaHolds()
        self._runs = 0

    def places(self) -> list[Place]:
        """Return the partitions that this job covers. Raise `ConfigError` for a topic outside the configuration."""
        wanted = self._selection
        directory = self._options.topics_dir
        for topic in wanted.topics:
            if not self._options.wants(topic):
                hint = "--topic selects among the topics of the configuration; add the topic there"
                raise ConfigError("topics", f"does not include topic `{topic}` of --topic", hint=hint)
        repeat = RetryPolicy(self._clock, self._random).repeat
        if wanted.topics:
            topics: Iterable[str] = dict.fromkeys(wanted.topics)
        else:
            listed = [*self._options.topics] or repeat(lambda: catalog.topics(self._store, directory))
            topics = filter(self._options.wants, listed)
        found = [
            Place(directory, topic, partition)
            for topic in topics
            for partition in repeat(partial(catalog.partitions, self._store, directory, topic))
            if not wanted.partitions or partition in wanted.partitions
        ]
        missing = _missing(wanted, found)
        if missing:
            url = self._options.url
            hint = f"`keyfold log list {url}` lists what is there"
            raise KeyfoldError(f"{missing} not found under `{url}`", hint=hint)
        return found

    def review(self) -> list[PartitionReview]:
        """Return what the next run would do, and why. Changes nothing and starts no Spark."""
        places = self.places()
        self._load_replica_holds(places)
        return self._run().review(places)

    def costs(self, reviews: Iterable[PartitionReview]) -> dict[Place, Cost]:
        """Return the cost of cleaning for each partition that has something to clean."""
        found: dict[Place, Cost] = {}
        for review in reviews:
            if review.pinned is None or review.decision is None:
                continue
            settings = self._settings_of(review.place.topic, review.pinned.manifest)
            would = cost(review.place, review.pinned, review.decision, settings, self._options.pass_max_bytes)
            if would is not None:
                found[review.place] = would
        return found

    def gains(self, reviews: Iterable[PartitionReview], *, is_exact: bool = False) -> dict[Place, Gain]:
        """Return what a pass would free in each partition that is due. `is_exact`: read the indexes for that."""
        found: dict[Place, Gain] = {}
        for review in reviews:
            if review.pinned is None or review.decision is None or not review.decision.is_due:
                continue
            settings = self._settings_of(review.place.topic, review.pinned.manifest)
            if is_exact and not review.decision.is_merge:
                found[review.place] = self._exact_gain(review.place, review.pinned, review.decision, settings)
            else:
                found[review.place] = gain(review.place, review.pinned, review.decision, settings)
        return found

    def _exact_gain(self, place: Place, pinned: Pinned, decision: CleaningDecision, settings: TopicSettings) -> Gain:
        # The map needs arrow, whose import takes a second, and which nothing else here needs.
        from keyfold_compactor.execute.local import run_map

        job = log_job(0, place, pinned, decision, settings, 0)
        # Segments that retention removes are not cleaned.
        job = replace(job, entries=tuple(e for e in job.entries if e.base_offset >= decision.range.log_start))
        answer, _ = run_map(job, self._store, RetryPolicy(self._clock, self._random))
        if answer.error:
            raise KeyfoldError(f"{place}: {answer.error}", hint="`keyfold log verify` says whether the log is damaged")
        limits = UnitLimits(
            settings.segment_bytes,
            max(UNIT_BYTES_MIN, job.size_bytes),
            min_garbage_ratio_of(decision, settings),
            self._options.pass_max_bytes,
            settings.has_max_lag,
        )
        return exact_gain(job, plan_pass(job, answer.stats, limits))

    def once(self, should_stop: Callable[[], bool] = lambda: False) -> RunReport:
        """Do one run."""
        self._runs += 1
        run = self._run()
        self._observer.run_started(run.report)
        with self._watched():
            report = self._clean(run, should_stop)
        self._observer.run_ended(report)
        report.replicas = tuple(self._replicate(should_stop))
        report.key_directories = tuple(self._keep_directories(should_stop))
        report.tables = tuple(self._sync_tables(should_stop))
        return report

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._observer.run_failed()
            raise

    def _clean(self, run: Run, should_stop: Callable[[], bool]) -> RunReport:
        # Skipped partitions are not read; they keep the state in which they failed.
        run.report.uncleanable = self._backoff.failing
        run.report.log_states.update(self._failed_states)
        covered = self.places()
        self._load_replica_holds(covered)
        resting = frozenset(place for place in covered if self._backoff.is_out(place))
        places = [place for place in covered if place not in resting]
        expiring = [place for place in covered if place in resting and self._options.has_retention(place.topic)]
        report = run.clean(places, should_stop, resting=expiring)
        self._backoff.learn(report, resting)
        report.uncleanable = self._backoff.failing
        known = frozenset(covered)
        report.log_states = {place: found for place, found in report.log_states.items() if place in known}
        self._failed_states = {p: s for p, s in report.log_states.items() if p in report.uncleanable}
        return report

    def prove_store(self, retry_timeout_s: float = RETRY_TIMEOUT_S) -> None:
        """Refuse a store that ignores conditions. Raise `ConditionsIgnored`, `AccessDenied` or `BucketMissing`."""
        with self._watched():
            probe(self._store, self._options.topics_dir, self._clock, self._random, retry_timeout_s=retry_timeout_s)

    def prove_store_until(self, stop: threading.Event) -> None:
        """Do the same for a loop: wait for a store that does not answer, until `stop`."""
        delays = self._delays()
        while not stop.is_set():
            try:
                self.prove_store(LOOP_RETRY_TIMEOUT_S)
            except KeyfoldError as error:
                if not error.retriable:
                    raise
                pause_s = next(delays)
                log.warning("store unavailable; retrying", in_s=round(pause_s, 1), error=str(error))
                stop.wait(pause_s)
            else:
                return

    def loop(self, stop: threading.Event, publish: Callable[[RunReport], None]) -> None:
        """Run repeatedly until `stop`. Retry a run that fails as a whole (no bucket, no network).

        Raise `KeyfoldError` if Spark fails in several runs in a row: a new process must start it.
        """
        delays = self._delays()
        failures = 0
        while not stop.is_set():
            pause_s = self._options.backoff_ms / 1000
            try:
                report = self.once(stop.is_set)
                publish(report)
                delays = self._delays()
                failures = _executor_failures(failures, report)
                self._check_executor()
            except KeyfoldError as error:
                if not error.retriable:
                    raise
                pause_s = max(pause_s, next(delays))
                log.warning("run failed; retrying", in_s=round(pause_s, 1), error=str(error))
            stop.wait(pause_s)

    def _delays(self) -> Iterator[float]:
        return Backoff(first_ms=1_000).delays_s(self._random)

    def _run(self) -> Run:
        every = self._options.collect_runs
        collect = self._selection.collect_orphans or (every > 0 and self._runs % every == 0)
        settings = RunSettings(
            settings_of=self._settings_of,
            lease_ms=self._options.lease_ms,
            holder=self._holder,
            batch_bytes=self._options.batch_bytes,
            pass_bytes=self._options.pass_max_bytes,
            threads=self._options.threads,
            force=self._selection.force,
            collect_orphans=collect,
            below_min_garbage=self._below_min_garbage,
            rate=self._rate,
            io_bytes_per_second=self._options.io_max_bytes_per_second,
        )
        return Run(
            self._store, settings, self._executor, clock=self._clock, random=self._random, progress=self._progress
        )

    def _load_replica_holds(self, places: Iterable[Place]) -> None:
        topics = {place.topic for place in places}
        self._replica_holds = load_replica_holds(
            self._store, self._options.topics_dir, self._clock, self._random, topics
        )
        for problem in self._replica_holds.problems:
            log.warning("holding tombstones for an unreadable replica", why=problem)

    def _settings_of(self, topic: str, manifest: Manifest) -> TopicSettings:
        settings = self._options.settings_of(topic, manifest.settings)
        return replace(settings, replicas=self._replica_holds.of(topic))


def _missing(wanted: RunSelection, found: Sequence[Place]) -> str:
    """Return the first selected topic or partition that has no log; empty if all have one."""
    with_logs = {place.topic for place in found}
    topic = next((topic for topic in wanted.topics if topic not in with_logs), "")
    known = {place.partition for place in found}
    partition = next((number for number in wanted.partitions if number not in known), None)
    if not topic and partition is None:
        return ""
    if not topic and len(set(wanted.topics)) == 1:
        topic = wanted.topics[0]
    where = f"topic `{topic}`" if topic else "the selected topics" if wanted.topics else "the configured topics"
    return where if partition is None else f"partition {partition} of {where}"


def _executor_failures(before: int, report: RunReport) -> int:
    """Return in how many runs in a row Spark has failed. Raise `KeyfoldError` when there are too many."""
    if not report.executor_error:
        return 0 if report.partitions else before
    if before + 1 < EXECUTOR_FAILURES_MAX:
        return before + 1
    raise KeyfoldError(
        f"Spark failed in {before + 1} runs in a row: {report.executor_error}",
        hint="remove the cause and restart the compactor, which starts a new Spark; only complete commits change a log",
    )
