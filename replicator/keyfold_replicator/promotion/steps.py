"""Make a replica the source, and the old source its replica: the steps, in order, for each partition.

    switch-over, the source answers        fail-over, it does not (`is_forced`)
    1  bring the replica up to date        -
    2  check all partitions; a problem anywhere ends it here, before any role has changed
    3  turn the source's manifest into a   -
       replica's: one commit, after which
       neither sink nor compactor can
       write there
    4  the last round                      -
    5  claim the replica's epoch           5  the same
    6  promote, after a proof that the     6  promote
       source has nothing more

It may end anywhere, and the same call continues: it finds what was done. No process can write between 3 and 6. A
fail-over cannot know what the source appended after the replica's last round. If that source comes back, its writers
are not fenced. `Demotion` makes it a replica, and reports the records that only it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final, TypeVar

from keyfold.errors import (
    CommitUnknown,
    Fenced,
    FirstCopyUnfinished,
    IsReplica,
    KeyfoldError,
    LogNotFound,
    ManifestLost,
    ReplicaDiverged,
)
from keyfold.log.commit import Pinned
from keyfold.log.edits_replica import Following
from keyfold.log.edits_replica import demote as demote_edit
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.log.replica_log import ReplicaLog
from keyfold.runtime.clock import Clock
from keyfold_replicator.registry.replica_pair import LogDirectory

T = TypeVar("T")

AT_ONCE: Final = 8
_CLAIMS_MAX: Final = 5


class PromotionStep(StrEnum):
    """How far a partition is."""

    MISSING = "missing"  # the replica has received nothing yet: the first round will tell
    READY = "ready"
    FENCED = "fenced"  # the old source takes no writes any more
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PromotionOutcome:
    """One partition: how far it is, where its log continues, and the error if it cannot proceed.

    `next_offset` is the end of the replica's log. At `received_at_ms`, a time of the replica's store, the source had no
    more than that; -1 if the time is unknown.
    """

    topic: str
    partition: int
    step: PromotionStep
    next_offset: int = -1
    source_version: int = -1
    received_at_ms: int = -1
    log_id: str = ""
    error: str = ""
    hint: str = ""
    lost_from: int = 0
    lost_to: int = 0

    @property
    def is_fit(self) -> bool:
        """Whether nothing prevents the next step."""
        return self.step is not PromotionStep.FAILED


@dataclass(frozen=True, slots=True)
class PromotionContext:
    """Clock and randomness, and the names that the two sides have for each other.

    `name` is the replica's at the source; `old_name` will be that of the old source at the new one.
    """

    clock: Clock
    random: Random
    name: str = ""
    old_name: str = ""

    def another_random(self) -> Random:
        """Return a source of randomness for one thread."""
        return Random(self.random.getrandbits(64))


EVERYTHING: Final = ("", -1)
"""The key of an error that concerns all partitions."""

LastRound = Callable[[], "dict[tuple[str, int], str]"]
"""Copy everything that the source has once more; return errors by topic and partition, or under `EVERYTHING`."""


class SwitchOver:
    """The promotion while both sides answer: nothing is lost."""

    def __init__(
        self, source: LogDirectory, replica: LogDirectory, context: PromotionContext, last_round: LastRound
    ) -> None:
        self._source = source
        self._replica = replica
        self._context = context
        self._last_round = last_round

    def check(self, wanted: Iterable[tuple[str, int]]) -> list[PromotionOutcome]:
        """Check every partition, without changing anything."""
        return _each(self._check_one, wanted)

    def switch(self, checked: Sequence[PromotionOutcome]) -> list[PromotionOutcome]:
        """Promote. If one partition cannot be fenced, none is promoted; fenced ones stay so until the next call."""
        fenced = _each(self._fence, checked)
        if not all(found.is_fit for found in fenced):
            return fenced
        if all(found.step is PromotionStep.DONE for found in fenced):
            return fenced
        return _each(self._promote, with_errors(fenced, self._last_round()))

    def _check_one(self, wanted: tuple[str, int]) -> PromotionOutcome:
        source, replica = self._load_source(*wanted), self._replica_log(*wanted).load()
        if replica is None:
            return PromotionOutcome(*wanted, PromotionStep.MISSING)
        base = _outcome(wanted, replica.manifest)
        state = replica.manifest.replica
        if state is None:
            return self._found_promoted(base, source.manifest, replica.manifest)
        if source.manifest.log_id != state.source_log_id and source.manifest.ancestor(state.source_log_id) is None:
            raise ReplicaDiverged(
                *wanted,
                f"the replica follows the log {state.source_log_id}, but the one at {self._source.url} is "
                f"{source.manifest.log_id}",
            )
        if source.manifest.replica is None:
            return base
        if is_handed_over(source.manifest, self._replica.url):
            return replace(base, step=PromotionStep.FENCED)
        raise ReplicaDiverged(
            *wanted,
            f"the source is itself a replica, of {source.manifest.replica.source}",
            hint="promote the source first; this replica then follows it",
        )

    def _found_promoted(self, base: PromotionOutcome, source: Manifest, replica: Manifest) -> PromotionOutcome:
        """Handle a log that is no replica (any more): was it this source's, and does the source know it?"""
        wanted = base.topic, base.partition
        follows = source.replica is not None and source.log_id == replica.log_id
        if not follows and replica.ancestor(source.log_id) is None:
            raise _own_log(wanted, self._replica)
        if source.replica is None:
            raise ReplicaDiverged(
                *wanted,
                f"two logs accept writes: replica {self._replica.url} was promoted, and source {self._source.url} was "
                "not fenced",
                hint="stop the sink of the source, then see what the source alone has: "
                f"keyfold replica demote {self._source.url} --to-replica-of {self._replica.url} --dry-run",
            )
        return replace(base, step=PromotionStep.DONE)

    def _fence(self, found: PromotionOutcome) -> PromotionOutcome:
        if found.step is not PromotionStep.READY:
            return found
        place = self._source.place(found.topic, found.partition)
        replica = self._load_replica(found.topic, found.partition)
        log = self._log(self._source, place)
        for _ in range(_CLAIMS_MAX):
            try:
                log.demote(replica.manifest, name=self._context.old_name, source_url=self._replica.url)
            except IsReplica:
                break  # mine, whose answer was lost
            except CommitUnknown:
                continue
            break
        if not is_handed_over(log.load().manifest, self._replica.url):
            raise ReplicaDiverged(
                found.topic,
                found.partition,
                f"not promoted: its source {self._source.url} has just become a replica of another log",
                hint="another replica may have been promoted; let this one follow that log",
            )
        return replace(found, step=PromotionStep.FENCED)

    def _promote(self, found: PromotionOutcome) -> PromotionOutcome:
        if found.step in {PromotionStep.DONE, PromotionStep.FAILED}:
            return found
        log = self._replica_log(found.topic, found.partition)
        for tries_left in reversed(range(_CLAIMS_MAX)):
            try:
                before = self._load_source(found.topic, found.partition).manifest
                session = log.claim(before, name=self._context.name, source_url=self._source.url)
                source = self._load_source(found.topic, found.partition).manifest
                made = session.promote(source)
            except (Fenced, CommitUnknown):
                if not tries_left or self._check_one((found.topic, found.partition)).step is PromotionStep.DONE:
                    raise
                continue
            return replace(_outcome((found.topic, found.partition), made), step=PromotionStep.DONE, log_id=made.log_id)
        raise AssertionError

    def _load_source(self, topic: str, partition: int) -> Pinned:
        return self._log(self._source, self._source.place(topic, partition)).load()

    def _load_replica(self, topic: str, partition: int) -> Pinned:
        return _load_replica(self._replica_log(topic, partition), self._replica)

    def _log(self, side: LogDirectory, place: Place) -> PartitionLog:
        return PartitionLog(side.store, place, clock=self._context.clock, random=self._context.another_random())

    def _replica_log(self, topic: str, partition: int) -> ReplicaLog:
        return _replica_log(self._replica, topic, partition, self._context)


