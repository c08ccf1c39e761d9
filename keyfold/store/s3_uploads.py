"""Creates on S3 with several requests: uploads in parts, resumed uploads, copies inside the store.

A copy inside the store is an upload with one part that the store fills itself (`UploadPartCopy`). `CopyObject` keeps
neither of two promises that the log depends on: servers ignore its `If-None-Match` and overwrite objects, and the copy
is visible before its checksum can be compared. A part can be checked first: an upload that was started for SHA-256
returns the part's checksum, which is the object's, because there is only one part.

An existing part is recognised by its size and its CRC-32, or by its ETag if that is the MD5. Both can be fooled by
deliberate collisions, but only by somebody who can also write the objects.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from keyfold.errors import ObjectNotFound, StoreError, UploadLost
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import PutResult
from keyfold.store.s3_answers import S3Answer, UploadedPart, uploaded_part
from keyfold.store.s3_requests import S3Requests

COPY_BYTES_MAX: Final = 5 * 1024**3
"""S3's maximum size of a part."""

_UPLOADS_LOOKED_AT: Final = 3


class S3Upload:
    """An unfinished multipart upload. One thread sends its parts, one after another.

    `there` are the parts that the store had when this upload was resumed, by number.
    """

    def __init__(
        self, store: S3Requests, key: str, upload_id: str, there: Mapping[int, S3Answer] | None = None
    ) -> None:
        self._store = store
        self.key = key
        self.upload_id = upload_id
        self._there = there or {}
        self._parts: list[UploadedPart] = []

    def write(self, part: Bytes) -> None:
        """See `Upload.write`."""
        self._parts.append(self._store.write_part(self.key, self.upload_id, len(self._parts) + 1, part))

    def keep(self, part: Bytes) -> bool:
        """See `ResumedUpload.keep`."""
        number = len(self._parts) + 1
        found = self._there.get(number)
        if found is None or not _is_same(found, part):
            return False
        self._parts.append(uploaded_part(number, str(found["ETag"]), found.get("ChecksumCRC32")))
        return True

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self._store.complete_upload(self.key, self.upload_id, self._parts)

    def abort(self) -> None:
        """See `Upload.abort`."""
        self._store.abort_upload(self.key, self.upload_id)


@dataclass(frozen=True, slots=True)
class S3Copy:
    """An upload whose only part the store has copied from another object."""

    store: S3Requests
    key: str
    upload_id: str
    part: UploadedPart
    sha256: bytes

    def complete(self) -> PutResult:
        """See `Upload.complete`."""
        return self.store.complete_upload(self.key, self.upload_id, [self.part])

    def abort(self) -> None:
        """See `Upload.abort`."""
        self.store.abort_upload(self.key, self.upload_id)


def copy_in_store(store: S3Requests, source_bucket: str, source_key: str, key: str) -> S3Copy | None:
    """See `CopyingStore.start_copy`."""
    upload_id = store.create_upload(key, "SHA256")
    try:
        found = _copy_part(store, key, upload_id, source_bucket, source_key)
    except StoreError:
        _let_go(store, key, upload_id)
        raise
    if not found.get("ChecksumSHA256") or not found.get("ETag"):
        _let_go(store, key, upload_id)
        return None
    said = str(found["ChecksumSHA256"])
    part: UploadedPart = {"PartNumber": 1, "ETag": str(found["ETag"]), "ChecksumSHA256": said}
    return S3Copy(store, key, upload_id, part, b64decode(said))


def take_up(store: S3Requests, key: str) -> S3Upload | None:
    """See `ResumingStore.resume_upload`. Other kinds of uploads (copies) are ignored."""
    begun = [info for info in store.list_uploads(key) if info.key == key]
    begun.sort(key=lambda info: info.started_ms, reverse=True)
    best: S3Upload | None = None
    most = 0
    for info in begun[:_UPLOADS_LOOKED_AT]:
        there = _parts_there(store, key, info.upload_id)
        if len(there) > most and not any("ChecksumSHA256" in part for part in there.values()):
            best, most = S3Upload(store, key, info.upload_id, there), len(there)
    return best


def _copy_part(store: S3Requests, key: str, upload_id: str, source_bucket: str, source_key: str) -> S3Answer:
    origin = {"Bucket": source_bucket, "Key": source_key}
    try:
        answer = store.request(
            "upload_part_copy", "s3:GetObject", key, UploadId=upload_id, PartNumber=1, CopySource=origin
        )
    except ObjectNotFound as error:
        raise ObjectNotFound(source_key, error.message, code=error.code) from error
    return dict(answer.get("CopyPartResult", {}))


def _parts_there(store: S3Requests, key: str, upload_id: str) -> dict[int, S3Answer]:
    """Return the parts of an unfinished upload by number; empty if the upload is gone."""
    there: dict[int, S3Answer] = {}
    more: dict[str, object] = {}
    while True:
        try:
            page = store.request("list_parts", "s3:ListMultipartUploadParts", key, UploadId=upload_id, **more)
        except (UploadLost, ObjectNotFound):
            return {}
        there |= {int(row["PartNumber"]): row for row in page.get("Parts", ())}
        if not page.get("IsTruncated") or not page.get("NextPartNumberMarker"):
            return there
        more = {"PartNumberMarker": page["NextPartNumberMarker"]}


def _let_go(store: S3Requests, key: str, upload_id: str) -> None:
    with contextlib.suppress(StoreError):
        store.abort_upload(key, upload_id)


def _is_same(found: S3Answer, part: Bytes) -> bool:
    if int(found["Size"]) != len(part):
        return False
    if "ChecksumCRC32" in found:
        return bool(found["ChecksumCRC32"] == b64encode(zlib.crc32(part).to_bytes(4, "big")).decode())
    return str(found["ETag"]).strip('"') == hashlib.md5(part, usedforsecurity=False).hexdigest()
