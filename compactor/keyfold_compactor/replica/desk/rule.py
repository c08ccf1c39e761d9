"""The rule: a log that was compacted replicates only where compaction is enabled in the replica bucket.

Whoever reads a replica of a raw log may count on seeing every record. So nobody's replica turns into a compacted log
because somebody switched cleaning on at the source: the owner of the replica bucket says that he wants it, in a
document of that bucket, and with it which format his readers can read. A log that was never compacted replicates
either way. A topic's own entry wins over the one for all topics (`*`), in both directions.
"""

from __future__ import annotations

from keyfold.errors import CompactionNotEnabled, KeyfoldError, ReplicaFormatTooOld
from keyfold.log.manifest import Manifest, was_compacted
from keyfold_compactor.replica.desk.documents import Enablement


def refusal(source: Manifest, enablement: Enablement, replica: str, named: str = "") -> KeyfoldError | None:
    """Why this version of the source may not go to the replica at this URL; None where it may.

    `named` is the replica as commands take it: its source and its name, which say also how it is reached.
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