class FailOver:
    """The promotion while the source does not answer: the replica's state becomes the log."""

    def __init__(self, replica: LogDirectory, context: PromotionContext) -> None:
        self._replica = replica
        self._context = context

    def check(self, wanted: Iterable[tuple[str, int]]) -> list[PromotionOutcome]:
        """Check every partition, without changing anything."""
        return _each(self._check_one, wanted)

    def switch(self, checked: Sequence[PromotionOutcome]) -> list[PromotionOutcome]:
        """Promote. An incomplete first copy cannot become a log, and stays as it is."""
        return _each(self._promote, checked)

    def _check_one(self, wanted: tuple[str, int]) -> PromotionOutcome:
        try:
            manifest = _load_replica(_replica_log(self._replica, *wanted, self._context), self._replica).manifest
        except FirstCopyUnfinished as error:
            place = f"{self._replica.url} {wanted[0]} --partition {wanted[1]}"
            hint = f"if the source is lost, `keyfold log repair {place} --from segments` makes a log of what was copied"
            return PromotionOutcome(*wanted, PromotionStep.MISSING, error=error.message, hint=hint)
        if manifest.replica is None and not manifest.lineage:
            raise _own_log(wanted, self._replica)
        return replace(
            _outcome(wanted, manifest), step=PromotionStep.READY if manifest.is_replica else PromotionStep.DONE
        )

    def _promote(self, found: PromotionOutcome) -> PromotionOutcome:
        if found.step in {PromotionStep.DONE, PromotionStep.MISSING}:
            return found
        wanted = found.topic, found.partition
        log = _replica_log(self._replica, *wanted, self._context)
        for tries_left in reversed(range(_CLAIMS_MAX)):
            manifest = _load_replica(log, self._replica).manifest
            state = manifest.replica
            if state is None:
                return replace(_outcome(wanted, manifest), step=PromotionStep.DONE, log_id=manifest.log_id)
            try:
                made = log.claim(manifest, name=state.name, source_url=state.source).promote()
            except (Fenced, CommitUnknown):
                if not tries_left:
                    raise
                continue
            return replace(_outcome(wanted, made), step=PromotionStep.DONE, log_id=made.log_id)
        raise AssertionError


