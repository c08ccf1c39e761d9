"""The passes of one batch: map all logs, choose, then rewrite and commit part by part, all logs in parallel.

    map        every log of the batch once; a log that is small beside the batch is cleaned in this stage
    choose     the segments that are worth rewriting, and the parts that they are cut into (`decide.parts`)
    round r    part r of every log that has one: its units are distributed over tasks by bytes, then each log commits

A log that fails leaves the rounds and delays no other log. The commits of its earlier parts stay, and each is complete.
A run that is asked to stop stops between two rounds, and a later run continues. A log whose topic is no longer
compacted stops there too: its rounds may take hours, and Kafka also ends a cleaning then
(LogManager.updateTopicConfig).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from keyfold.errors import CommitRefused, KeyfoldError
from keyfold.log.manifest import SegmentEntry
from keyfold.log.partition_log import CompactorSession
from keyfold.runtime.clock import Clock
from keyfold_compactor.decide import parts, plan
from keyfold_compactor.decide.merge import merges
from keyfold_compactor.decide.min_garbage import LogsBelowMinGarbage, PassPlan, min_garbage_ratio_of, only_merge
from keyfold_compactor.decide.parts import PassPart
from keyfold_compactor.decide.single_stage import plan_pass
from keyfold_compactor.decide.work import MapAnswer, Traffic, UnitAnswer, UnitJob, UnitLimits, reason
from keyfold_compactor.execute.claims import PartitionClaim
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.report.progress import RunProgress
from keyfold_compactor.report.report import LogSize, PartitionOutcome, PartitionReport, RunReport, log_size

UNIT_BYTES_MIN: Final = 32 * 1024 * 1024
SINGLE_STAGE_SHARE: Final = 1.25
"""Logs up to this many units in size are cleaned in one stage: cutting them would not balance anything."""
STOPPED: Final = "stopped; the next run continues"


Item = TypeVar("Item")
Result = TypeVar("Result")


class Parallel(Protocol):
    """Call a function with each item, many at a time. Each call is a step of the stage's progress."""

    def __call__(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results, in order."""


@dataclass(slots=True)
class _Pass:
    """The pass of one log in progress. `written` has the entries that its committed parts have made, by group."""

    claim: PartitionClaim
    answer: MapAnswer
    before: LogSize
    pass_plan: PassPlan | None = None
    parts: tuple[PassPart, ...] = ()
    committed: int = 0
    is_over: bool = False
    begun_s: float = 0.0
    replaced_bytes: int = 0
    made_bytes: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    written: dict[int, SegmentEntry] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.claim.job.number

    @property
    def part(self) -> PassPart:
        return self.parts[self.committed]


class BatchPasses:
    """Clean the claimed partitions of one batch, and report each of them once."""

    def __init__(
        self,
        executor: Executor,
        *,
        max_bytes: int,
        unit_bytes_min: int,
        task_bytes_min: int,
        below_min_garbage: LogsBelowMinGarbage,
        report: RunReport,
        progress: RunProgress,
        parallel: Parallel,
        clock: Clock,
        why_stop: Callable[[PartitionClaim], str] = lambda _: "",
    ) -> None:
        """`why_stop` is called between the parts of a pass; it returns a reason to stop, or an empty string."""
        self._executor = executor
        self._why_stop = why_stop
        self._clock = clock
        self._max_bytes = max_bytes
        self._unit_bytes_min = unit_bytes_min
        self._task_bytes_min = task_bytes_min
        self._below_min_garbage = below_min_garbage
        self._report = report
        self._progress = progress
        self._parallel = parallel

    def clean(self, claims: Sequence[PartitionClaim], should_stop: Callable[[], bool]) -> None:
        """Map, plan, rewrite and commit the claimed logs."""
        waiting = self._map(claims)
        while waiting:
            try:
                self._round(waiting)
            except Exception as error:
                self._give_up(waiting, reason(error))
                raise
            waiting = [each for each in waiting if not each.is_over]
            is_stopped = bool(waiting) and should_stop()
            stopping = [(each, STOPPED if is_stopped else self._why_stop(each.claim)) for each in waiting]
            self._parallel(self._stop, [(each, why) for each, why in stopping if why])
            waiting = [each for each in waiting if not each.is_over]
        self._executor.forget()

    def _map(self, claims: Sequence[PartitionClaim]) -> list[_Pass]:
        begun_s = self._clock.monotonic_s()
        total_bytes = sum(c.job.size_bytes for c in claims)
        unit_bytes = max(self._unit_bytes_min, total_bytes // (2 * self._executor.slots))
        for claim in claims:
            if not claim.decision.is_merge and claim.job.size_bytes <= SINGLE_STAGE_SHARE * unit_bytes:
                claim.job = replace(claim.job, single_stage=self._limits(claim, claim.job.size_bytes))
        self._progress.begin_stage("mapping", len(claims))
        mapped = [c.job for c in claims if not c.decision.is_merge]
        answers = {c.job.number: MapAnswer(c.job.number) for c in claims if c.decision.is_merge}
        answers.update((a.number, a) for a in self._executor.map_logs(mapped, self._progress.advance))
        self._progress.advance(len(claims) - len(mapped))
        passes: list[_Pass] = []
        for claim in claims:
            answer = answers[claim.job.number]
            before = log_size(claim.session.manifest)
            made = _Pass(claim, answer, before, begun_s=begun_s, traffic=answer.traffic)
            if not answer.error:
                made.pass_plan = _choose(claim, answer, claim.job.single_stage or self._limits(claim, unit_bytes))
                made.parts = parts.cut(claim.job, made.pass_plan, self._max_bytes)
            passes.append(made)
        return passes

    def _limits(self, claim: PartitionClaim, unit_bytes: int) -> UnitLimits:
        settings = claim.settings
        min_garbage_ratio = min_garbage_ratio_of(claim.decision, settings)
        return UnitLimits(settings.segment_bytes, unit_bytes, min_garbage_ratio, self._max_bytes, settings.has_max_lag)

    def _round(self, passes: Sequence[_Pass]) -> None:
        """Do the next part of each pass: rewrite, then commit."""
        made = self._rewrite(passes)

        def finish(each: _Pass) -> None:
            try:
                self._finish(each, made.get(each.number, []))
            except Exception as error:  # noqa: BLE001 - a broken invariant fails its partition, and is never left out
                self._end(each, PartitionOutcome.FAILED, reason(error))
                release(each.claim.session)

        self._progress.begin_stage("committing", len(passes))
        self._parallel(finish, passes)

    def _rewrite(self, passes: Iterable[_Pass]) -> Mapping[int, list[UnitAnswer]]:
        jobs: list[UnitJob] = []
        costs: list[int] = []
        made: dict[int, list[UnitAnswer]] = {}
        for each in passes:
            if each.pass_plan is None:
                continue
            if each.answer.made is not None:
                made[each.number] = list(each.answer.made)
                continue
            groups = each.pass_plan.groups
            for unit in parts.units(each.claim.job, each.pass_plan, each.part, each.written):
                jobs.append(unit)
                costs.append(
                    groups[unit.group].moved_bytes
                    if unit.group < len(groups)
                    else 2 * unit.sources[0].entry.index_size_bytes
                )
        tasks = plan.tasks_for(costs, self._executor.slots, least_bytes=self._task_bytes_min)
        portions = [[jobs[at] for at in portion] for portion in plan.distribute(costs, tasks)]
        self._progress.begin_stage("rewriting", len(jobs))
        for answer in self._executor.rewrite(portions, self._progress.advance):
            made.setdefault(answer.log, []).append(answer)
        return made

    def _finish(self, each: _Pass, made: Sequence[UnitAnswer]) -> None:
        """Commit one part of one pass, and report the pass after its last part."""
        claim = each.claim
        each.traffic = sum((a.traffic for a in made), each.traffic)
        errors = [text for text in (each.answer.error, *(a.error for a in made)) if text]
        with claim.lock:
            claim.keep = claim.keep and not errors and each.pass_plan is not None and not each.part.is_last
        if errors or each.pass_plan is None:
            # A compactor that lost its claim may miss objects that the other one has deleted. The log is not at fault.
            self._end(each, PartitionOutcome.FAILED if release(claim.session) else PartitionOutcome.LOST, errors[0])
            return
        entries = {a.group: a.entry for a in made if a.entry is not None}
        try:
            with claim.lock:
                changed = _commit(each, each.pass_plan, entries)
        except CommitRefused as error:
            self._end(each, PartitionOutcome.LOST, str(error))
            return
        except KeyfoldError as error:
            self._end(each, PartitionOutcome.FAILED, str(error))
            return
        part = each.part
        each.committed += 1
        _weigh(each, each.pass_plan, part, entries)
        if not part.is_last:
            each.written.update(entries)
            self._report.under_way[claim.job.place] = self._described(each, PartitionOutcome.CLEANED, "")
            return
        self._below_min_garbage.learn(
            claim.session.manifest, claim.job, each.pass_plan, min_garbage_ratio_of(claim.decision, claim.settings)
        )
        self._end(each, PartitionOutcome.CLEANED if changed else PartitionOutcome.UNCHANGED, "")

    def _stop(self, stopping: tuple[_Pass, str]) -> None:
        """End a pass between two parts: release the lease, and keep what was committed."""
        each, why = stopping
        with each.claim.lock:
            each.claim.keep = False
        kept = release(each.claim.session)
        self._end(each, PartitionOutcome.CLEANED if kept else PartitionOutcome.LOST, why)

    def _give_up(self, passes: Iterable[_Pass], why: str) -> None:
        """End all passes after the executor failed as a whole. Committed parts stay; nothing else will be committed."""

        def end(each: _Pass) -> None:
            with each.claim.lock:
                each.claim.keep = False
            self._end(each, PartitionOutcome.FAILED if release(each.claim.session) else PartitionOutcome.LOST, why)

        # In parallel: if the store is away too, each of them waits for it in vain.
        self._parallel(end, [each for each in passes if not each.is_over])

    def _end(self, each: _Pass, outcome: PartitionOutcome, why: str) -> None:
        """End the pass with one report."""
        with each.claim.lock:
            each.claim.keep = False
        each.is_over = True
        self._report.add(self._described(each, outcome, why))

    def _described(self, each: _Pass, outcome: PartitionOutcome, why: str) -> PartitionReport:
        report = PartitionReport(
            each.claim.job.place,
            outcome,
            why=why,
            reasons=tuple(r.value for r in each.claim.decision.reasons),
            before=each.before,
            after=log_size(each.claim.session.manifest) if each.committed else each.before,
            parts=len(each.parts),
            parts_committed=each.committed,
            traffic=each.traffic,
            seconds=max(0.0, self._clock.monotonic_s() - each.begun_s),
        )
        return report if each.pass_plan is None or not each.committed else _with_counts(report, each, each.pass_plan)


def release(session: CompactorSession) -> bool:
    """Release the lease. Return False if the claim had been lost before."""
    try:
        session.release()
    except CommitRefused:
        return False
    except KeyfoldError:
        return True  # the lease runs out by itself
    return True


def _choose(claim: PartitionClaim, answer: MapAnswer, limits: UnitLimits) -> PassPlan:
    if claim.decision.is_merge:
        return only_merge(claim.job, merges(claim.job.entries, claim.job.first_dirty, claim.settings))
    return plan_pass(claim.job, answer.stats, limits)


def _commit(each: _Pass, pass_plan: PassPlan, made: Mapping[int, SegmentEntry]) -> bool:
    """Commit one part. If a whole pass changes nothing, only release the lease."""
    session = each.claim.session
    if not pass_plan.groups and pass_plan.first_dirty <= session.manifest.first_dirty_offset:
        session.release()
        return False
    session.replace(parts.replacement(each.claim.job, pass_plan, each.part, made, each.written))
    return True


def _weigh(each: _Pass, pass_plan: PassPlan, part: PassPart, made: Mapping[int, SegmentEntry]) -> None:
    """Add the stored bytes of the segments that a committed part has replaced, and of the new ones."""
    for number in part.groups:
        group = pass_plan.groups[number]
        if not group.is_remark:
            each.replaced_bytes += sum(e.size_bytes for e in each.claim.job.entries[group.first : group.last + 1])
            each.made_bytes += 0 if group.is_unlink else made[number].size_bytes


def _with_counts(report: PartitionReport, each: _Pass, pass_plan: PassPlan) -> PartitionReport:
    """Return the report with the counts of the committed parts."""
    done = each.parts[: each.committed]
    groups = [pass_plan.groups[n] for part in done for n in part.groups]
    stats = [pass_plan.stats[at] for part in done for at in parts.positions(pass_plan, part)]
    is_whole = done[-1].is_last
    marked_again = len(parts.remarks(pass_plan, done[-1], each.written))
    return replace(
        report,
        kept=sum(s.kept_count for s in (pass_plan.stats if is_whole and not pass_plan.is_merge else stats)),
        replaced_bytes=each.replaced_bytes,
        made_bytes=each.made_bytes,
        superseded=sum(s.superseded_count for s in stats),
        purged_tombstones=sum(s.purged_count for s in stats),
        held_tombstones=sum(s.held_count for s in (pass_plan.stats if is_whole else stats)),
        keyless_removed=sum(s.keyless_count for s in stats),
        marked_tombstones=sum(s.mark_count for s in pass_plan.stats) if is_whole else 0,
        segments_written=sum(not g.is_unlink and not g.is_remark for g in groups),
        indexes_written=sum(not g.is_unlink for g in groups) + marked_again,
        segments_left=len(pass_plan.left) if is_whole else 0,
        segments_unlinked=sum(g.last - g.first + 1 for g in groups if not g.is_remark),
    )
