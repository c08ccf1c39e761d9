"""The stages of a partition, from its assignment by the group until this task may write its log.

    LOADING ──► CONFIRMING ──► CLAIMING ──► RUNNING
       ▲             │                         │
       └─────────────┴──── reset ◄─────────────┘     fenced, offset moved, upload lost, position out of range

    loading      read the manifest, or create it; the create is refused if a log exists
    confirming   commit the manifest's `next_offset` to the group under a token, and wait for the answer. The
                 coordinator accepts it only from a member of the current generation. So a process that was suspended
                 and has lost its partitions does not pass this stage, and never fences the rightful owner
    claiming     take the sink's epoch, compare the source with the log, follow the topic's settings
    running      read from the last record of the log, which proves that the topic is the same, and append what follows

From each stage a partition may become FAILED. It stays FAILED until the task is restarted or loses the partition.

A task that stalls between confirming and claiming may still fence the owner once. The owner's partition is reset,
confirms and claims again; the other task fails to confirm. So the rightful owner always gets the epoch in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final

from confluent_kafka import TopicPartition

from keyfold.errors import KeyfoldError, LogNotFound, ObjectNotFound, SourceError
from keyfold.log.manifest import UNSTAMPED, Gap, Manifest
from keyfold.log.names import Role, parse_name
from keyfold.log.partition_log import PartitionLog, Pinned, SinkSession
from keyfold.log.record import NO_LEADER_EPOCH
from keyfold.runtime.clock import Moment
from keyfold.runtime.retry import Backoff
from keyfold_sink.config.options import GapPolicy
from keyfold_sink.kafka.source import (
    ASKED_REASON,
    SKIPPED,
    Resumed,
    SourceFacts,
    TopicGone,
    TopicSource,
    check_identity,
    check_offsets,
    resumed,
)
from keyfold_sink.status import UNKNOWN
from keyfold_sink.topic_partition import TopicPartitionKey
from keyfold_sink.write.partition import PartitionWriter
from keyfold_sink.write.partition_health import PartitionHealth
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue

_TRUNCATION_LOOKS: Final = 3
# At most this number of offsets after the log's last record are read again, to prove with that record that the topic is
# the same.
_READ_AGAIN_MAX: Final = 10_000
_RESET_DELAYS: Final = Backoff(first_ms=200, cap_ms=30_000)


class PartitionStage(Enum):
    """The stages in the module's diagram."""

    LOADING = "loading"
    CONFIRMING = "confirming"
    CLAIMING = "claiming"
    RUNNING = "running"
    FAILED = "failed"


class PauseReason(Enum):
    """Why reading is paused. The names are values of the label `reason` in a metric."""

    REQUEST = "paused on request"
    MEMORY = "buffer.memory is full until the store catches up"
    SCHEMAS = "waiting for a schema from the Schema Registry"
    LETTERS = "Kafka does not accept dead letters at present"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The manifest is known."""

    owner: AssignedPartition
    pinned: Pinned


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim succeeded: this task has the epoch, and the source is the topic that the log continues."""

    owner: AssignedPartition
    session: SinkSession
    start_offset: int
    end_offset: int
    resumed: Resumed | None
    start_leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class PartitionStopped:
    """The partition's work ended with an error."""

    owner: AssignedPartition
    error: BaseException


Report = Callable[[Loaded | Claimed | PartitionStopped], None]


def reset_delay_s(resets: int, random: Random) -> float:
    """Return the delay before the next attempt after this number of resets."""
    delays = _RESET_DELAYS.delays_s(random)
    return 0.0 if resets == 0 else [next(delays) for _ in range(min(resets, 12))][-1]


@dataclass(eq=False, slots=True)
class AssignedPartition:
    """A partition assigned to this task, for one attempt to write it; a reset makes a new object.

    `failure` is the error that ended the partition's work for good. `holds` are reasons not to read this partition now,
    `paused_s` the monotonic second since which the client has not fetched it. `resumed` is where reading resumed, until
    a record has arrived to check it. `eof_offset` is where a reader of committed records last reached the end,
    `waits_since` since when records after it cannot be read.
    """

    key: TopicPartitionKey
    queue: SerialQueue
    retry: QueueRetry
    log: PartitionLog
    health: PartitionHealth
    resets: int = 0
    fences: int = 0
    load_at_s: float = 0.0
    is_loading: bool = False
    stage: PartitionStage = PartitionStage.LOADING
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
        self.place = TopicPartition(*self.key)  # made once, because each report requests watermarks with it

    @property
    def next_offset(self) -> int:
        """The last known end of the log."""
        if self.writer is not None:
            return self.writer.manifest.next_offset
        return self.pinned.manifest.next_offset if self.pinned is not None else 0


def _start(manifest: Manifest, facts: SourceFacts) -> tuple[int, int]:
    """Return the offset to begin reading at, and the leader epoch before it.

    Reading begins at the log's last record if Kafka may still have it, because its leader epoch proves that the topic
    is the same. Offsets skipped on request are not read again, as they may be many or unreadable. Neither are many
    records that failed their validation. Their leader epochs are unknown.
    """
    last = manifest.segments[-1].last_offset if manifest.segments else manifest.next_offset
    is_long = manifest.next_offset - last > _READ_AGAIN_MAX
    for gap in manifest.gaps:
        # Offsets without records may follow and move the end, and the skip still applies.
        is_last = gap.to_offset > last or gap.to_offset == manifest.next_offset
        if is_last and (gap.reason == ASKED_REASON or (is_long and gap.reason.startswith(SKIPPED))):
            return manifest.next_offset, NO_LEADER_EPOCH
    start = min(max(last, facts.earliest_offset), manifest.next_offset)
    return start, manifest.last_leader_epoch if start == last else NO_LEADER_EPOCH


