"""Check whether the Kafka topic is still the one that the log continues; pure.

A log and its topic can diverge in ways that a consumer does not notice. A comparison of the manifest with the cluster
finds each of them:

    another cluster id, another topic id     the topic is a different one, or was deleted and created again
    end offset below `next_offset`           the topic was truncated
    earliest offset above `next_offset`      the topic lost records that the log does not have
    tombstones at risk                       the topic is compacted, and unread records are older than
                                             `delete.retention.ms`: a tombstone may have been removed unread, and a
                                             deleted key would stay

The first two are always errors. The last two are errors or are recorded in the manifest's `gaps`, according to
`source.gap.policy`. If the topic was truncated and has grown past `next_offset` again, the leader epoch of the log's
last record shows it (`keyfold_sink.group.assignment.require_same_branch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from keyfold.errors import KeyfoldError, SourceError
from keyfold.log.manifest import Gap, Manifest
from keyfold_sink.config.options import GapPolicy

FOLLOWED_SETTINGS: Final = (
    "cleanup.policy",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
    "min.cleanable.dirty.ratio",
)
LOST_REASON: Final = "lost at the source before it was read"
ASKED_REASON: Final = "skipped because it was asked for: the sink's offset was altered"
SKIPPED: Final = "skipped: "
"""Prefix of a gap's reason if its records have failed their validation; the cause follows."""
TOMBSTONES_REASON: Final = "tombstones may have been removed at the source before they were read"


class SourceUnavailable(KeyfoldError):
    """Kafka did not answer; a retry may succeed."""

    retriable = True


class SourceForbidden(KeyfoldError):
    """Kafka refuses this client's requests."""


class TopicForbidden(SourceForbidden):
    """Kafka refuses this client access to a topic."""


class TopicGone(KeyfoldError):
    """The topic does not exist in Kafka."""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Ids and offsets of one partition. Offsets are those of `ListOffsets`; the end is the high watermark."""

    topic_id: str
    cluster_id: str
    earliest_offset: int
    end_offset: int
    settings: Mapping[str, str]


class TopicSource(Protocol):
    """Requests to the cluster from threads other than the consumer's. All raise `SourceUnavailable` and `TopicGone`."""

    def facts(self, topic: str, partition: int) -> SourceFacts:
        """Return ids, current offsets and followed settings."""

    def topic_id(self, topic: str) -> str:
        """Return the topic's id, at most a second old."""

    def settings(self, topic: str) -> Mapping[str, str]:
        """Return the followed settings, at most a minute old."""


def check_identity(manifest: Manifest, *, topic_id: str, cluster_id: str) -> None:
    """Raise `SourceError` if the log was written from another topic or cluster. Unknown ids are not compared."""
    if cluster_id and manifest.cluster_id and manifest.cluster_id != cluster_id:
        raise SourceError(
            manifest.topic,
            manifest.partition,
            f"the log was written from cluster {manifest.cluster_id}, this is cluster {cluster_id}",
            hint="check bootstrap.servers; set another `topics.dir` for the other cluster's topic",
        )
    if topic_id and manifest.topic_id and manifest.topic_id != topic_id:
        raise SourceError(
            manifest.topic,
            manifest.partition,
            f"the topic was deleted and created again: the log has topic id {manifest.topic_id}, Kafka has {topic_id}",
            hint="no record was written; keep the old log where it is, and set another `topics.dir` for the new topic",
        )


def check_offsets(manifest: Manifest, facts: SourceFacts, policy: GapPolicy) -> Gap | None:
    """Compare `next_offset` with the source's offsets. Return a gap that may be recorded, or raise `SourceError`."""
    wanted = manifest.next_offset
    if facts.end_offset < wanted:
        raise SourceError(
            manifest.topic,
            manifest.partition,
            f"the topic was truncated: it ends at offset {facts.end_offset}, the log ends at offset {wanted}",
            hint="no record was written; find out what the brokers lost (an unclean leader election, a restored disk), "
            "then keep the old log, and set another `topics.dir` for the topic",
        )
    if facts.earliest_offset <= wanted:
        return None
    gap = Gap(wanted, facts.earliest_offset, LOST_REASON)
    if policy is GapPolicy.RECORD:
        return gap
    raise SourceError(
        manifest.topic,
        manifest.partition,
        f"records were lost at the source: the log ends at offset {wanted}, the topic now begins at "
        f"{facts.earliest_offset}",
        hint="set source.gap.policy=record to record the gap in the log and continue",
    )


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where reading resumed: the log's end, when its last segment was written, and now (store times).

    After a pause: the position, when the pause began, and now (local times).
    """

    topic: str
    partition: int
    next_offset: int
    last_appended_ms: int
    now_ms: int
    settings: Mapping[str, str]


def resumed(manifest: Manifest, last_appended_ms: int, now_ms: int, settings: Mapping[str, str]) -> Resumed | None:
    """Return the state for the check, None if the log has no record that a lost tombstone could concern."""
    if not manifest.segments:
        return None
    return Resumed(manifest.topic, manifest.partition, manifest.next_offset, last_appended_ms, now_ms, settings)


def tombstones_at_risk(at: Resumed, first_offset: int, first_timestamp: int) -> bool:
    """Whether a tombstone may have been removed unread, by the first record that was read after reading resumed.

    Kafka removes a tombstone `delete.retention.ms` after it was cleaned, never earlier. So no tombstone is at risk if
    the log was written within that time, or if no record follows. After that time, an idle topic is no risk either: its
    next record is at `next_offset` and is recent. A gap or an old record means that the sink was away.
    """
    if not was_away(at):
        return False
    is_old = first_timestamp >= 0 and at.now_ms - first_timestamp > _retention_ms(at)
    return first_offset > at.next_offset or is_old


def was_away(at: Resumed) -> bool:
    """Whether the absence was longer than a tombstone stays at the source."""
    is_compacted = "compact" in at.settings.get("cleanup.policy", "")
    return is_compacted and at.now_ms - at.last_appended_ms > _retention_ms(at)


def _retention_ms(at: Resumed) -> int:
    return int(at.settings.get("delete.retention.ms", "86400000"))


def tombstone_gap(at: Resumed, first_offset: int, end_offset: int, policy: GapPolicy) -> Gap:
    """Return the gap to record for tombstones at risk. Raise `SourceError` if the policy requires it."""
    gap = Gap(at.next_offset, max(first_offset, end_offset), TOMBSTONES_REASON)
    if policy is GapPolicy.RECORD:
        return gap
    away_ms = at.now_ms - at.last_appended_ms
    raise SourceError(
        at.topic,
        at.partition,
        f"the log has not grown beyond offset {at.next_offset} for {away_ms} ms, longer than the topic's "
        f"delete.retention.ms of {at.settings.get('delete.retention.ms', 'unknown')}, and the next record is at offset "
        f"{first_offset}: tombstones may have been removed unread, and deleted keys would stay in the log",
        hint="set source.gap.policy=record to record this in the log and continue",
    )
