"""All errors that keyfold raises.

    KeyfoldError
    ├── ConfigError                   a configuration key is wrong, unknown or contradicts another
    ├── ExtraMissing                  a library that an extra of keyfold installs is missing   (also an ImportError)
    ├── StoreError                    the object store refused a request or failed
    │   ├── ObjectNotFound            404: no such object (for a conditional update: the object is gone)
    │   ├── AlreadyExists             412 on a create: the object exists
    │   ├── PreconditionFailed        412 on an update: another writer was first
    │   ├── ConditionUndecided        409: nothing was decided, repeat the same request      (retriable)
    │   ├── StoreUnavailable          503, 500, timeout, lost connection: RESULT UNKNOWN     (retriable)
    │   ├── AccessDenied              403
    │   ├── BucketMissing             the bucket does not exist
    │   ├── UploadLost                a multipart upload cannot be finished; its parts must be sent again
    │   └── ConditionsIgnored         the store accepts conditional writes and ignores them: unusable
    ├── TopicNotFound                 the topic has no partition below the URL
    ├── LogError                      about one topic partition
    │   ├── LogNotFound               no log here: neither manifest nor segments
    │   ├── SnapshotLost              a snapshot's objects were deleted during a read: read again (retriable)
    │   ├── ManifestLost              segments without a manifest: only `keyfold log repair` may continue
    │   ├── FirstCopyUnfinished       the first copy of a replica is not complete: it cannot be read yet
    │   ├── FormatTooNew              written by a newer keyfold
    │   ├── Corrupt                   stored bytes are damaged: the message names object, block and record
    │   ├── CommitRefused             a commit's requirement does not hold any more
    │   │   ├── Fenced                another writer of the same role has claimed the partition
    │   │   ├── LeaseHeld             another compactor is running, and its lease has not expired
    │   │   ├── OffsetMoved           an append does not begin at the log's next_offset
    │   │   ├── SegmentsMoved         a segment to be replaced is no longer listed
    │   │   └── IsReplica             the log is a replica: neither sink nor compactor may write to it
    │   ├── ReplicaError              a replica cannot take what its source has
    │   │   ├── ReplicaDiverged       the replica and the source have different histories
    │   │   ├── ResyncRequired        the source purged tombstones before the replica had received them
    │   │   ├── CompactionNotEnabled  the source was compacted, and compaction is not enabled at the replica
    │   │   └── ReplicaFormatTooOld   compaction is enabled there for an older format than the source has
    │   ├── CommitUnknown             no answer from the store in time; the commit may still land (retriable)
    │   └── OffsetOutOfRange          a read position that the log cannot serve without a silent hole
    └── SourceError                   the Kafka topic is not the one that the log continues

`retriable` says whether the same call may be retried unchanged. An error has its data in attributes, a sentence for
people in `str(error)`, and advice for the operator in `hint`. Functions raise or return errors to a caller that can
act; they do not log and ignore them.
"""

from __future__ import annotations

from typing import ClassVar


class KeyfoldError(Exception):
    """Base of all errors that keyfold raises on purpose."""

    retriable: ClassVar[bool] = False

    exit_code: ClassVar[int] = 1
    """Exit code of a command that fails with this error."""

    host: str = ""
    """Address of the store that answered; empty if unknown."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark executors pickle exceptions for the driver; by default only positional arguments survive, not keywords.
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


class ExtraMissing(KeyfoldError, ImportError):
    """`what` needs a library that the extra `extra` of keyfold installs; `reason` says why it cannot be imported."""

    def __init__(self, what: str, extra: str, reason: str) -> None:
        super().__init__(f"{what} needs the extra `{extra}`: {reason}", hint=f"pip install 'keyfold[{extra}]'")
        self.extra = extra
        self.reason = reason


class StoreError(KeyfoldError):
    """The object store refused a request or failed; `key` is the object's key in the bucket.

    `code` is the store's error code, such as `SlowDown`; empty if the store sent none.
    """

    def __init__(self, key: str, message: str, *, hint: str | None = None, code: str = "") -> None:
        super().__init__(f"`{key}`: {message}", hint=hint)
        self.key = key
        self.code = code


class ObjectNotFound(StoreError):
    """The store has no object with this key (404)."""


class ObjectTooLarge(StoreError):
    """The object is larger than the caller's limit. No byte was read."""


class AlreadyExists(StoreError):
    """The object of a create already exists (412)."""


class PreconditionFailed(StoreError):
    """The object of an update has another ETag (412)."""


