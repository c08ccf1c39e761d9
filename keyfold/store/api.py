"""What keyfold asks of an object store.

Nine calls, each with the promise that the log stands on. Everything above this floor speaks `ObjectStore`; only
`keyfold.store.s3` knows boto3.

Promises
    * Reads and listings are strongly consistent (S3 since 2020).
    * `put` is conditional, always: `Create` for a name that must be new, `Update` for one version of an object that is
      replaced. There is no unconditional write in this protocol on purpose.
    * `put` sends its request once. A time-out or 5xx raises `StoreUnavailable`, and the request may still land later;
      the caller decides what to repeat (see `keyfold.log.commit`). Reads, lists and deletes may be repeated inside.
    * Answers carry the store's own time (`date_ms`): waits that protect readers are measured with it.

Errors are those of `keyfold.errors.StoreError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from keyfold.errors import ObjectTooLarge

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Create:
    """Write only if no object has this name (`If-None-Match: *`)."""


@dataclass(frozen=True, slots=True)
class Update:
    """Write only over the version with this ETag (`If-Match`)."""

    etag: str


PutMode = Create | Update


@dataclass(frozen=True, slots=True)
class PutResult:
    """A write that landed: its ETag, and the store's time when it answered."""

    etag: str
    date_ms: int


@dataclass(frozen=True, slots=True)
class Blob:
    """A whole object as it was at one moment. `date_ms` is the store's time of the answer."""

    data: bytes
    etag: str
    last_modified_ms: int
    date_ms: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing. `key` is the whole key in the bucket."""

    key: str
    size_bytes: int
    etag: str
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class UploadInfo:
    """An unfinished multipart upload."""

    key: str
    upload_id: str
    started_ms: int


class Upload(Protocol):
    """A create that is sent in parts. Nothing is visible before `complete` returns."""

    def write(self, part: Bytes) -> None:
        """Send the next part: at least `MIN_PART_BYTES`, but for the last. A part may be repeated inside.

        After `StoreUnavailable` the same part may be sent again by another call. Raises `UploadLost`.
        """

    def complete(self) -> PutResult:
        """Make the object visible, create-only.

        Raises `AlreadyExists` when the name is taken, `UploadLost` when the store no longer knows the upload,
        `StoreUnavailable` when the result is unknown: call again. `AlreadyExists` after that may mean this very upload.
        """

    def abort(self) -> None:
        """Forget the parts. Only for an upload whose `complete` was never called."""


MIN_PART_BYTES: Final = 5 * 1024 * 1024

STORE_TIME_RESOLUTION_MS: Final = 2000
"""How far two times of one store may be off against each other.

A time that is read off an answer is up to a second late (it is the end of a whole second), or up to a second early
(some servers renew their `Date` once a second). So a wait that began at `stamp_ms` is surely over when
`date_ms - STORE_TIME_RESOLUTION_MS >= stamp_ms + delay_ms`.
"""


def require_size(key: str, size_bytes: int, max_bytes: int | None) -> None:
    """Raise `ObjectTooLarge` for an object of more than `max_bytes`; None takes any."""
    if max_bytes is not None and size_bytes > max_bytes:
        raise ObjectTooLarge(
            key,
            f"has {size_bytes} bytes; the limit for this kind of object is {max_bytes}",
            hint="keyfold did not write it: find out who wrote it before you delete it",
        )


class ObjectStore(Protocol):
    """A bucket."""

    @property
    def url(self) -> str:
        """`s3://<bucket>` or `memory://<name>`, for messages."""

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """The whole object. Raises `ObjectNotFound`, and `ObjectTooLarge` where it has more than `max_bytes`.

        A caller gives `max_bytes` for each object that is small unless somebody else wrote it. The store compares it
        with the object's size before it takes memory for the bytes.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`. Raises `ObjectNotFound`, or `StoreError` where the object is shorter."""

    def head(self, key: str) -> ObjectInfo:
        """Size and times without the bytes. Raises `ObjectNotFound`."""

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """Write an object under a condition, in one request that is not repeated.

        Raises `AlreadyExists` (412 on `Create`), `PreconditionFailed` (412 on `Update`), `ObjectNotFound` (404 on
        `Update`: the object is gone), `ConditionUndecided` (409), `StoreUnavailable` (unknown).
        """

    def start_upload(self, key: str) -> Upload:
        """Begin a create in parts."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in key order, after `start_after`."""

    def list_folders(self, prefix: str) -> Iterator[str]:
        """The next level below `prefix` (which ends in `/`): names without the slash, in order (`Delimiter=/`)."""

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Unfinished multipart uploads below `prefix`."""

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Remove an unfinished upload; one that is not there is no error."""


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of an object, in a bucket that keeps versions. A deletion is a version without bytes."""

    key: str
    version_id: str
    size_bytes: int
    last_modified_ms: int
    is_deletion: bool = False


@runtime_checkable
class VersionedStore(Protocol):
    """What a store of buckets that keep versions can do beside `ObjectStore`. For repairs; the log never needs it."""

    def list_versions(self, key: str) -> Iterator[ObjectVersion]:
        """All versions of one object, the newest first; none, or the current one alone, where none are kept."""

    def get_version(self, key: str, version_id: str) -> Blob:
        """The bytes of one version. Raises `ObjectNotFound`."""


class ServerCopy(Protocol):
    """A create whose bytes the store has copied by itself. Nothing is visible before `complete` returns."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 of the bytes that were copied, as the store has summed them up."""

    def complete(self) -> PutResult:
        """See `Upload.complete`."""

    def abort(self) -> None:
        """See `Upload.abort`."""


@runtime_checkable
class CopyingStore(Protocol):
    """What a store can do beside `ObjectStore` when both ends of a copy are its own: no byte leaves it."""

    def copies_from(self, source: ObjectStore) -> bool:
        """Whether it is worth asking: the same server, the same credentials. Asks nobody."""

    def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> ServerCopy | None:
        """Copy a whole object of `source` to where `complete` makes it `key`, create-only.

        None where the store cannot, or does not say what it has copied: then the bytes have to be sent. Raises
        `ObjectNotFound` when the source has no such object; what is left of a failed copy is an unfinished upload.
        """


class ResumedUpload(Upload, Protocol):
    """An upload that an earlier process has begun."""

    def keep(self, part: Bytes) -> bool:
        """Take the next part as sent, if the store has it already with these bytes; else `write` has to send it."""


@runtime_checkable
class ResumingStore(Protocol):
    """What a store can do beside `ObjectStore`: go on with an upload whose process is gone."""

    def resume_upload(self, key: str) -> ResumedUpload | None:
        """The unfinished upload of `key` that has the most parts; None where nothing was begun."""
