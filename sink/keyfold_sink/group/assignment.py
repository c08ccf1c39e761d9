"""From "the group gave me this partition" to "I may write it".

    LOADING ──► CONFIRMING ──► CLAIMING ──► RUNNING
       ▲             │                         │
       └─────────────┴──── set back ◄──────────┘     fenced, offset moved, upload lost, position out of range

    loading      read the manifest, or create it; only reading, or a create that a log's existence refuses
    confirming   commit the manifest's `next_offset` to the group under a token, and wait for the answer. The
                 coordinator takes it only from a member of the current generation, so a process that was stopped and
                 has lost its partitions does not get past this point: it never fences the rightful owner
    claiming     take the sink's epoch, compare the source with the log, follow the topic's settings
    running      read from the last record of the log, which proves that it is still the same, and append what follows

From each of these a partition may come to FAILED, where it stays until the task is started anew or loses it.

Whoever stalls between confirming and claiming may still fence the owner once. The owner is set back, confirms again and
claims again; the other one fails to confirm. So the rightful owner always ends up with the epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final

from confluent_kafka import TopicPartition

from keyfold.backoff import Backoff
from keyfold.clock import Moment
from keyfold.errors import KeyfoldError, LogNotFound, ObjectNotFound, SourceError
from keyfold.log.manifest import UNSTAMPED, Gap, Manifest
from keyfold.log.names import Role, parse_name
from keyfold.log.partition_log import PartitionLog, Pinned, SinkSession
from keyfold.log.record import NO_LEADER_EPOCH
from keyfold_sink.kafka.source import (
    ASKED_REASON,
    SKIPPED,
    GapPolicy,
    Resumed,
    Source,
    SourceFacts,
    TopicGone,
    check_identity,
    check_offsets,
    resumed,
)
from keyfold_sink.status import UNKNOWN
from keyfold_sink.writing.batch import TopicPartitionKey
from keyfold_sink.writing.health import Health
from keyfold_sink.writing.lane import Lane
from keyfold_sink.writing.partition import PartitionWriter
from keyfold_sink.writing.sender import Retry

_TRUNCATION_LOOKS: Final = 3
# So many offsets behind the log's last record are read again for the sake of the proof that it is.
_READ_AGAIN_MAX: Final = 10_000
_SET_BACK_DELAYS: Final = Backoff(first_ms=200, cap_ms=30_000)


class Stage(Enum):
    """How far a partition has come."""

    LOADING = "loading"
    CONFIRMING = "confirming"
    CLAIMING = "claiming"
    RUNNING = "running"
    FAILED = "failed"


class PauseReason(Enum):
    """Who or what wants reading to pause."""

    ORDER = "somebody has ordered it"
    MEMORY = "buffer.memory is in use until the store has caught up"
    SCHEMAS = "a schema is being asked for"
    LETTERS = "Kafka does not take dead letters for the moment"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The manifest is known."""

    owner: Assigned
    pinned: Pinned


@dataclass(frozen=True, slots=True)
class Claimed:
    """The epoch is mine and the source is the one that the log continues."""

    owner: Assigned
    session: SinkSession
    start_offset: int
    end_offset: int
    resumed: Resumed | None
    start_leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class Stopped:
    """The partition's work ended with an error."""

    owner: Assigned
    error: BaseException


Report = Callable[[Loaded | Claimed | Stopped], None]


def set_back_s(set_backs: int, random: Random) -> float:
    """How long to wait before the next attempt after so many."""
    delays = _SET_BACK_DELAYS.delays_s(random)
    return 0.0 if set_backs == 0 else [next(delays) for _ in range(min(set_backs, 12))][-1]


