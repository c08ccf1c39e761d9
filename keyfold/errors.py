"""What can go wrong, said so that an operator knows what to do.

    KeyfoldError
    ├── ConfigError                   a configuration key is wrong, unknown or contradicts another
    ├── StoreError                    the object store answered something else than yes
    │   ├── ObjectNotFound            404: no such object (for a conditional update: the object is gone)
    │   ├── AlreadyExists             412 on a create: the name is taken
    │   ├── PreconditionFailed        412 on an update: somebody else wrote first
    │   ├── ConditionUndecided        409: nothing was decided, repeat the same request      (retriable)
    │   ├── StoreUnavailable          503, 500, time-out, cut connection: RESULT UNKNOWN     (retriable)
    │   ├── AccessDenied              403
    │   ├── BucketMissing             the bucket does not exist
    │   ├── UploadLost                a multipart upload cannot be finished; its parts must be sent again
    │   └── ConditionsIgnored         the store accepts conditional writes and ignores them: unusable
    ├── TopicNotFound                 no partition of this topic below the URL
    ├── LogError                      about one topic partition
    │   ├── LogNotFound               no log here: neither manifest nor segments
    │   ├── SnapshotLost              a snapshot's objects were collected while it was read: begin again (retriable)
    │   ├── ManifestLost              segments without a manifest: only `keyfold log repair` may go on
    │   ├── FirstCopyUnfinished       a replica that has not received everything once: it cannot be read yet
    │   ├── FormatTooNew              written by a newer keyfold
    │   ├── Corrupt                   bytes are not what they must be: object, block, record
    │   ├── CommitRefused             a commit's requirement does not hold any more
    │   │   ├── Fenced                another writer of my role has claimed the partition
    │   │   ├── LeaseHeld             another compactor is at work and its lease has not expired
    │   │   ├── OffsetMoved           an append does not begin at the log's next_offset
    │   │   ├── SegmentsMoved         a segment to be replaced is not listed any more
    │   │   └── IsReplica             the log follows another one: neither sink nor compactor may write here
    │   ├── ReplicaError              a replica cannot take what its source has
    │   │   ├── ReplicaDiverged       it is no state of this source's log: something else wrote there, or here
    │   │   ├── ResyncRequired        the source purged tombstones before the replica had received them
    │   │   ├── CompactionNotEnabled  the source was compacted, and compaction is not enabled at the replica
    │   │   └── ReplicaFormatTooOld   compaction is enabled there for an older format than the source has
    │   ├── CommitUnknown             no answer within the time given; the commit may still land (retriable)
    │   └── OffsetOutOfRange          a read position that the log cannot serve without a silent hole
    └── SourceError                   the Kafka topic is not the one that the log continues

`retriable` says whether the same call may be repeated as it is. Data is in attributes, a sentence for people is in
`str(error)`, what to do about it in `hint`. Errors are returned or raised to whoever can act; they are not logged and
passed over.
"""

from __future__ import annotations

from typing import ClassVar


