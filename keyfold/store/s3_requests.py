"""The requests of an S3 store from which `s3_reads` and `s3_uploads` build their operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from keyfold.errors import StoreError
from keyfold.runtime.buffers import Bytes
from keyfold.store.api import PutMode, PutResult, UploadInfo
from keyfold.store.pacing import Pacer
from keyfold.store.s3_answers import S3Answer, UploadedPart


class S3Requests(Protocol):
    """One bucket, request by request (`S3Store`)."""

    @property
    def pacer(self) -> Pacer | None:
        """The byte-rate limiter, if there is one."""

    @property
    def read_attempts(self) -> int:
        """Maximum number of attempts to read a body."""

    def request(self, operation: str, action: str, key: str, **arguments: object) -> S3Answer:
        """Send a request about `key` that may be retried. `action` is the right that it needs, for messages."""

    def failure(self, error: Exception, key: str, action: str, mode: PutMode | None = None) -> StoreError:
        """Return keyfold's error for an error of boto3."""

    def create_upload(self, key: str, checksum: str | None) -> str:
        """Start an upload in parts and return its id."""

    def write_part(self, key: str, upload_id: str, number: int, part: Bytes) -> UploadedPart:
        """Send one part of an upload; return its description for `complete_upload`."""

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> PutResult:
        """Make an upload's object visible, create-only."""

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """See `ObjectStore.list_uploads`."""

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `ObjectStore.abort_upload`."""
