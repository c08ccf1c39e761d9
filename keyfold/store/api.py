"""The protocol of an object store.

The protocol has ten calls, each with a promise that the log depends on. All packages above use `ObjectStore`, and
`StoreLocation` to open one; only `keyfold.store.s3` uses boto3.

Promises
    * Reads and listings are strongly consistent (S3 since 2020).
    * `put` is always conditional: `Create` for a new object, `Update` to replace one version of an object. The protocol
      has no unconditional write, on purpose.
    * `put` sends its request once. A timeout or 5xx raises `StoreUnavailable`, and the request may still land later;
      the caller decides what to retry (see `keyfold.log.commit`). A store may retry reads, lists and deletes by itself.
    * Answers carry the store's own time (`date_ms`). It measures the waits that protect readers.

Errors are those of `keyfold.errors.StoreError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, Self, runtime_checkable

from keyfold.errors import ObjectTooLarge
from keyfold.runtime.buffers import Bytes
from keyfold.store.pacing import Pacer


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
    """A successful write: its ETag, and the store's time of the answer."""

    etag: str
    date_ms: int


@dataclass(frozen=True, slots=True)
class Blob:
    """A whole object at one moment. `date_ms` is the store's time of the answer."""

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
        """Send the next part: at least `MIN_PART_BYTES`, except for the last part. A store may retry a part by itself.

        After `StoreUnavailable` the caller may send the same part again. Raises `UploadLost`.
        """

    def complete(self) -> PutResult:
        """Make the object visible, create-only.

        Raises `AlreadyExists` if the object exists, `UploadLost` if the store no longer knows the upload, and
        `StoreUnavailable` if the result is unknown: retry the call. A later `AlreadyExists` may be about this upload.
        """

    def abort(self) -> None:
        """Delete the parts. Only for an upload whose `complete` was never called."""


MIN_PART_BYTES: Final = 5 * 1024 * 1024

STORE_TIME_RESOLUTION_MS: Final = 2000
"""Maximum error of the difference between two times of one store.

The time of an answer is up to a second late (it is the end of a whole second), or up to a second early (some servers
update their `Date` once a second). So a wait that began at `stamp_ms` has certainly ended when
`date_ms - STORE_TIME_RESOLUTION_MS >= stamp_ms + delay_ms`.
"""


def require_size(key: str, size_bytes: int, max_bytes: int | None) -> None:
    """Raise `ObjectTooLarge` for an object of more than `max_bytes`; None means no limit."""
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
        """Return a whole object. Raises `ObjectNotFound`, and `ObjectTooLarge` above `max_bytes`.

        A caller sets `max_bytes` for every kind of object that keyfold only writes in small sizes. The store compares
        it with the object's size before it allocates memory.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return exactly `length` bytes from `start`. Raises `ObjectNotFound`, or `StoreError` for a shorter object."""

    def head(self, key: str) -> ObjectInfo:
        """Return size and times without the bytes. Raises `ObjectNotFound`."""

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """Write an object under a condition, in one request that is not retried.

        Raises `AlreadyExists` (412 on `Create`), `PreconditionFailed` (412 on `Update`), `ObjectNotFound` (404 on
        `Update`: the object is gone), `ConditionUndecided` (409), `StoreUnavailable` (unknown).
        """

    def start_upload(self, key: str) -> Upload:
        """Start a create in parts."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`, in key order, after `start_after`."""

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below `prefix`, which ends in `/`, in order (`Delimiter=/`)."""

    def delete(self, key: str) -> None:
        """Delete an object; a missing object is not an error."""

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield the unfinished multipart uploads below `prefix`."""

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Delete an unfinished upload; a missing upload is not an error."""


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
    """Additional calls of a store whose buckets keep versions. Repairs use them; the log never needs them."""

    def list_versions(self, key: str) -> Iterator[ObjectVersion]:
        """Yield all versions of an object, newest first; without versioning, at most the current one."""

    def get_version(self, key: str, version_id: str) -> Blob:
        """Return the bytes of one version. Raises `ObjectNotFound`."""


class ServerCopy(Protocol):
    """A create whose bytes the store has copied internally. Nothing is visible before `complete` returns."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 of the copied bytes, computed by the store."""

    def complete(self) -> PutResult:
        """See `Upload.complete`."""

    def abort(self) -> None:
        """See `Upload.abort`."""


@runtime_checkable
class CopyingStore(Protocol):
    """Additional calls of a store that can copy between its own buckets, without a transfer through the client."""

    def copies_from(self, source: ObjectStore) -> bool:
        """Return whether a copy may work: same server and same credentials. Sends no request."""

    def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> ServerCopy | None:
        """Copy a whole object of `source` to where `complete` makes it `key`, create-only.

        Returns None if the store cannot copy, or does not return a checksum: then the caller has to send the bytes.
        Raises `ObjectNotFound` if the source has no such object. A failed copy leaves an unfinished upload.
        """


class ResumedUpload(Upload, Protocol):
    """An upload that an earlier process has started."""

    def keep(self, part: Bytes) -> bool:
        """Accept the next part as sent if the store already has it with these bytes; otherwise `write` must send it."""


@runtime_checkable
class ResumingStore(Protocol):
    """Additional call of a store that can continue an upload of a process that has ended."""

    def resume_upload(self, key: str) -> ResumedUpload | None:
        """Return the unfinished upload of `key` with the most parts; None if there is none."""


# Locations


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to reach a bucket. For None, the backend's usual sources apply (for S3: boto3's)."""

    region: str | None = None
    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    path_style: bool | None = None
    encryption: str | None = None
    kms_key_id: str | None = None


DEFAULT_ACCESS: Final = StoreAccess()


class OpenedStore(ObjectStore, Protocol):
    """A store that was opened at a location."""

    def renew(self, location: StoreLocation) -> None:
        """Look up the credentials again, and use them."""

    def close(self) -> None:
        """Close all connections."""


class StoreLocation(Protocol):
    """A bucket and its access, as a plain value that opens the same store in another process."""

    @property
    def bucket(self) -> str:
        """The bucket's name."""

    @property
    def host(self) -> str:
        """The host that requests go to, for messages."""

    def open(self, pacer: Pacer | None = None) -> OpenedStore:
        """Open a store, whose bytes the pacer paces."""

    def resolved(self) -> Self:
        """Return this location with the endpoint and region of this process, so that others reach the same host.

        Credentials that it does not have are left out: each process finds its own.
        """

    def adjusted(
        self,
        *,
        max_connections: int | None = None,
        read_timeout_s: float | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
    ) -> Self:
        """Return this location with other values; None keeps a value."""

    def __hash__(self) -> int: ...