@dataclass(eq=False, slots=True)
class Assigned:
    """A partition that the group gave to this task, in one attempt to write it; a set-back makes a new one.

    `failure` is what has ended the partition's work for good. `holds` are reasons not to read this partition now,
    `paused_s` the monotonic second since which the client has not fetched it. `resumed` is where reading was taken up,
    until a record has come by which to judge that.
    `eof_offset` is where a reader of committed records last came to the end, `waits_since` since when there is more
    behind it that cannot be read.
    """

    key: TopicPartitionKey
    lane: Lane
    retry: Retry
    log: PartitionLog
    health: Health
    set_backs: int = 0
    fences: int = 0
    load_at_s: float = 0.0
    is_loading: bool = False
    stage: Stage = Stage.LOADING
    pinned: Pinned | None = None
    token: str = ""
    confirm_at_s: float = 0.0
    writer: PartitionWriter | None = None
    resumed: Resumed | None = None
    log_end: int = 0
    last_offset: int = -1
    last_leader_epoch: int = NO_LEADER_EPOCH
    end_offset: int = 0
    is_fetched: bool = False
    has_read: bool = False
    committed_ms: int = UNKNOWN
    eof_offset: int = UNKNOWN
    waits_since: Moment | None = None
    failure: KeyfoldError | None = None
    failed_ms: int = UNKNOWN
    holds: set[PauseReason] = field(default_factory=set)
    paused_s: float | None = None
    place: TopicPartition = field(init=False)

    def __post_init__(self) -> None:
        self.place = TopicPartition(*self.key)  # made once: the report asks for watermarks by it

    @property
    def next_offset(self) -> int:
        """Where the log ends, as far as is known here."""
        if self.writer is not None:
            return self.writer.manifest.next_offset
        return self.pinned.manifest.next_offset if self.pinned is not None else 0


def _start(manifest: Manifest, facts: SourceFacts) -> tuple[int, int]:
    """Where to begin to read, and the leader epoch that reading before it ended with.

    At the log's last record, if Kafka may still have it: its leader epoch is a proof. What somebody asked to skip is
    not read again (it may be much, or what cannot be read), nor are many records that failed their check; nothing is
    known there of leader epochs.
    """
    last = manifest.segments[-1].last_offset if manifest.segments else manifest.next_offset
    is_long = manifest.next_offset - last > _READ_AGAIN_MAX
    for gap in manifest.gaps:
        # What has no record may follow it, and moves the end on: what was asked for still holds.
        is_last = gap.to_offset > last or gap.to_offset == manifest.next_offset
        if is_last and (gap.reason == ASKED_REASON or (is_long and gap.reason.startswith(SKIPPED))):
            return manifest.next_offset, NO_LEADER_EPOCH
    start = min(max(last, facts.earliest_offset), manifest.next_offset)
    return start, manifest.last_leader_epoch if start == last else NO_LEADER_EPOCH


def require_same_branch(owner: Assigned, offset: int, leader_epoch: int) -> None:
    """Raise `SourceError` where Kafka's record at an offset of the log is younger than the log's.

    Leader epochs ascend with offsets, and what a new leader writes over a truncated end has a higher one. The client
    could compare by itself, but does so only when a leader changes while it reads (seen with librdkafka 2.16).
    """
    if owner.last_leader_epoch >= 0 and leader_epoch > owner.last_leader_epoch:
        raise SourceError(
            *owner.key,
            f"the topic was truncated below the log's end at {owner.log_end} and has grown again: its record at "
            f"{offset} is of leader epoch {leader_epoch}, the log's last is of {owner.last_leader_epoch}",
            hint="nothing was written; find out what the brokers lost (an unclean leader election, a restored disk), "
            "then keep the old log and give the topic another topics.dir",
        )


