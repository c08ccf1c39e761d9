"""S3 and compatible stores, through botocore, the core of boto3.

Two clients share one configuration. The *single* client sends every request once. It sends conditional writes and the
completion of uploads, because boto3 would retry a PUT that had landed and report a 412 for its own bytes. The
*retrying* client retries in boto3's standard mode: reads, listings, deletes, and parts of an upload, which are all safe
to retry.

Times are the store's: the `Date` and `Last-Modified` of its answers, which have whole seconds. They are returned as the
last millisecond of their second (`STORE_TIME_RESOLUTION_MS` has their precision).

The byte-rate limit applies where bytes are transferred (`keyfold.store.pacing`). A read acquires its bytes before the
request (`keyfold.store.s3_reads`). For a write, boto3 first computes signature and checksum of the plain bytes. Then,
in its `before-send` event, the store replaces the body with one that waits for the pacer. Heads, listings and errors
are counted when they are transferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from botocore import __version__ as botocore_version
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from keyfold.errors import (
    BucketMissing,
    ConditionUndecided,
    ConfigError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    UploadLost,
)
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import (
    Blob,
    Create,
    ObjectInfo,
    ObjectStore,
    ObjectVersion,
    PutMode,
    PutResult,
    StoreAccess,
    StoreLocation,
    UploadInfo,
)
from keyfold.store.pacing import PacedBody, Pacer
from keyfold.store.s3_answers import (
    S3Answer,
    UploadedPart,
    date_ms_of,
    etag_of,
    field_of,
    owe_answer,
    owe_request,
    put_result,
    second_end_ms,
    uploaded_part,
)
from keyfold.store.s3_errors import FAILURES, translate
from keyfold.store.s3_reads import read_range, read_whole
from keyfold.store.s3_session import configured_endpoint, open_session
from keyfold.store.s3_uploads import COPY_BYTES_MAX, S3Copy, S3Upload, copy_in_store, take_up
from keyfold.store.wrappers.base import unwrapped

Checksums = Literal["when_supported", "when_required"]
_CREATE_ONLY: Final = "*"
_ASK_FIRST_BYTES: Final = 1024 * 1024
_ACCESS: Final = ("endpoint_url", "access_key_id", "secret_access_key", "session_token", "profile")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and its access, as plain values, so that a Spark executor can open the same store.

    For None, boto3's sources apply: environment, profile, instance role. `checksums="when_required"` is for servers
    that do not know the checksum headers that boto3 sends since 1.36. `path_style=None` means path style for every
    endpoint except Amazon's. `encryption` (AES256, aws:kms) is requested for each object; None means the bucket's
    default.
    """

    bucket: str
    region: str | None = None
    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    path_style: bool | None = None
    checksums: Checksums = "when_supported"
    encryption: str | None = None
    kms_key_id: str | None = None
    connect_timeout_s: float = 10
    read_timeout_s: float = 60
    max_connections: int = 16
    read_attempts: int = 4

    @classmethod
    def of(cls, bucket: str, access: StoreAccess) -> S3Location:
        """Return the location of a bucket."""
        return cls(bucket, **{name: getattr(access, name) for name in StoreAccess.__slots__})

    @property
    def host(self) -> str:
        """See `StoreLocation.host`."""
        if self.endpoint_url:
            return urlsplit(self.endpoint_url).netloc
        return f"s3.{self.region}.amazonaws.com" if self.region else "s3.amazonaws.com"

    def open(self, pacer: Pacer | None = None) -> S3Store:
        """See `StoreLocation.open`."""
        return S3Store.at(self, pacer)

    def resolved(self) -> S3Location:
        """See `StoreLocation.resolved`."""
        store = self.open()
        try:
            return store.location
        finally:
            store.close()

    def adjusted(
        self,
        *,
        max_connections: int | None = None,
        read_timeout_s: float | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
    ) -> S3Location:
        """See `StoreLocation.adjusted`."""
        asked: dict[str, Any] = {
            "max_connections": max_connections,
            "read_timeout_s": read_timeout_s,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
        }
        return replace(self, **{name: value for name, value in asked.items() if value is not None})


