"""The rule: a compacted log is replicated only if compaction is enabled in the replica's bucket.

Readers of a replica of a raw log may rely on seeing every record. So a replica must not become a compacted log because
somebody enables cleaning at the source. The owner of the replica's bucket enables it, in a document of that bucket,
together with the newest format that the readers there know. A log that was never compacted is always replicated. A
topic's own entry overrides the one for all topics (`*`), in both directions.
"""

from __future__ import annotations

from keyfold.errors import CompactionNotEnabled, KeyfoldError, ReplicaFormatTooOld
from keyfold.log.manifest import Manifest, was_compacted
from keyfold.replicas.documents import Enablement


def refusal(source: Manifest, enablement: Enablement, replica: str, named: str = "") -> KeyfoldError | None:
    """Return why this version of the source may not go to the replica at this URL; None if it may.

    `named` is the replica as arguments of a command: its source and its name, which also say how to reach it.
    """
    if not was_compacted(source):
        return None
    entry = enablement.entry(source.topic)
    if entry is None or not entry.enabled:
        return CompactionNotEnabled(
            source.topic,
            source.partition,
            f"the log was compacted, but compaction is not enabled at replica {replica}",
            hint=f"run `keyfold replica enable-compaction {named or replica} --topic {source.topic}`; "
            "replication then resumes",
        )
    if entry.format < source.min_reader:
        return ReplicaFormatTooOld(
            source.topic,
            source.partition,
            f"the log needs readers of format {source.min_reader}, but those of replica {replica} read {entry.format}",
            hint=f"upgrade the readers of the replica, then run `keyfold replica enable-compaction {named or replica} "
            f"--topic {source.topic}` with the new version",
        )
    return None
