"""Whether the Kafka topic is still the one that the log continues: pure.

A log and a topic can part in ways that a consumer does not notice. Each is found by comparing what the manifest says
with what the cluster says:

    another cluster id, another topic id     the topic is a different one, or was deleted and made anew
    end offset below `next_offset`           it was truncated
    earliest offset above `next_offset`      it lost records that the log does not have
    tombstones at risk                       it is compacted, and what is unread is older than `delete.retention.ms`:
                                             a tombstone may have gone unread, and a deleted key would live on

The first two are always an error. The last two are an error, or are recorded in the manifest's `gaps`, as
`source.gap.policy` says. Truncation that has grown past `next_offset` again shows in the leader epoch of the log's last
record (`keyfold_sink.group.assignment.require_same_branch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from keyfold.errors import KeyfoldError, SourceError
from keyfold.log.manifest import Gap, Manifest

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
"""How the reason of a gap begins whose records have failed their check; their cause follows."""
TOMBSTONES_REASON: Final = "tombstones may have been removed at the source before they were read"


class GapPolicy(Enum):
    """What to do about records that the source no longer has."""

    FAIL = "fail"
    RECORD = "record"


class SourceUnavailable(KeyfoldError):
    """Kafka gave no answer; asking again may help."""

    retriable = True


class SourceForbidden(KeyfoldError):
    """Kafka refuses to answer this client."""


class TopicForbidden(SourceForbidden):
    """Kafka refuses this client one topic."""


class TopicGone(KeyfoldError):
    """Kafka knows no such topic."""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What the cluster says about one partition. Offsets are those of `ListOffsets`; the end is the high watermark."""

    topic_id: str
    cluster_id: str
    earliest_offset: int
    end_offset: int
    settings: Mapping[str, str]


class Source(Protocol):
    """The cluster, asked from other threads than the consumer's. All raise `SourceUnavailable` and `TopicGone`."""

    def facts(self, topic: str, partition: int) -> SourceFacts:
        """Ids, offsets and followed settings; offsets are fresh."""

    def topic_id(self, topic: str) -> str:
        """The topic's id, at most a second old."""

    def settings(self, topic: str) -> Mapping[str, str]:
        """The followed settings, at most a minute old."""


def check_identity(manifest: Manifest, *, topic_id: str, cluster_id: str) -> None:
    """Raise `SourceError` when the log was written from another topic or cluster. An id that is unknown passes."""
    if cluster_id and manifest.cluster_id and manifest.cluster_id != cluster_id:
        raise SourceError(
            manifest.topic,
            manifest.partition,
            f"the log was written from cluster {manifest.cluster_id}, this is cluster {cluster_id}",
            hint="check bootstrap.servers; give the other cluster's topic its own topics.dir",
        )
    if topic_id and manifest.topic_id and manifest.topic_id != topic_id:
        raise SourceError(
            manifest.topic,
            manifest.partition,
            f"the topic was deleted and made anew: the log has topic id {manifest.topic_id}, Kafka has {topic_id}",
            hint="nothing was written; keep the old log where it is and give the new topic another topics.dir",
        )


def check_offsets(manifest: Manifest, facts: SourceFacts, policy: GapPolicy) -> Gap | None:
    """Compare `next_offset` with what the source has. Raises `SourceError`; a gap that may be recorded is returned."""
    wanted = manifest.next_offset
    if facts.end_offset < wanted:
        raise SourceError(
            manifest.topic,
            manifest.partition,
            f"the topic was truncated: it ends at offset {facts.end_offset}, the log already ends at {wanted}",
            hint="nothing was written; find out what the brokers lost (an unclean leader election, a restored disk), "
            "then keep the old log and give the topic another topics.dir",
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
        hint="set source.gap.policy=record to note the gap in the log and go on",
    )


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where reading was taken up again: the log's end, when its last segment was written, and now (store times).

    After a pause: the position, when the pause began, and now (local times).
    """

    topic: str
    partition: int
    next_offset: int
    last_appended_ms: int
    now_ms: int
    settings: Mapping[str, str]


def resumed(manifest: Manifest, last_appended_ms: int, now_ms: int, settings: Mapping[str, str]) -> Resumed | None:
    """The state to judge by, or None where there is nothing that a lost tombstone could leave alive."""
    if not manifest.segments:
        return None
    return Resumed(manifest.topic, manifest.partition, manifest.next_offset, last_appended_ms, now_ms, settings)


def tombstones_at_risk(at: Resumed, first_offset: int, first_timestamp: int) -> bool:
    """Whether a tombstone may have gone unread, judged by the first record that was read after taking up again.

    A tombstone goes `delete.retention.ms` after it was cleaned, never earlier. So nothing is at risk while the log was
    written to within that time, and nothing where no record follows. Afterwards a quiet topic is no reason to worry:
    its next record lies right at `next_offset` and is young. A hole, or an old record, means that the sink was away.
    """
    if not was_away(at):
        return False
    is_old = first_timestamp >= 0 and at.now_ms - first_timestamp > _retention_ms(at)
    return first_offset > at.next_offset or is_old


def was_away(at: Resumed) -> bool:
    """Whether that took longer than a tombstone stays at the source."""
    is_compacted = "compact" in at.settings.get("cleanup.policy", "")
    return is_compacted and at.now_ms - at.last_appended_ms > _retention_ms(at)


def _retention_ms(at: Resumed) -> int:
    return int(at.settings.get("delete.retention.ms", "86400000"))


def tombstone_gap(at: Resumed, first_offset: int, end_offset: int, policy: GapPolicy) -> Gap:
    """The gap to record for tombstones at risk. Raises `SourceError` where the policy says so."""
    gap = Gap(at.next_offset, max(first_offset, end_offset), TOMBSTONES_REASON)
    if policy is GapPolicy.RECORD:
        return gap
    away_ms = at.now_ms - at.last_appended_ms
    raise SourceError(
        at.topic,
        at.partition,
        f"the log has come no further than offset {at.next_offset} for {away_ms} ms, longer than the topic's "
        f"delete.retention.ms of {at.settings.get('delete.retention.ms', 'unknown')}, and the next record is at "
        f"{first_offset}: tombstones may have been removed unread, and keys that were deleted would stay",
        hint="set source.gap.policy=record to note this in the log and go on",
    )
