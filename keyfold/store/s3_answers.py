"""What S3's answers say: fields that must be there, times, and the bytes that they took on the wire."""

from __future__ import annotations

from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NotRequired, TypedDict

from keyfold.errors import StoreError
from keyfold.store.api import PutResult
from keyfold.store.pacing import Pacer, head_bytes

S3Answer = dict[str, Any]
"""An answer as boto3 has it; what is in it depends on the request."""


class UploadedPart(TypedDict):
    """A part of an upload, as S3 wants it when the upload is completed."""

    PartNumber: int
    ETag: str
    ChecksumCRC32: NotRequired[str]
    ChecksumSHA256: NotRequired[str]


def uploaded_part(number: int, etag: str, crc32: str | None) -> UploadedPart:
    """Return the description of a part, with its checksum if the store has told one."""
    if crc32 is None:
        return {"PartNumber": number, "ETag": etag}
    return {"PartNumber": number, "ETag": etag, "ChecksumCRC32": crc32}


def field_of(answer: S3Answer, name: str, key: str) -> Any:
    """Return a field of an answer. Raises `StoreError` if it is missing."""
    if not (value := answer.get(name)) and value != 0:
        raise StoreError(key, f"the store answered without {name}; keyfold cannot use such a store")
    return value


def etag_of(answer: S3Answer, key: str) -> str:
    """Return the ETag of an answer. Raises `StoreError` if it is missing."""
    return str(field_of(answer, "ETag", key))


def put_result(answer: S3Answer, key: str) -> PutResult:
    """Return the result of a write."""
    return PutResult(etag_of(answer, key), date_ms_of(answer, key))


def date_ms_of(answer: S3Answer, key: str) -> int:
    """Return the store's time of an answer. Raise `StoreError` if it is missing."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return second_end_ms(parsedate_to_datetime(text))
    except ValueError as error:
        raise StoreError(
            key,
            f"the store answered without a valid Date header ({text!r}); keyfold takes the time from it",
            hint="check the store, or a proxy in front of it",
        ) from error


def second_end_ms(moment: datetime) -> int:
    """Return the last millisecond of a whole second."""
    return int(moment.timestamp()) * 1000 + 999


def owe_request(pacer: Pacer, request: Any, **_event: object) -> None:
    """Count the head of a request that is sent, as a handler of boto3's event."""
    pacer.owe(head_bytes(request.headers, str(request.url)))


def owe_answer(pacer: Pacer, response_dict: S3Answer | None, **_event: object) -> None:
    """Count an answer that was received, without an object's body, as a handler of boto3's event."""
    if response_dict is None:  # no answer was received
        return
    # The body of an object is read later, and its bytes were acquired. Any other body is already here.
    body = response_dict["body"]
    pacer.owe(head_bytes(response_dict["headers"]) + (len(body) if isinstance(body, bytes) else 0))