@dataclass(frozen=True, slots=True)
class Claims:
    """The jobs that bring a partition from one stage to the next. They run on its lane."""

    source: Source
    gap_policy: GapPolicy
    random: Random
    report: Report
    gap_recorded: Callable[[], None] = lambda: None

    def load(self, owner: Assigned) -> None:
        """Read the manifest; where there is no log yet, begin one at the earliest offset that the source has."""
        pinned = owner.retry(lambda: self._load_or_create(owner))
        self.report(Loaded(owner, pinned))

    def claim(self, owner: Assigned) -> None:
        """Compare the source and take the epoch, on top of the manifest that was confirmed.

        Raises `SourceError`; `Fenced` when another sink claimed in between; `CommitUnknown`: the membership must be
        confirmed again before the next try.
        """
        facts = self._facts(owner)
        assert owner.pinned is not None
        pinned = owner.pinned
        # What can be known before is checked before: a task that must fail leaves the log as it was.
        check_identity(pinned.manifest, topic_id=facts.topic_id, cluster_id=facts.cluster_id)
        gap = self._compare(owner, pinned, facts)
        last_appended_ms = self._last_appended_ms(owner, pinned)
        session = owner.log.claim_sink(pinned)
        settings = facts.settings or session.manifest.settings
        owner.retry(lambda: session.follow(settings, topic_id=facts.topic_id, cluster_id=facts.cluster_id))
        if gap is not None and session.manifest.next_offset == gap.from_offset:
            self._skip(owner, session, gap)
        at = resumed(session.manifest, last_appended_ms, session.pinned.seen_ms, settings)
        start_offset, leader_epoch = _start(session.manifest, facts)
        self.report(Claimed(owner, session, start_offset, facts.end_offset, at, leader_epoch))

    def require_topic(self, owner: Assigned) -> None:
        """Raise `SourceError` where the topic is gone."""
        self._facts(owner)

    def _load_or_create(self, owner: Assigned) -> Pinned:
        try:
            return owner.log.load()
        except LogNotFound:
            facts = self._facts(owner)
            return owner.log.create(
                topic_id=facts.topic_id,
                cluster_id=facts.cluster_id,
                start_offset=facts.earliest_offset,
                settings=facts.settings,
            )

    def _facts(self, owner: Assigned) -> SourceFacts:
        topic, partition = owner.key
        try:
            return owner.retry.believing(TopicGone, lambda: self.source.facts(topic, partition))
        except TopicGone as error:
            raise SourceError(
                topic, partition, "the topic does not exist any more", hint="what was read of it is in the log"
            ) from error

    def _compare(self, owner: Assigned, pinned: Pinned, facts: SourceFacts) -> Gap | None:
        """A new leader may show an old end for a moment, so a truncation is believed at the third look."""
        for looks_left in reversed(range(_TRUNCATION_LOOKS)):
            if facts.end_offset >= pinned.manifest.next_offset or not looks_left:
                break
            owner.lane.wait(1.0)
            facts = self._facts(owner)
        return check_offsets(pinned.manifest, facts, self.gap_policy)

    def _last_appended_ms(self, owner: Assigned, pinned: Pinned) -> int:
        """When the log's last segment was written, in store time.

        The stamp in the manifest comes from a later commit, perhaps a much later one; the object knows better, unless
        a compactor has written it anew. Then it is no older than what the sink knew of the time when it appended: a
        pass in the middle of an absence, or behind a claim that failed over one, must not make it shorter.
        """
        if not pinned.manifest.segments:
            return 0
        last = pinned.manifest.segments[-1]
        stamps = [last.appended_at_ms] if last.appended_at_ms != UNSTAMPED else []
        name = parse_name(last.name)
        if name is not None and name.role is Role.SINK:
            key = owner.log.place.key(last.name)
            with contextlib.suppress(ObjectNotFound):  # replaced and collected since the manifest was read
                stamps.append(owner.retry(lambda: owner.log.store.head(key)).last_modified_ms)
        elif pinned.manifest.sink.append_seen_ms:
            stamps.append(pinned.manifest.sink.append_seen_ms)
        return min(stamps, default=pinned.seen_ms)

    def _skip(self, owner: Assigned, session: SinkSession, gap: Gap) -> None:
        def skip() -> None:
            if session.refresh().next_offset == gap.from_offset:
                session.advance(gap.to_offset, gaps=(gap,))

        owner.retry(skip)
        self.gap_recorded()
