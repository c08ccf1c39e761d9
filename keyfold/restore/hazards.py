"""Problems of a restore, found before the first record is written. Pure.

An error is something that Kafka would reject during the restore, or that would change the log; then nothing is written.
A warning is something that Kafka would do to accepted records, such as deleting them or replacing their timestamps, or
data that the log itself lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from keyfold.log.gaps import totals
from keyfold.log.manifest import Manifest
from keyfold.restore.selection import RestoreSelection
from keyfold.restore.source_survey import RestoreSurvey, TargetLimits
from keyfold.restore.target import TargetTopic
from keyfold.runtime.clock import NEVER_MS
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import count_text

FOLLOWED: Final = (
    "cleanup.policy",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
    "min.cleanable.dirty.ratio",
)
LOG_APPEND_TIME: Final = "LogAppendTime"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Hazard:
    """One problem. `partition` is None if it concerns the whole topic."""

    kind: str
    what: str
    to_do: str
    is_error: bool = False
    partition: int | None = None
    offset: int | None = None

    def to_json(self) -> JsonObject:
        """For `--json`."""
        return {
            "kind": self.kind, "error": self.is_error, "partition": self.partition, "offset": self.offset,
            "what": self.what, "to_do": self.to_do,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.what}; {self.to_do}"


def limits_of(topic: TargetTopic, now_ms: int, compression: str, *, header_bytes: int = 0) -> TargetLimits:
    """What the target's settings ask of records. `now_ms` is local time: these limits are the broker's own clock's."""
    restamps = is_restamped(topic)
    after = _number(topic, "message.timestamp.after.max.ms", NEVER_MS)
    before = _number(topic, "message.timestamp.before.max.ms", NEVER_MS)
    retention_ms = _number(topic, "retention.ms", -1)
    is_deleted = "delete" in topic.settings.get("cleanup.policy", "delete")
    return TargetLimits(
        max_message_bytes=_number(topic, "max.message.bytes", 0) or None,
        oldest_kept_ms=now_ms - retention_ms if is_deleted and retention_ms >= 0 and not restamps else None,
        earliest_ms=None if restamps or before >= now_ms else now_ms - before,
        latest_ms=None if restamps or after >= NEVER_MS - now_ms else now_ms + after,
        compression=compression,
        header_bytes=header_bytes,
    )


def is_restamped(topic: TargetTopic) -> bool:
    """Whether the target puts its own timestamps on records."""
    return topic.settings.get("message.timestamp.type") == LOG_APPEND_TIME


def partitions_hazard(topic: TargetTopic, wanted: int) -> Iterator[Hazard]:
    """The number of partitions must be the log's: keys would go elsewhere, and offsets would mean something else."""
    if topic.partitions != wanted:
        yield Hazard(
            "partitions",
            f"topic {topic.name} has {topic.partitions} partitions, but the log has {wanted}",
            f"restore into a topic with {wanted} partitions; if the log's last partitions were never written, set "
            "the number of partitions with --partitions",
            is_error=True,
        )


def added_hazards(source: str, numbers: Sequence[int]) -> Iterator[Hazard]:
    """Partitions that are not in the restore's plan, and that this run leaves out."""
    for number in numbers:
        yield Hazard(
            "added",
            f"partition {number} of the log of {source} did not exist or could not be read when this restore was "
            "started, and is left out",
            "add --continue to restore this partition too",
            partition=number,
        )


def hazards(
    topic: TargetTopic, surveys: Sequence[RestoreSurvey], selection: RestoreSelection, limits: TargetLimits
) -> Iterator[Hazard]:
    """Everything that would go wrong: errors first within each partition."""
    yield from _topic_hazards(topic, surveys)
    for survey in surveys:
        yield from _refused(topic, survey, limits)
        yield from _changed(topic, survey)
        yield from _incomplete(survey, selection)


def _topic_hazards(topic: TargetTopic, surveys: Sequence[RestoreSurvey]) -> Iterator[Hazard]:
    least = _number(topic, "min.insync.replicas", 1)
    if 0 <= topic.in_sync_least < least:
        yield Hazard(
            "replicas",
            f"a partition of topic {topic.name} has {topic.in_sync_least} in-sync replicas, but min.insync.replicas is "
            f"{least}: Kafka accepts no record with acks=all",
            "start the missing brokers first",
            is_error=True,
        )
    if is_restamped(topic) and any(survey.records for survey in surveys):
        yield Hazard(
            "restamped",
            f"topic {topic.name} has message.timestamp.type=LogAppendTime: every record gets the time of the restore",
            "set message.timestamp.type=CreateTime during the restore, and set it back afterwards",
        )
    followed = followed_settings([survey.manifest for survey in surveys])
    for key, value in followed.items():
        have = topic.settings.get(key)
        if have is not None and not _is_same(have, value):
            drops = " and Kafka will remove superseded records" if _compacts(have) and not _compacts(value) else ""
            yield Hazard(
                "settings",
                f"topic {topic.name} has {key}={have}, but the log followed {key}={value}{drops}",
                f"change the topic with kafka-configs, or leave it if {key} is meant to differ",
            )


