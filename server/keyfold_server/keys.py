"""The endpoints that answer by key.

A key in a path is its bytes, percent-encoded, so that every key can be asked for. The answer to a request for one key
is the value as it is in the log, or the whole record if `Accept` asks for JSON. Its ETag names the record: the log's
id, the partition and the offset. A record never changes at its offset, so 304 tells a client that it has the newest.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Final
from urllib.parse import unquote, unquote_to_bytes

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from keyfold.cli.output import text
from keyfold.cli.typed import Printer
from keyfold.formats.format import FORMAT_NAMES
from keyfold.http_server import errors
from keyfold.http_server.json_body import JSON_BODY
from keyfold.log.record import Record
from keyfold.read.key_directory import RecordsTooLarge
from keyfold.read.lookup import Found
from keyfold_server.lookups import TopicLookups

KEYS_MAX: Final = 1000
HISTORY_MAX: Final = 10_000
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Keys and values of an answer, unless it has one record only. Each of the server's threads may hold so much."""
_ETAGS_CHARACTERS_MAX: Final = 4096
_FORMATS: Final = "^(" + "|".join(FORMAT_NAMES) + ")$"

router = APIRouter(tags=["keys"])


@dataclass(frozen=True, slots=True)
class ServerBackend:
    """What the endpoints and the pages answer from. `formats` are the server's: `key_format` and `value_format`."""

    lookups: TopicLookups
    formats: Mapping[str, str]

    def printer(self, topic: str, key_format: str | None = None, value_format: str | None = None) -> Printer:
        """Return what writes records of a topic as JSON, in the formats of a request or else in the server's."""
        log = self.lookups.log(topic)
        chosen = {
            "key_format": key_format or self.formats["key_format"],
            "value_format": value_format or self.formats["value_format"],
        }
        return Printer(log.store, log.topics_dir, topic, chosen, hint="ask for {part}_format=bytes to have its bytes")


def _backend(request: Request) -> ServerBackend:
    found: ServerBackend = request.app.state.backend
    return found


Behind = Annotated[ServerBackend, Depends(_backend)]
Partition = Annotated[int | None, Query(ge=0, le=2**31 - 1, description="Look in this partition only.")]
KeyFormat = Annotated[str | None, Query(pattern=_FORMATS, description="How to decode keys in JSON.")]
ValueFormat = Annotated[str | None, Query(pattern=_FORMATS, description="How to decode values in JSON.")]


class Bytes64(BaseModel):
    """Bytes that are not UTF-8."""

    base64: str


class KeysAsked(BaseModel):
    """Many keys of one topic. A key is a text, or {"base64": ...}, as JSON answers have it."""

    keys: list[str | Bytes64] = Field(min_length=1, max_length=KEYS_MAX)
    partition: int | None = Field(None, ge=0, le=2**31 - 1)


@router.get(
    "/topics/{topic}/keys/{key}",
    operation_id="getKey",
    response_class=Response,
    responses={
        200: {
            "description": "The value's bytes, or the record as JSON if `Accept` asks for it.",
            "content": {"application/octet-stream": {}, "application/json": {}},
        },
        304: {"description": "The client has this record: `If-None-Match` names its ETag."},
    },
)
def get_key(
    behind: Behind,
    request: Request,
    topic: str,
    key: str,
    partition: Partition = None,
    key_format: KeyFormat = None,
    value_format: ValueFormat = None,
) -> Response:
    """Return the last record of a key. 404 says that it has none, and up to which offset the log was looked at."""
    name, data = unquote(topic), unquote_to_bytes(key)
    found = behind.lookups.ask(name, lambda lookup: lookup.get(data, partition))
    record = found.record
    if record is None or record.value is None:
        return _no_value(name, found)
    headers = _headers(found, record)
    if not {headers["ETag"], "*"}.isdisjoint(_etags(request.headers.get("if-none-match", ""))):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if "application/json" in request.headers.get("accept", ""):
        document = behind.printer(name, key_format, value_format).json(found.partition or 0, record)
        return Response(document, media_type="application/json", headers=headers)
    return Response(record.value, media_type="application/octet-stream", headers=headers)