class Demotion:
    """Make an old source, whose replica was promoted without it, the replica of that log."""

    def __init__(self, old: LogDirectory, new: LogDirectory, context: PromotionContext, *, discard: bool) -> None:
        self._old = old
        self._new = new
        self._context = context
        self._discard = discard

    def check(self, wanted: Iterable[tuple[str, int]]) -> list[PromotionOutcome]:
        """Check every partition and what would be lost, without changing anything."""
        return _each(self._check_one, wanted)

    def switch(self, checked: Sequence[PromotionOutcome]) -> list[PromotionOutcome]:
        """Demote."""
        return _each(self._demote, checked)

    def _check_one(self, wanted: tuple[str, int]) -> PromotionOutcome:
        old, new = self._load(self._old, wanted), self._load(self._new, wanted)
        base = _outcome(wanted, old.manifest)
        if old.manifest.replica is not None:
            followed = old.manifest.replica.source_log_id
            if followed == new.manifest.log_id or new.manifest.ancestor(followed) is not None:
                return replace(base, step=PromotionStep.DONE)
        if new.manifest.is_replica:
            raise ReplicaDiverged(
                *wanted,
                f"the log at {self._new.url} is itself a replica",
                hint="promote it first: `keyfold replica promote`",
            )
        # The edit knows all that is in the way; nothing is written by asking it.
        demote_edit(new.manifest, self._following, discard=self._discard)(old.manifest, old.seen_ms)
        return base

    def _demote(self, found: PromotionOutcome) -> PromotionOutcome:
        if found.step is PromotionStep.DONE:
            return found
        wanted = found.topic, found.partition
        new = self._load(self._new, wanted).manifest
        log = self._log(self._old, wanted)
        for tries_left in reversed(range(_CLAIMS_MAX)):
            try:
                log.demote(new, name=self._following.name, source_url=self._following.source, discard=self._discard)
            except (CommitUnknown, IsReplica):
                if self._check_one(wanted).step is PromotionStep.DONE:
                    break
                if not tries_left:
                    raise
                continue
            break
        return replace(_outcome(wanted, log.load().manifest), step=PromotionStep.DONE)

    @property
    def _following(self) -> Following:
        return Following(self._context.old_name, self._new.url)

    def _load(self, side: LogDirectory, wanted: tuple[str, int]) -> Pinned:
        return self._log(side, wanted).load()

    def _log(self, side: LogDirectory, wanted: tuple[str, int]) -> PartitionLog:
        place = side.place(*wanted)
        return PartitionLog(side.store, place, clock=self._context.clock, random=self._context.another_random())