class KeyfoldError(Exception):
    """Base of all errors that keyfold raises on purpose."""

    retriable: ClassVar[bool] = False

    exit_code: ClassVar[int] = 1
    """What a command ends with that ends with this error."""

    host: str = ""
    """The address of the store that said so, where whoever raised the error knew it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are pickled by their arguments, and ours are keywords; a Spark executor sends them to its driver.
        return _revived, (type(self), self.args, self.__dict__)


def _revived(kind: type[KeyfoldError], args: tuple[object, ...], state: dict[str, object]) -> KeyfoldError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class ConfigError(KeyfoldError):
    """A configuration key is unknown, has a wrong value, or contradicts another; `key` names it.

    A message that does not name the key is put behind it.
    """

    exit_code = 2

    def __init__(self, key: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if f"`{key}`" in message else f"`{key}`: {message}", hint=hint)
        self.key = key


class StoreError(KeyfoldError):
    """The object store refused or failed; `key` is the object's key in the bucket.

    `code` is the store's own word for it, such as `SlowDown`; empty where it said none.
    """

    def __init__(self, key: str, message: str, *, hint: str | None = None, code: str = "") -> None:
        super().__init__(f"`{key}`: {message}", hint=hint)
        self.key = key
        self.code = code


class ObjectNotFound(StoreError):
    """404 for this key."""


class ObjectTooLarge(StoreError):
    """The object has more bytes than the caller takes. None of them was read."""


class AlreadyExists(StoreError):
    """A create found the name taken (412)."""


class PreconditionFailed(StoreError):
    """An update found another ETag (412)."""


class ConditionUndecided(StoreError):
    """409: the store decided nothing; repeat the same request."""

    retriable = True


class StoreUnavailable(StoreError):
    """Time-out, 5xx or a cut connection. Whether the request landed, or will, is unknown."""

    retriable = True


class AccessDenied(StoreError):
    """403 for this key."""


class BucketMissing(StoreError):
    """The bucket does not exist."""


class UploadLost(StoreError):
    """A multipart upload is gone and its object is not there: send the bytes again under a new name."""


class ConditionsIgnored(StoreError):
    """The store does not honour conditional writes; a log on it would lose records."""


class TopicNotFound(KeyfoldError):
    """There is no partition of `topic` where it was looked for."""

    def __init__(self, topic: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic


class LogError(KeyfoldError):
    """About one partition's log; `topic` and `partition` say which."""

    def __init__(self, topic: str, partition: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{topic}-{partition}: {message}", hint=hint)
        self.topic = topic
        self.partition = partition


class LogNotFound(LogError):
    """There is no log at this place: neither a manifest nor segments."""


class SnapshotLost(LogError):
    """Objects of the version that was read were replaced and collected before the reader was done: read it again."""

    retriable = True


class ManifestLost(LogError):
    """Segments are there, the manifest is not. Nothing is initialised or collected here."""


class FirstCopyUnfinished(LogError):
    """The folder is a replica's, and its replicator has not committed there yet: nothing can be read, or repaired.

    `segments_there` of `segments` and `bytes_there` of `size_bytes` (segments and indexes) have been copied. The totals
    are 0, and `replica`, `source` and `source_log_id` empty, where the marker could not be read.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        message: str,
        *,
        hint: str | None = None,
        replica: str = "",
        source: str = "",
        source_log_id: str = "",
        segments: int = 0,
        segments_there: int = 0,
        size_bytes: int = 0,
        bytes_there: int = 0,
    ) -> None:
        super().__init__(topic, partition, message, hint=hint)
        self.replica = replica
        self.source = source
        self.source_log_id = source_log_id
        self.segments = segments
        self.segments_there = segments_there
        self.size_bytes = size_bytes
        self.bytes_there = bytes_there


class FormatTooNew(LogError):
    """The manifest asks for a newer reader or writer than this one."""


class Corrupt(LogError):
    """Stored bytes are not what they must be. The message names object, block and record."""


class ManifestTooLarge(LogError):
    """The next manifest would have more bytes than a reader takes. Nothing was written, and the log is as it was."""


class CommitRefused(LogError):
    """A commit's requirement does not hold any more. Nothing was written; uploads become orphans."""


class Fenced(CommitRefused):
    """Another writer of the same role claimed the partition: stop, do not claim again by yourself."""


class LeaseHeld(CommitRefused):
    """Another compactor works on this partition; `until_ms` is the end of its lease in store time."""

    def __init__(self, topic: str, partition: int, message: str, *, until_ms: int) -> None:
        super().__init__(topic, partition, message)
        self.until_ms = until_ms


class OffsetMoved(CommitRefused):
    """An append does not begin at the log's `next_offset`."""


class SegmentsMoved(CommitRefused):
    """A segment that was to be replaced is not listed under the same names any more."""


class IsReplica(CommitRefused):
    """The log here follows `source`: only its replicator writes it, until it is promoted."""

    def __init__(self, topic: str, partition: int, message: str, *, source: str, hint: str | None = None) -> None:
        super().__init__(topic, partition, message, hint=hint)
        self.source = source


class ReplicaError(LogError):
    """A replica cannot take what its source has. `code` is one word for a status; it does not change."""

    code: ClassVar[str] = "ReplicaError"


class ReplicaDiverged(ReplicaError):
    """What is at the replica is no state of the source's log, or the source is not the log that the replica follows.

    `lost_from` and `lost_to` are the offsets that only this side has, and would lose; equal where there are none.
    """

    code = "ReplicaDiverged"

    def __init__(
        self,
        topic: str,
        partition: int,
        message: str,
        *,
        hint: str | None = None,
        lost_from: int = 0,
        lost_to: int = 0,
        lost_records: int = 0,
    ) -> None:
        super().__init__(topic, partition, message, hint=hint)
        self.lost_from = lost_from
        self.lost_to = lost_to
        self.lost_records = lost_records


class ResyncRequired(ReplicaError):
    """The source removed tombstones that the replica had not received: who reads there would keep deleted keys."""

    code = "ResyncRequired"


class CompactionNotEnabled(ReplicaError):
    """The source's log was compacted, and the replica's bucket does not say that it takes compacted logs."""

    code = "CompactionNotEnabled"


class ReplicaFormatTooOld(ReplicaError):
    """Compaction is enabled at the replica for readers of an older format than the source's log has."""

    code = "ReplicaFormatTooOld"


class CommitUnknown(LogError):
    """The store gave no answer in the time allowed. The commit may have landed or still land; nothing is cleaned up."""

    retriable = True


class OffsetOutOfRange(LogError):
    """The log cannot serve this position without a silent hole."""


class SourceError(LogError):
    """The Kafka topic lost records, was truncated or was made anew: the log cannot simply go on."""


def is_of_one_partition(error: KeyfoldError) -> bool:
    """Whether an error that came of reading one partition says nothing about the others.

    A store that does not answer, or that has no such bucket, would say the same of each of them.
    """
    if isinstance(error, StoreError):
        return not (error.retriable or isinstance(error, BucketMissing))
    return isinstance(error, LogError)