class ConditionUndecided(StoreError):
    """The store did not decide about a conditional write (409): retry the same request."""

    retriable = True


class StoreUnavailable(StoreError):
    """Timeout, 5xx or lost connection. The request may have landed, or may still land."""

    retriable = True


class AccessDenied(StoreError):
    """The credentials do not allow the request (403)."""


class BucketMissing(StoreError):
    """The bucket does not exist."""


class UploadLost(StoreError):
    """A multipart upload and its object are gone: send the bytes again under a new name."""


class ConditionsIgnored(StoreError):
    """The store does not honour conditional writes; a log on it would lose records."""


class TopicNotFound(KeyfoldError):
    """`topic` has no partition below the given URL."""

    def __init__(self, topic: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic


class LogError(KeyfoldError):
    """Base of errors about the log of one partition; `topic` and `partition` name it."""

    def __init__(self, topic: str, partition: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{topic}-{partition}: {message}", hint=hint)
        self.topic = topic
        self.partition = partition


class LogNotFound(LogError):
    """The partition has no log: neither a manifest nor segments."""


class SnapshotLost(LogError):
    """Objects of the version being read were replaced and deleted: start the read again."""

    retriable = True


class ManifestLost(LogError):
    """The partition has segments but no manifest. keyfold neither creates a log there nor deletes objects."""


class FirstCopyUnfinished(LogError):
    """The first copy of a replica's partition is not complete: it can be neither read nor repaired.

    `segments_there` of `segments` and `bytes_there` of `size_bytes` (segments and indexes) have been copied. If the
    marker of the first copy could not be read, the totals are 0, and `replica`, `source` and `source_log_id` are empty.
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
    """The manifest requires a newer reader or writer than this version."""


class Corrupt(LogError):
    """Stored bytes are damaged. The message names object, block and record."""


class ManifestTooLarge(LogError):
    """The next manifest would exceed the size that readers accept. Nothing was written, and the log is unchanged."""


class CommitRefused(LogError):
    """A requirement of a commit no longer holds. Nothing was written; uploaded objects become orphans."""


class Fenced(CommitRefused):
    """Another writer of the same role has claimed the partition: stop, and do not claim it again."""


class LeaseHeld(CommitRefused):
    """Another compactor holds the partition's lease; `until_ms` is the end of the lease in store time."""

    def __init__(self, topic: str, partition: int, message: str, *, until_ms: int) -> None:
        super().__init__(topic, partition, message)
        self.until_ms = until_ms


class OffsetMoved(CommitRefused):
    """An append does not begin at the log's `next_offset`."""


class SegmentsMoved(CommitRefused):
    """A segment to be replaced is no longer listed under the same names."""


class IsReplica(CommitRefused):
    """The log is a replica of `source`: only its replicator may write to it, until it is promoted."""

    def __init__(self, topic: str, partition: int, message: str, *, source: str, hint: str | None = None) -> None:
        super().__init__(topic, partition, message, hint=hint)
        self.source = source


class ReplicaError(LogError):
    """Base of errors of a replica that cannot follow its source. `code` is the stable name shown in a status."""

    code: ClassVar[str] = "ReplicaError"


class ReplicaDiverged(ReplicaError):
    """The replica is not an earlier state of the source's log, or the source is not the log that the replica follows.

    `lost_from` and `lost_to` are the range of offsets that only this side has and would lose; they are equal if there
    are none.
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
    """The source removed tombstones before the replica received them: readers there would keep deleted keys."""

    code = "ResyncRequired"


class CompactionNotEnabled(ReplicaError):
    """The source's log was compacted, but compaction is not enabled in the replica's bucket."""

    code = "CompactionNotEnabled"


class ReplicaFormatTooOld(ReplicaError):
    """Compaction is enabled at the replica, but only for readers of an older format than the source's."""

    code = "ReplicaFormatTooOld"


class CommitUnknown(LogError):
    """The store did not answer in time. The commit may have landed or may still land; no upload is deleted."""

    retriable = True


class OffsetOutOfRange(LogError):
    """The log cannot serve a read position without silently skipping records."""


class SourceError(LogError):
    """The Kafka topic lost records, was truncated or was recreated: the log cannot continue it."""


def is_of_one_partition(error: KeyfoldError) -> bool:
    """Return whether an error from reading one partition concerns only that partition.

    If the store does not answer or has no such bucket, all partitions fail in the same way.
    """
    if isinstance(error, StoreError):
        return not (error.retriable or isinstance(error, BucketMissing))
    return isinstance(error, LogError)