def is_handed_over(manifest: Manifest, replica_url: str) -> bool:
    """Whether a log's writers were fenced so that its replica at this URL can be promoted.

    The URL distinguishes it from a source that is a replica of a third log.
    """
    state = manifest.replica
    return state is not None and state.source_log_id == manifest.log_id and state.source == replica_url


def with_errors(outcomes: Iterable[PromotionOutcome], errors: Mapping[tuple[str, int], str]) -> list[PromotionOutcome]:
    """Mark partitions that the last round did not bring up to date as failed; finished ones stay."""
    everywhere = errors.get(EVERYTHING, "")

    def judged(found: PromotionOutcome) -> PromotionOutcome:
        error = everywhere or errors.get((found.topic, found.partition), "")
        if found.step is PromotionStep.MISSING:
            error = error or "the replica has received nothing"
        if not error or found.step is PromotionStep.DONE:
            return found
        hint = _AGAIN if found.step is PromotionStep.FENCED else "nothing was changed"
        return replace(found, step=PromotionStep.FAILED, error=error, hint=hint)

    return [judged(found) for found in outcomes]


_AGAIN: Final = "the source no longer accepts writes; run the same command again once the cause is gone"


def _each(work: Callable[[T], PromotionOutcome], items: Iterable[T]) -> list[PromotionOutcome]:
    """Apply `work` to all items, some at once; an exception becomes the item's outcome."""

    def tried(item: T) -> PromotionOutcome:
        try:
            return work(item)
        except KeyfoldError as error:
            return _failed(item, error)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="keyfold-promotion") as pool:
        return list(pool.map(tried, items))


def _failed(item: object, error: KeyfoldError) -> PromotionOutcome:
    base = item if isinstance(item, PromotionOutcome) else None
    if base is None:
        assert isinstance(item, tuple)
        base = PromotionOutcome(item[0], item[1], PromotionStep.FAILED)
    found = replace(base, step=PromotionStep.FAILED, error=error.message, hint=error.hint or "")
    if isinstance(error, ReplicaDiverged):
        found = replace(found, lost_from=error.lost_from, lost_to=error.lost_to)
    return found


def _outcome(wanted: tuple[str, int], manifest: Manifest) -> PromotionOutcome:
    state = manifest.replica
    return PromotionOutcome(
        *wanted,
        PromotionStep.READY,
        next_offset=manifest.next_offset,
        source_version=-1 if state is None else state.source_version,
        received_at_ms=-1 if state is None else state.received_at_ms,
        log_id=manifest.log_id,
    )


def _replica_log(side: LogDirectory, topic: str, partition: int, context: PromotionContext) -> ReplicaLog:
    place = side.place(topic, partition)
    return ReplicaLog(side.store, place, clock=context.clock, random=context.another_random())


def _load_replica(log: ReplicaLog, side: LogDirectory) -> Pinned:
    pinned = log.load()
    if pinned is not None:
        return pinned
    try:
        return PartitionLog(log.store, log.place, clock=log.retry.clock, random=log.retry.random).load()
    except (LogNotFound, ManifestLost):
        raise LogNotFound(
            log.place.topic,
            log.place.partition,
            f"the replica at {side.url} has received nothing",
            hint="replicate the partition first, or remove its topic from the registration",
        ) from None


def _own_log(wanted: tuple[str, int], side: LogDirectory) -> ReplicaDiverged:
    return ReplicaDiverged(*wanted, f"the log at {side.url} is not a replica and never was")