@router.get("/topics/{topic}/keys/{key}/history", operation_id="getHistory", response_class=Response)
def get_history(
    behind: Behind,
    topic: str,
    key: str,
    partition: Partition = None,
    limit: Annotated[int, Query(ge=1, le=HISTORY_MAX, description="The most of each partition.")] = HISTORY_MAX,
    key_format: KeyFormat = None,
    value_format: ValueFormat = None,
) -> Response:
    """Return every record of a key that the log still has, by partition and offset; of very many the newest."""
    name, data = unquote(topic), unquote_to_bytes(key)

    def newest_of_each(count: int) -> list[tuple[int, Record]]:
        return behind.lookups.ask(
            name, lambda lookup: lookup.history(data, partition, limit=count, max_bytes=ANSWER_BYTES_MAX)
        )

    try:
        records, has_older = newest_of_each(limit + 1), "false"
    except RecordsTooLarge:  # without the one more that tells whether there are older ones, it may be little enough
        records, has_older = newest_of_each(limit), "true"
    printer = behind.printer(name, key_format, value_format)
    shown = list[str]()
    for number, group in groupby(records, key=itemgetter(0)):
        newest = [record for _, record in group]
        has_older = "true" if len(newest) > limit else has_older
        shown += [printer.json(number, record) for record in newest[-limit:]]
    body = f'{{"records":[{",".join(shown)}],"has_older":{has_older}}}'
    return Response(body, media_type="application/json", headers=_NO_CACHE)


@router.post("/topics/{topic}/keys", dependencies=[JSON_BODY], operation_id="getKeys", response_class=Response)
def get_keys(
    behind: Behind, topic: str, asked: KeysAsked, key_format: KeyFormat = None, value_format: ValueFormat = None
) -> Response:
    """Return the last records of many keys. A key without a record, and a deleted one, is left out."""
    name = unquote(topic)
    wanted = [_key_bytes(each) for each in asked.keys]
    found = behind.lookups.ask(
        name, lambda lookup: lookup.get_many(wanted, asked.partition, max_bytes=ANSWER_BYTES_MAX)
    )
    printer = behind.printer(name, key_format, value_format)
    shown = [
        printer.json(each.partition, each.record)
        for each in found.values()
        if each.partition is not None and each.record is not None and each.record.value is not None
    ]
    ends = ",".join(f'"{number}":{end}' for number, end in sorted(_next_offsets(found).items()))
    body = f'{{"records":[{",".join(shown)}],"next_offsets":{{{ends}}}}}'
    return Response(body, media_type="application/json", headers=_NO_CACHE)


_NO_CACHE: Final = {"Cache-Control": "no-cache"}


def _next_offsets(found: Mapping[bytes, Found]) -> Mapping[int, int]:
    return next(iter(found.values())).next_offsets


def _key_bytes(key: str | Bytes64) -> bytes:
    """Return the bytes of a key. Raises `RequestRefused`."""
    if isinstance(key, str):
        return key.encode()
    try:
        return base64.b64decode(key.base64, validate=True)
    except (binascii.Error, ValueError):
        raise errors.bad_request(f"{key.base64[:40]!r} is not Base64") from None


def _headers(found: Found, record: Record) -> dict[str, str]:
    return {
        **_NO_CACHE,
        "ETag": f'"{found.log_id}:{found.partition}:{record.offset}"',
        "Keyfold-Partition": str(found.partition),
        "Keyfold-Offset": str(record.offset),
        "Keyfold-Timestamp": str(record.timestamp),
        "Vary": "Accept",
    }


def _etags(if_none_match: str) -> frozenset[str]:
    """Return the ETags of `If-None-Match`, or `*`; a weak one counts as the same (RFC 9110, 13.1.2)."""
    given = if_none_match[:_ETAGS_CHARACTERS_MAX].split(",")
    return frozenset(each.strip().removeprefix("W/") for each in given)


def _no_value(topic: str, found: Found) -> JSONResponse:
    """Return 404 with the offset before which the log was looked at, of each partition."""
    ends = dict(sorted(found.next_offsets.items()))
    key = text(found.key)
    if found.record is not None:
        message = f"key `{key}` of `{topic}` was deleted at offset {found.record.offset} of partition {found.partition}"
    elif len(ends) == 1:
        ((number, end),) = ends.items()
        message = f"key `{key}` of `{topic}` has no record up to offset {end} of partition {number}"
    else:
        message = f"key `{key}` of `{topic}` has no record up to the offsets in `next_offsets`"
    body = {"error_code": 404, "message": message, "next_offsets": {str(number): end for number, end in ends.items()}}
    return JSONResponse(body, HTTPStatus.NOT_FOUND, dict(_NO_CACHE))