def _refused(topic: TargetTopic, survey: RestoreSurvey, limits: TargetLimits) -> Iterator[Hazard]:
    number = survey.partition
    if survey.keyless.count and _compacts(topic.settings.get("cleanup.policy", "delete")):
        yield Hazard(
            "keyless",
            f"partition {number} has {count_text(survey.keyless.count, 'record')} without a key, the first at offset "
            f"{survey.keyless.first_offset}, but topic {topic.name} is compacted: Kafka rejects them",
            "leave them out with --skip-keyless, or restore into a topic with cleanup.policy=delete",
            is_error=True, partition=number, offset=survey.keyless.first_offset,
        )  # fmt: skip
    if survey.too_large:
        offset, size = survey.too_large[0]
        largest = max(size for _, size in survey.too_large)
        yield Hazard(
            "too-large",
            f"partition {number} has records larger than max.message.bytes={limits.max_message_bytes} of topic "
            f"{topic.name}: the record at offset {offset} has {size:,} bytes, the largest checked record {largest:,}",
            f"set max.message.bytes={largest} or more (--topic-config for a new topic)",
            is_error=True, partition=number, offset=offset,
        )  # fmt: skip
    for found, key, limit_ms, what in (
        (survey.too_early, "message.timestamp.before.max.ms", limits.earliest_ms, "before"),
        (survey.too_late, "message.timestamp.after.max.ms", limits.latest_ms, "after"),
    ):
        if found.count and limit_ms is not None:
            yield Hazard(
                "timestamp-refused",
                f"partition {number} has {count_text(found.count, 'record')} {what} {_iso(limit_ms)}, the first "
                f"at offset {found.first_offset}, but topic {topic.name} has {key}={topic.settings.get(key)}: Kafka "
                "rejects them",
                f"set {key}={NEVER_MS} during the restore (--topic-config for a new topic)",
                is_error=True, partition=number, offset=found.first_offset,
            )  # fmt: skip


def _changed(topic: TargetTopic, survey: RestoreSurvey) -> Iterator[Hazard]:
    number = survey.partition
    if survey.too_old.count:
        yield Hazard(
            "retention-time",
            f"partition {number} has {count_text(survey.too_old.count, 'record')} older than retention.ms="
            f"{topic.settings.get('retention.ms')} of topic {topic.name}, the first at offset "
            f"{survey.too_old.first_offset}: Kafka will delete them",
            "set retention.ms=-1 during the restore; Kafka deletes the records when you set it back "
            "(--topic-config for a new topic)",
            partition=number, offset=survey.too_old.first_offset,
        )  # fmt: skip
    retention_bytes = _number(topic, "retention.bytes", -1)
    if "delete" in topic.settings.get("cleanup.policy", "delete") and 0 <= retention_bytes < survey.record_bytes:
        yield Hazard(
            "retention-bytes",
            f"partition {number} has {count_text(survey.record_bytes, 'byte')} of uncompressed records, but topic "
            f"{topic.name} has retention.bytes={retention_bytes}: Kafka may delete the oldest records",
            "set retention.bytes=-1 (--topic-config for a new topic)",
            partition=number,
        )  # fmt: skip
    if survey.zero_timestamps.count and not is_restamped(topic):
        yield Hazard(
            "timestamp-zero",
            f"partition {number} has {count_text(survey.zero_timestamps.count, 'record')} with timestamp 0, the first "
            f"at offset {survey.zero_timestamps.first_offset}: the Kafka client replaces 0 with the current time",
            "this client has no setting to prevent it",
            partition=number, offset=survey.zero_timestamps.first_offset,
        )  # fmt: skip


def _incomplete(survey: RestoreSurvey, selection: RestoreSelection) -> Iterator[Hazard]:
    """What the log itself does not have of what was asked for."""
    manifest = survey.manifest
    number = survey.partition
    if not selection.is_whole and survey.end < manifest.first_dirty_offset:
        yield Hazard(
            "compacted-beyond",
            f"partition {number} is compacted up to offset {manifest.first_dirty_offset}, but the restore ends at "
            f"{survey.end}: records superseded in between were removed, so the result is not the state at that time",
            "restore the whole log, or restore from a copy made at that time",
            partition=number, offset=survey.end,
        )  # fmt: skip
    missing = {reason: count for reason, count in totals(manifest.gaps).items() if count}
    if missing:
        said = ", ".join(f"{count_text(count, 'offset')} {reason}" for reason, count in sorted(missing.items()))
        yield Hazard(
            "gaps",
            f"the log of partition {number} lacks records that the source had: {said}",
            "run `keyfold log describe` to list the missing offsets",
            partition=number, offset=manifest.gaps[0].from_offset,
        )  # fmt: skip


def followed_settings(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The settings that the log followed, of the partition whose manifest is the first to know them."""
    found: dict[str, str] = {}
    for manifest in manifests:
        for key in FOLLOWED:
            if key in manifest.settings:
                found.setdefault(key, manifest.settings[key])
    return found


def new_topic_settings(manifests: Sequence[Manifest], given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a topic that is made for the log: what it followed, its records' own times, and what is `given`."""
    return {"message.timestamp.type": "CreateTime", **followed_settings(manifests), **given}


def _is_same(one: str, other: str) -> bool:
    parts = [{part.strip() for part in text.split(",")} for text in (one, other)]
    if parts[0] == parts[1]:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _compacts(policy: str) -> bool:
    return "compact" in policy


def _number(topic: TargetTopic, key: str, default: int) -> int:
    text = topic.settings.get(key, "")
    return int(text) if text.lstrip("-").isdecimal() else default


def _iso(time_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{time_ms} ms"