class S3Store:
    """An `ObjectStore` of one bucket. Thread-safe; do not use it after a fork."""

    def __init__(
        self,
        bucket: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        profile: str | None = None,
        pacer: Pacer | None = None,
        path_style: bool | None = None,
        checksums: Checksums = "when_supported",
        encryption: str | None = None,
        kms_key_id: str | None = None,
        connect_timeout_s: float = 10,
        read_timeout_s: float = 60,
        max_connections: int = 16,
        read_attempts: int = 4,
    ) -> None:
        asked = S3Location(
            bucket=bucket,
            region=region,
            endpoint_url=endpoint_url,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            session_token=session_token,
            profile=profile,
            path_style=path_style,
            checksums=checksums,
            encryption=encryption,
            kms_key_id=kms_key_id,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            max_connections=max_connections,
            read_attempts=read_attempts,
        )
        self.bucket = bucket
        self.pacer = pacer
        # boto3 computes each part's checksum, but the caller has to declare it at the start and end of an upload.
        self._sums_parts = checksums == "when_supported"
        asked_for = {"ServerSideEncryption": encryption, "SSEKMSKeyId": kms_key_id}
        self._encryption = {name: value for name, value in asked_for.items() if value}
        self._retired: tuple[Any, ...] = ()
        self.location, self._retrying, self._single = self._open(asked)

    @classmethod
    def at(cls, location: S3Location, pacer: Pacer | None = None) -> S3Store:
        """Open the store that a location describes."""
        options = {name: getattr(location, name) for name in S3Location.__slots__}
        return cls(options.pop("bucket"), pacer=pacer, **options)

    @property
    def url(self) -> str:
        """`s3://<bucket>`."""
        return f"s3://{self.bucket}"

    @property
    def host(self) -> str:
        """The `host:port` that requests go to, for messages."""
        return str(urlsplit(self._retrying.meta.endpoint_url).netloc)

    @property
    def read_attempts(self) -> int:
        """Maximum number of attempts to read a body (for `s3_reads`)."""
        return self.location.read_attempts

    def renew(self, location: StoreLocation) -> None:
        """Replace the clients, so that boto3 looks up the credentials again; uploads continue with the new clients.

        Requests in flight end with the old clients. Raises `ConfigError` if boto3 cannot create a client; then nothing
        has changed.
        """
        assert isinstance(location, S3Location)
        retired, opened = self._retired, self._open(location)
        self._retired = (self._retrying, self._single)
        self.location, self._retrying, self._single = opened
        for client in retired:  # replaced by the previous renewal: its requests have ended
            client.close()

    def close(self) -> None:
        """Close all connections."""
        for client in (*self._retired, self._retrying, self._single):
            client.close()

    # Reading

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        return self._blob(key, max_bytes)

    def _blob(self, key: str, max_bytes: int | None, **arguments: object) -> Blob:
        answer, data = read_whole(self, key, max_bytes, **arguments)
        modified_ms = second_end_ms(field_of(answer, "LastModified", key))
        # A server that updates its Date once a second may send one that is older than the object.
        return Blob(data, etag_of(answer, key), modified_ms, max(modified_ms, date_ms_of(answer, key)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        if start < 0 or length < 0:
            raise ValueError(f"invalid range: {start=}, {length=}")
        if length == 0:
            found = self.head(key)
            if start > found.size_bytes:
                raise StoreError(key, f"asked for 0 bytes from {start}, but the object has {found.size_bytes}")
            return b""
        return read_range(self, key, start, length)

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        answer = self._head(key)
        size_bytes = int(field_of(answer, "ContentLength", key))
        return ObjectInfo(key, size_bytes, etag_of(answer, key), second_end_ms(field_of(answer, "LastModified", key)))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        after = {"StartAfter": start_after} if start_after else {}
        for page in self._pages("list_objects_v2", "s3:ListBucket", prefix, **after):
            for row in page.get("Contents", ()):
                yield ObjectInfo(row["Key"], int(row["Size"]), row["ETag"], second_end_ms(row["LastModified"]))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`."""
        for page in self._pages("list_objects_v2", "s3:ListBucket", prefix, Delimiter="/"):
            for row in page.get("CommonPrefixes", ()):
                yield row["Prefix"][len(prefix) : -1]

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`."""
        for page in self._pages("list_multipart_uploads", "s3:ListBucketMultipartUploads", prefix):
            for row in page.get("Uploads", ()):
                yield UploadInfo(row["Key"], row["UploadId"], second_end_ms(row["Initiated"]))

    def list_versions(self, key: str) -> Iterator[ObjectVersion]:
        """See `VersionedStore.list_versions`."""
        for page in self._pages("list_object_versions", "s3:ListBucketVersions", key):
            rows = [(row, False) for row in page.get("Versions", ())]
            rows += [(row, True) for row in page.get("DeleteMarkers", ())]
            for row, is_deletion in sorted(rows, key=lambda r: r[0]["LastModified"], reverse=True):
                if row["Key"] == key:  # and not an object whose key only starts with it
                    modified_ms = second_end_ms(row["LastModified"])
                    yield ObjectVersion(key, str(row["VersionId"]), row.get("Size", 0), modified_ms, is_deletion)

    def get_version(self, key: str, version_id: str) -> Blob:
        """See `VersionedStore.get_version`."""
        return self._blob(key, None, VersionId=version_id)

    # Writing

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        condition = {"IfNoneMatch": _CREATE_ONLY} if isinstance(mode, Create) else {"IfMatch": mode.etag}
        body = bytes(data) if isinstance(data, memoryview) else data
        extra: dict[str, object] = {**condition, **self._encryption}
        answer = self._ask(self._single.put_object, "s3:PutObject", key, mode, Key=key, Body=body, **extra)
        return put_result(answer, key)

    def start_upload(self, key: str) -> S3Upload:
        """See `ObjectStore.start_upload`."""
        return S3Upload(self, key, self.create_upload(key, "CRC32" if self._sums_parts else None))

    def resume_upload(self, key: str) -> S3Upload | None:
        """See `ResumingStore.resume_upload`."""
        return take_up(self, key)

    def copies_from(self, source: ObjectStore) -> bool:
        """See `CopyingStore.copies_from`."""
        other = unwrapped(source)
        return isinstance(other, S3Store) and _has_same_access(self.location, other.location)

    def start_copy(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> S3Copy | None:
        """See `CopyingStore.start_copy`."""
        other = unwrapped(source)
        if not isinstance(other, S3Store) or not self._sums_parts or not 0 < size_bytes <= COPY_BYTES_MAX:
            return None
        return copy_in_store(self, other.bucket, source_key, key)

    def create_upload(self, key: str, checksum: str | None) -> str:
        """Start an upload in parts (for `start_upload` and `start_copy`) and return its id."""
        sums = {"ChecksumAlgorithm": checksum} if checksum else {}
        answer = self.request("create_multipart_upload", "s3:PutObject", key, **sums, **self._encryption)
        return str(answer["UploadId"])

    def request(self, operation: str, action: str, key: str, **arguments: object) -> S3Answer:
        """Send a request about `key` that may be retried (for `keyfold.store.s3_uploads` and `s3_reads`)."""
        return self._ask(getattr(self._retrying, operation), action, key, None, Key=key, **arguments)

    def write_part(self, key: str, upload_id: str, number: int, part: Bytes) -> UploadedPart:
        """Send one part of an upload (for `S3Upload.write`); return its description for `complete_upload`."""
        body = bytes(part) if isinstance(part, memoryview) else part
        answer = self._ask(
            self._retrying.upload_part, "s3:PutObject", key, Key=key, UploadId=upload_id, PartNumber=number, Body=body
        )
        return uploaded_part(number, etag_of(answer, key), answer.get("ChecksumCRC32") if self._sums_parts else None)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> PutResult:
        """Make an upload's object visible (for `S3Upload.complete`)."""
        if not parts:
            raise StoreError(key, "an upload needs at least one part")
        try:
            answer = self._ask(
                self._single.complete_multipart_upload,
                "s3:PutObject",
                key,
                Create(),
                Key=key,
                UploadId=upload_id,
                MultipartUpload={"Parts": [*parts]},
                IfNoneMatch=_CREATE_ONLY,
            )
        except ConditionUndecided as error:
            raise UploadLost(
                key, error.message, hint="S3 requires that every part is sent again after a 409"
            ) from error
        except UploadLost as error:
            if error.code == "InvalidPart":  # the upload exists, with a part that another process has sent
                raise
            return self._completed_before(key, error)
        if "ETag" not in answer:
            raise StoreUnavailable(key, "the answer to a completed upload has no ETag: whether it landed is unknown")
        return put_result(answer, key)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            self._ask(self._retrying.delete_object, "s3:DeleteObject", key, Key=key)
        except ObjectNotFound:
            return

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
        try:
            self._ask(
                self._retrying.abort_multipart_upload,
                "s3:AbortMultipartUpload",
                key,
                Key=key,
                UploadId=upload_id,
            )
        except (UploadLost, ObjectNotFound):
            return

    # Inside

    def _open(self, asked: S3Location) -> tuple[S3Location, Any, Any]:
        try:
            location, retrying, single = _clients(asked)
        except (BotoCoreError, ValueError) as error:
            what = f"the S3 client for bucket {asked.bucket} cannot be created"
            raise ConfigError("store.url", f"{what}: {error}") from error
        for client in (retrying, single):
            for operation in ("PutObject", "UploadPart"):
                client.meta.events.register(f"before-send.s3.{operation}", self._before_send)
            if self.pacer is not None:
                client.meta.events.register("before-send.s3", partial(owe_request, self.pacer))
                client.meta.events.register("response-received.s3", partial(owe_answer, self.pacer))
        return location, retrying, single

    def _ask(
        self, call: Callable[..., S3Answer], action: str, key: str, mode: PutMode | None = None, **arguments: object
    ) -> S3Answer:
        try:
            return call(Bucket=self.bucket, **arguments)
        except FAILURES as error:
            raise self.failure(error, key, action, mode) from error

    def failure(self, error: Exception, key: str, action: str, mode: PutMode | None = None) -> StoreError:
        """Return keyfold's error for an error of boto3 (for operations of several requests)."""
        failure = translate(error, bucket=self.bucket, key=key, action=action, mode=mode)
        failure.host = self.host
        return failure

    def _head(self, key: str) -> S3Answer:
        try:
            return self._ask(self._retrying.head_object, "s3:GetObject", key, Key=key)
        except ObjectNotFound as missing:
            # An answer to HEAD has no body, so its 404 does not say whether the bucket or the object is missing.
            try:
                self._ask(self._retrying.head_bucket, "s3:ListBucket", key)
            except ObjectNotFound as error:
                hint = "create the bucket, or check s3.bucket.name"
                raise BucketMissing(key, f"bucket {self.bucket} does not exist", hint=hint) from error
            except BucketMissing:
                raise
            except StoreError:
                raise missing from None
            raise

    def _pages(self, operation: str, action: str, prefix: str, **arguments: object) -> Iterator[S3Answer]:
        paginator = self._retrying.get_paginator(operation)
        try:
            yield from paginator.paginate(Bucket=self.bucket, Prefix=prefix, **arguments)
        except FAILURES as error:
            raise self.failure(error, prefix or self.url, action) from error

    def _completed_before(self, key: str, lost: UploadLost) -> PutResult:
        # An earlier `complete` with a lost answer created the object and ended the upload.
        try:
            return put_result(self._head(key), key)
        except ObjectNotFound:
            raise lost from None

    def _before_send(self, request: Any, **_event: object) -> None:
        # boto3 asks "100-continue?" before each body. A small body is sent faster than the answer comes (and a proxy
        # that never answers costs a second each time); a paced one must not ask the pacer for bytes that stay here.
        headers = request.headers
        size_bytes = int(headers.get("X-Amz-Decoded-Content-Length") or headers.get("Content-Length") or 0)
        if self.pacer is not None or size_bytes < _ASK_FIRST_BYTES:
            headers.pop("Expect", None)
        if self.pacer is not None and request.body is not None:
            request.body = PacedBody(request.body, self.pacer)


def _has_same_access(one: S3Location, other: S3Location) -> bool:
    """Return whether both locations have the same server and credentials. Amazon's regions may differ."""
    return all(getattr(one, name) == getattr(other, name) for name in _ACCESS)


def _clients(asked: S3Location) -> tuple[S3Location, Any, Any]:
    """Return the location as resolved by boto3, the retrying client, and the single client."""
    session = open_session(
        profile=asked.profile,
        access_key_id=asked.access_key_id,
        secret_access_key=asked.secret_access_key,
        session_token=asked.session_token,
        region=asked.region,
    )
    endpoint_url = asked.endpoint_url or configured_endpoint(session)
    path_style = endpoint_url is not None if asked.path_style is None else asked.path_style
    common = Config(
        connect_timeout=asked.connect_timeout_s,
        read_timeout=asked.read_timeout_s,
        max_pool_connections=asked.max_connections,
        request_checksum_calculation=asked.checksums,
        response_checksum_validation=asked.checksums,
        s3={"addressing_style": "path" if path_style else "auto"},
        tcp_keepalive=True,
        # botocore builds its own, which tells more, twice for each request: a tenth of the CPU of a small one.
        user_agent=f"keyfold botocore/{botocore_version}",
    )

    def client(mode: Literal["standard", "legacy"], attempts: int) -> Any:
        config = common.merge(Config(retries={"mode": mode, "total_max_attempts": attempts}))
        return session.create_client("s3", endpoint_url=endpoint_url, config=config)

    retrying, single = client("standard", asked.read_attempts), client("standard", 1)
    region = asked.region or retrying.meta.region_name
    return replace(asked, endpoint_url=endpoint_url, region=region), retrying, single
