"""The rule: a log that was compacted replicates only where compaction is enabled in the replica bucket.

Whoever reads a replica of a raw log may count on seeing every record. So nobody's replica turns into a compacted log
because somebody switched cleaning on at the source: the owner of the replica bucket says that he wants it, in a
document of that bucket, and with it which format his readers can read. A log that was never compacted replicates
either way. A topic's own entry wins over the one for all topics (`*`), in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from keyfold.errors import CompactionNotEnabled, KeyfoldError, ReplicaFormatTooOld
from keyfold.log.manifest import Manifest, was_compacted

ALL_TOPICS: Final = "*"


@dataclass(frozen=True, slots=True)
class CompactionEntry:
    """What the replica bucket says of one topic, or of all. `format` is the newest manifest format read there."""

    enabled: bool
    format: int
    changed_at_ms: int = 0


def entry_for(entries: Mapping[str, CompactionEntry], topic: str) -> CompactionEntry | None:
    """The entry that decides for `topic`; None where none does."""
    return entries.get(topic, entries.get(ALL_TOPICS))


def refusal(source: Manifest, entries: Mapping[str, CompactionEntry], replica: str) -> KeyfoldError | None:
    """Why this version of the source may not go to the replica with this name; None where it may."""
    if not was_compacted(source):
        return None
    entry = entry_for(entries, source.topic)
    if entry is None or not entry.enabled:
        return CompactionNotEnabled(
            source.topic,
            source.partition,
            f"the log was compacted, and compaction is not enabled at replica {replica}",
            hint=f"run `keyfold replica enable-compaction {replica} --topic {source.topic}`; replication resumes then",
        )
    if entry.format < source.min_reader:
        return ReplicaFormatTooOld(
            source.topic,
            source.partition,
            f"the log needs readers of format {source.min_reader}, those of replica {replica} read {entry.format}",
            hint=f"upgrade what reads the replica, then run `keyfold replica enable-compaction {replica} "
            f"--topic {source.topic}` with the new version",
        )
    return None