def require_same_branch(owner: AssignedPartition, offset: int, leader_epoch: int) -> None:
    """Raise `SourceError` if Kafka's record at an offset of the log is newer than the log's.

    Leader epochs ascend with offsets, and records that a new leader writes after a truncation have a higher epoch. The
    client compares epochs only if a leader changes while it reads (seen with librdkafka 2.16).
    """
    if owner.last_leader_epoch >= 0 and leader_epoch > owner.last_leader_epoch:
        raise SourceError(
            *owner.key,
            f"the topic was truncated below the log's end at {owner.log_end} and has grown again: its record at "
            f"{offset} has leader epoch {leader_epoch}, the log's last record has {owner.last_leader_epoch}",
            hint="no record was written; find out what the brokers lost (an unclean leader election, a restored disk), "
            "then keep the old log, and set another `topics.dir` for the topic",
        )


@dataclass(frozen=True, slots=True)
class Claims:
    """The jobs that bring a partition from one stage to the next. They run on its serial queue."""

    source: TopicSource
    gap_policy: GapPolicy
    random: Random
    report: Report
    gap_recorded: Callable[[], None] = lambda: None

    def load(self, owner: AssignedPartition) -> None:
        """Read the manifest. If there is no log yet, create one at the source's earliest offset."""
        pinned = owner.retry.repeat(lambda: self._load_or_create(owner))
        self.report(Loaded(owner, pinned))

    def claim(self, owner: AssignedPartition) -> None:
        """Compare the source with the log, and take the epoch in the manifest that was confirmed.

        Raise `SourceError`, `Fenced` if another sink claimed in between, or `CommitUnknown`, after which the membership
        must be confirmed again.
        """
        facts = self._facts(owner)
        assert owner.pinned is not None
        pinned = owner.pinned
        # Checks that need no epoch come first: a task that must fail leaves the log unchanged.
        check_identity(pinned.manifest, topic_id=facts.topic_id, cluster_id=facts.cluster_id)
        gap = self._compare(owner, pinned, facts)
        last_appended_ms = self._last_appended_ms(owner, pinned)
        session = owner.log.claim_sink(pinned)
        settings = facts.settings or session.manifest.settings
        owner.retry.repeat(lambda: session.follow(settings, topic_id=facts.topic_id, cluster_id=facts.cluster_id))
        if gap is not None and session.manifest.next_offset == gap.from_offset:
            self._skip(owner, session, gap)
        at = resumed(session.manifest, last_appended_ms, session.pinned.seen_ms, settings)
        start_offset, leader_epoch = _start(session.manifest, facts)
        self.report(Claimed(owner, session, start_offset, facts.end_offset, at, leader_epoch))

    def require_topic(self, owner: AssignedPartition) -> None:
        """Raise `SourceError` if the topic does not exist."""
        self._facts(owner)

    def _load_or_create(self, owner: AssignedPartition) -> Pinned:
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

    def _facts(self, owner: AssignedPartition) -> SourceFacts:
        topic, partition = owner.key
        try:
            return owner.retry.repeat_after(TopicGone, lambda: self.source.facts(topic, partition))
        except TopicGone as error:
            raise SourceError(
                topic, partition, "the topic no longer exists", hint="all records that were read from it are in the log"
            ) from error

    def _compare(self, owner: AssignedPartition, pinned: Pinned, facts: SourceFacts) -> Gap | None:
        """Compare offsets. A truncation must be seen three times: a new leader may report an old end for a moment."""
        for looks_left in reversed(range(_TRUNCATION_LOOKS)):
            if facts.end_offset >= pinned.manifest.next_offset or not looks_left:
                break
            owner.queue.wait(1.0)
            facts = self._facts(owner)
        return check_offsets(pinned.manifest, facts, self.gap_policy)

    def _last_appended_ms(self, owner: AssignedPartition, pinned: Pinned) -> int:
        """Return when the log's last segment was written, in store time.

        The time in the manifest is that of a later commit, perhaps a much later one. The object's own time is more
        precise, unless a compactor has rewritten the segment. Then the result is the time that the sink knew when it
        appended, so that a compaction pass during an absence does not make the absence look shorter.
        """
        if not pinned.manifest.segments:
            return 0
        last = pinned.manifest.segments[-1]
        stamps = [last.appended_at_ms] if last.appended_at_ms != UNSTAMPED else []
        name = parse_name(last.name)
        if name is not None and name.role is Role.SINK:
            key = owner.log.place.key(last.name)
            with contextlib.suppress(ObjectNotFound):  # garbage collection may have deleted it since
                stamps.append(owner.retry.repeat(lambda: owner.log.store.head(key)).last_modified_ms)
        elif pinned.manifest.sink.append_seen_ms:
            stamps.append(pinned.manifest.sink.append_seen_ms)
        return min(stamps, default=pinned.seen_ms)

    def _skip(self, owner: AssignedPartition, session: SinkSession, gap: Gap) -> None:
        def skip() -> None:
            if session.refresh().next_offset == gap.from_offset:
                session.advance(gap.to_offset, gaps=(gap,))

        owner.retry.repeat(skip)
        self.gap_recorded()
