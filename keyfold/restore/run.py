"""A restore of a topic: look at everything, decide, and only then write.

1. the log's manifests, and the topic, if it is there
2. the plan: that of an earlier run, or a new one
3. what has landed (`recover`), and what is left, with everything that would go wrong
4. the topic, if it has to be made; the plan into the journal; the lease
5. partitions, several at once, each on its own; a failed one does not stop the others

`look` does the first three and writes nothing; `run` does the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final, Protocol

from keyfold.errors import ConfigError, KeyfoldError, LogNotFound, ObjectNotFound, is_of_one_partition
from keyfold.log.manifest import Manifest
from keyfold.read.log import Log
from keyfold.read.ordered import newer, offset_for_time
from keyfold.read.position import anchor_of
from keyfold.restore import hazards as rules
from keyfold.restore.errors import RestoreBusy, RestoreFenced, RestoreRefused
from keyfold.restore.group_offsets import GroupOffset, translate
from keyfold.restore.hazards import Hazard
from keyfold.restore.journal import Journal, PartitionPlan, RestorePlan, journal_folder
from keyfold.restore.lease import LEASE_S, SEND_SHARE, Lease
from keyfold.restore.pace import Pace
from keyfold.restore.partition import PartitionRestore, RestoreResult, RestoreSettings
from keyfold.restore.selection import RestoreSelection
from keyfold.restore.source import RestoreSource
from keyfold.restore.source_survey import RestoreSurvey, TargetLimits, survey
from keyfold.restore.target import RestoreTarget, TargetTopic
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore

AT_ONCE: Final = 4


class TargetTopics(Protocol):
    """What a restore needs of a cluster, besides a `RestoreTarget`."""

    def describe(self, name: str) -> TargetTopic | None:
        """The topic as it is, or None."""

    def imagine(self, name: str, partitions: int, settings: Mapping[str, str]) -> TargetTopic:
        """The topic as it would be if it were made."""

    def create(self, name: str, partitions: int, settings: Mapping[str, str], replication_factor: int) -> TargetTopic:
        """Make it."""

    def compression(self, topic: TargetTopic) -> str:
        """How batches will be compressed."""

    def open(self, topic: TargetTopic, *, send_s: float, largest_bytes: int) -> RestoreTarget:
        """The topic to write into."""


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What was asked for. `partitions` empty: all. `partition_count` None: that of the log."""

    target: str
    selection: RestoreSelection = field(default_factory=RestoreSelection)
    settings: RestoreSettings = field(default_factory=RestoreSettings)
    partitions: tuple[int, ...] = ()
    partition_count: int | None = None
    topic_config: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1
    at_once: int = AT_ONCE
    goes_on: bool = False
    strict: bool = False
    lease_s: float = LEASE_S

    def asked(self) -> JsonObject:
        """What must be the same in every run of one restore."""
        return {**self.selection.to_json(), "offset_header": self.settings.offset_header}


@dataclass(frozen=True, slots=True)
class RestorePreview:
    """What a restore would do, and what would go wrong. `left`: records still to be written, by partition."""

    topic: TargetTopic
    plan: RestorePlan
    surveys: tuple[RestoreSurvey, ...]
    hazards: tuple[Hazard, ...]
    landed: Mapping[int, int]
    finished: tuple[RestoreResult, ...]

    @property
    def errors(self) -> list[Hazard]:
        """What does not allow it."""
        return [hazard for hazard in self.hazards if hazard.is_error]

    @property
    def records_left(self) -> int:
        """How many records are still to be written."""
        return sum(survey.records for survey in self.surveys)


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """What came of a run: partitions that are restored, and those that failed with their errors."""

    results: tuple[RestoreResult, ...]
    failures: Mapping[int, KeyfoldError]


class Restore:
    """One restore. `preview` writes nothing; `run` does it."""

    def __init__(self, log: Log, topics: TargetTopics, request: RestoreRequest, *, clock: Clock, random: Random,
                 holder: str, journal_store: ObjectStore | None = None, journal_dir: str | None = None,
                 pace: Pace | None = None) -> None:  # fmt: skip
        self._log = log
        self._topics = topics
        self._request = request
        self._clock = clock
        self._random = random
        self._holder = holder
        self._pace = pace or Pace(clock)
        self._journal_store = journal_store or log.store
        self._journal_dir = log.topics_dir if journal_dir is None else journal_dir
        self._stopped = threading.Event()
        self._retry = RetryPolicy(clock, random)

    def stop(self) -> None:
        """Ask a run in other threads to stop as soon as it can."""
        self._stopped.set()

    # Look

    def preview(self) -> RestorePreview:
        """The plan, what has landed, and what would go wrong. Raises `RestoreRefused` and what reading raises."""
        manifests, there = self._manifests()
        count = self._request.partition_count or there
        topic = self._topics.describe(self._request.target) or self._topics.imagine(
            self._request.target, count, rules.new_topic_settings([*manifests.values()], self._request.topic_config)
        )
        return self._outlook(topic, manifests, count)

    def _manifests(self) -> tuple[dict[int, Manifest], int]:
        """The manifests that can be read, and how many partitions the log has.

        Raises the error of a partition that was chosen. A folder without any log in it is no partition.
        """
        there = self._log.partitions()
        unknown = sorted(set(self._request.partitions) - set(there))
        if unknown:
            raise ConfigError("--partition", f"the log of {self._log.topic} has no partition {unknown[0]}")
        with ThreadPoolExecutor(8) as pool:
            found = dict(zip(there, pool.map(self._manifest_or_error, there), strict=True))
        last = max((n for n in there if not isinstance(found[n], LogNotFound)), default=-1)
        count = self._request.partition_count
        if count is not None and count <= last:
            raise ConfigError("--partitions", f"{count} is too small: the log has partition {last}")
        return {number: one for number, one in found.items() if not isinstance(one, KeyfoldError)}, last + 1

    def _manifest_or_error(self, number: int) -> Manifest | KeyfoldError:
        """A manifest, or the error of a partition that was not chosen. Raises the error of any other."""
        try:
            return self._log.manifest(number)
        except KeyfoldError as error:
            if self._chosen([number]) or not is_of_one_partition(error):
                raise
            return error

    def _chosen(self, known: Sequence[int]) -> list[int]:
        return [number for number in known if not self._request.partitions or number in self._request.partitions]

    def _outlook(self, topic: TargetTopic, manifests: Mapping[int, Manifest], count: int) -> RestorePreview:
        wrong = tuple(rules.partitions_hazard(topic, count))
        journal = self._journal(topic)
        plan = (journal.load_plan(manifests) if topic.exists else None) or self._new_plan(topic, manifests)
        self._require_same(plan, journal)
        if wrong:
            return RestorePreview(topic, plan, (), wrong, {}, ())
        added = sorted(set(manifests) - set(plan.partitions))
        left_out = [] if self._request.goes_on else self._chosen(added)
        if self._request.goes_on:
            later = {number: self._partition_plan(number, manifests[number]) for number in added}
            plan = replace(plan, partitions={**plan.partitions, **later})
        limits = self._limits(topic)
        target = self._topics.open(topic, send_s=1.0, largest_bytes=0) if topic.exists else None
        parts = self._chosen(sorted(plan.partitions))
        with ThreadPoolExecutor(self._request.at_once) as pool:
            found = list(pool.map(partial(self._look_at, topic, plan, journal, target, limits), parts))
        surveys = tuple(one for one, _, _ in found if one is not None)
        hazards = tuple(rules.hazards(topic, surveys, self._request.selection, limits)) if surveys else ()
        hazards += tuple(rules.added_hazards(self._log.topic, left_out))
        finished = tuple(result for _, _, result in found if result is not None)
        landed = {number: count for number, (_, count, _) in zip(parts, found, strict=True)}
        return RestorePreview(topic, plan, surveys, hazards, landed, finished)

    def _look_at(
        self,
        topic: TargetTopic,
        plan: RestorePlan,
        journal: Journal,
        target: RestoreTarget | None,
        limits: TargetLimits,
        number: int,
    ) -> tuple[RestoreSurvey | None, int, RestoreResult | None]:
        """What remains of a partition, how much has landed, and the result if nothing remains."""
        source = self._source(plan, number)
        position, landed = plan.partitions[number].start, 0
        if target is not None:
            one = self._partition(topic, plan, journal, target, None, source, number)
            was_finished = one.recover()
            position, landed = one.position, one.landed
            if was_finished and not (self._request.goes_on and source.end > position):
                return None, landed, replace(one.result(was_finished=True), wrote=0)
        source.check(position)
        return survey(source, position, limits), landed, None

    def _limits(self, topic: TargetTopic) -> TargetLimits:
        name = self._request.settings.offset_header
        header_bytes = 0 if name is None else len(name.encode()) + 24
        compression = self._topics.compression(topic)
        return rules.limits_of(topic, self._clock.now_ms(), compression, header_bytes=header_bytes)

    def _journal(self, topic: TargetTopic) -> Journal:
        identity = topic.topic_id or topic.cluster_id or "cluster"
        folder = journal_folder(self._journal_dir, self._log.topic, topic.name, identity)
        return Journal(self._journal_store, folder, self._retry)

    def translate(self, rows: Sequence[GroupOffset]) -> tuple[list[GroupOffset], list[GroupOffset]]:
        """Committed offsets in the target's, and rows about other topics; see `keyfold.restore.group_offsets`."""
        topic = self._topics.describe(self._request.target)
        journal = None if topic is None else self._journal(topic)
        plan = None if journal is None else journal.load_plan(row.partition for row in rows)
        if journal is None or plan is None:
            raise RestoreRefused(
                f"no restore into topic {self._request.target} has been started yet",
                hint=f"run `keyfold restore` with --to-topic {self._request.target} first: it keeps the new offsets",
            )
        return translate(rows, journal, plan.partitions, self._log.topic, self._request.target)

    # Plan

    def _new_plan(self, topic: TargetTopic, manifests: Mapping[int, Manifest]) -> RestorePlan:
        source = f"{self._log.store.url}/{self._log.topics_dir}/{self._log.topic}"
        target = f"{topic.cluster_id}/{topic.name}"
        partitions = {number: self._partition_plan(number, manifest) for number, manifest in manifests.items()}
        return RestorePlan(source, target, self._request.asked(), partitions)

    def _partition_plan(self, number: int, manifest: Manifest) -> PartitionPlan:
        selection = self._request.selection
        manifest, end = self._resolved(number, manifest)
        if not selection.is_whole and end is None:
            end = manifest.next_offset
        return PartitionPlan(anchor_of(manifest), manifest.log_start_offset, manifest.next_offset, end)

    def _resolved(self, number: int, manifest: Manifest) -> tuple[Manifest, int | None]:
        """The surveyed version, and the requested end if it is before the log's."""
        selection, place = self._request.selection, self._log.place(number)
        if selection.to_timestamp is None and selection.max_records is None:
            return manifest, selection.to_offset(number)
        while True:
            try:
                if selection.to_timestamp is not None:
                    return manifest, offset_for_time(self._log.store, place, manifest, selection.to_timestamp)
                assert selection.max_records is not None
                return manifest, self._end_of_first(number, manifest, selection.max_records)
            except ObjectNotFound as error:
                manifest = newer(place, lambda: self._log.manifest(number), error)

    def _end_of_first(self, number: int, manifest: Manifest, count: int) -> int | None:
        """The end, exclusive, of the first `count` wanted records; None if there are fewer."""
        start = manifest.log_start_offset
        plan = PartitionPlan(anchor_of(manifest), start, manifest.next_offset)
        if count == 0:
            return start
        source = RestoreSource(
            self._log.store, self._log.place(number), lambda: manifest, self._request.selection, plan
        )
        for part in source.parts(start):
            if count <= len(part.offsets):
                return int(part.offsets[count - 1]) + 1
            count -= len(part.offsets)
        return None

    def _require_same(self, plan: RestorePlan, journal: Journal) -> None:
        asked = self._request.asked()
        differing = sorted(key for key in {*asked, *plan.asked} if asked.get(key) != plan.asked.get(key))
        if differing:
            key = differing[0]
            raise RestoreRefused(
                f"the restore into {self._request.target} was started with {key}={plan.asked.get(key)!r}, but this run "
                f"has {asked.get(key)!r} (`{journal.url}plan.json`)",
                hint="use the options that the restore was started with, or restore into another topic",
            )

    def _source(self, plan: RestorePlan, number: int) -> RestoreSource:
        return RestoreSource(
            self._log.store,
            self._log.place(number),
            lambda: self._log.manifest(number),
            self._request.selection,
            plan.partitions[number],
            batch_bytes=self._request.settings.batch_bytes,
            limits=self._log.limits,
        )

    def _partition(self, topic: TargetTopic, plan: RestorePlan, journal: Journal, target: RestoreTarget,
                   lease: Lease | None, source: RestoreSource, number: int,
                   progress: Callable[[int, int], None] = lambda _, __: None) -> PartitionRestore:  # fmt: skip
        return PartitionRestore(
            number,
            source,
            target,
            journal,
            lease or Lease(self._journal_store, journal.folder + "lease.json", holder=self._holder, clock=self._clock,
                           random=self._random, lease_s=self._request.lease_s),
            self._request.settings if not rules.is_restamped(topic) else self._request.settings.restamping(),
            self._clock,
            self._pace,
            plan.partitions[number].start,
            partial(progress, number),
            self._request.goes_on,
            self._stopped.is_set,
        )  # fmt: skip

    # Run

    def run(self, outlook: RestorePreview, progress: Callable[[int, int], None] = lambda _, __: None) -> RestoreOutcome:
        """Do what `look` has found possible. `progress` is called with partition and records, by several threads.

        Raises `RestoreRefused` where there is an error among the hazards, `RestoreBusy`, `RestoreFenced`.
        """
        self._require_possible(outlook)
        outlook = self._with_topic(outlook)
        topic, journal = outlook.topic, self._journal(outlook.topic)
        todo = [survey.partition for survey in outlook.surveys]
        if not todo:
            return RestoreOutcome(outlook.finished, {})
        with self._lease(journal) as lease:
            plan = journal.create_plan(outlook.plan)
            self._require_same(plan, journal)
            largest = max(survey.largest_bytes for survey in outlook.surveys)
            target = self._topics.open(topic, send_s=lease.lease_s * SEND_SHARE, largest_bytes=largest)
            parts = [
                self._partition(topic, plan, journal, target, lease, self._source(plan, number), number, progress)
                for number in todo
            ]
            try:
                results, failures = self._run_all(parts)
            finally:
                if all(part.is_settled for part in parts):
                    lease.release()
        found = sorted((*outlook.finished, *results), key=lambda result: result.partition)
        return RestoreOutcome(tuple(found), failures)

    def _require_possible(self, outlook: RestorePreview) -> None:
        wrong = outlook.errors or (list(outlook.hazards) if self._request.strict else [])
        if wrong:
            raise RestoreRefused(wrong[0].what, hint=f"{wrong[0].to_do}; nothing was written")

    def _with_topic(self, outlook: RestorePreview) -> RestorePreview:
        """Create the topic if it is missing, and survey it again if it is not as expected."""
        if outlook.topic.exists:
            return outlook
        settings = rules.new_topic_settings([one.manifest for one in outlook.surveys], self._request.topic_config)
        topic = self._topics.create(
            outlook.topic.name, outlook.topic.partitions, settings, self._request.replication_factor
        )
        again = self._outlook(topic, self._manifests()[0], outlook.topic.partitions)
        self._require_possible(again)
        return again

    def _lease(self, journal: Journal) -> Lease:
        return Lease(
            self._journal_store,
            journal.folder + "lease.json",
            holder=self._holder,
            clock=self._clock,
            random=self._random,
            lease_s=self._request.lease_s,
            retry_timeout_s=self._request.settings.retry_timeout_s,
        )

    def _run_all(self, parts: Sequence[PartitionRestore]) -> tuple[list[RestoreResult], dict[int, KeyfoldError]]:
        results: list[RestoreResult] = []
        failures: dict[int, KeyfoldError] = {}
        with ThreadPoolExecutor(self._request.at_once, thread_name_prefix="keyfold-restore") as pool:
            futures = {pool.submit(part.run): part.partition for part in parts}
            try:
                for future in as_completed(futures):
                    try:
                        results.append(future.result())
                    except KeyfoldError as error:
                        failures[futures[future]] = error
                        if isinstance(error, RestoreFenced | RestoreBusy):
                            self.stop()
            except BaseException:
                self.stop()
                raise
        return results, failures
