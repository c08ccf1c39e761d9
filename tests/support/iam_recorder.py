"""From requests on the wire to questions to IAM, and an S3 that asks them.

    calls_of(request)        what S3 asks IAM before it answers a request, by its method, path, query and headers
    IamS3                    a local S3 that writes down every call of every user, and refuses what policies refuse

A user is an access key. One that is not known may do everything and is not written down: tests make buckets with it.

S3's rules beyond one action a request: a copied part also reads its source; whether a key that is missing is answered
with 404 or with 403 is decided by `s3:ListBucket` on the bucket, without a prefix; and with SSE-KMS, S3 asks for the
key in the caller's name.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from keyfold_demo import local_s3
from keyfold_demo.local_s3 import Answer, LocalS3
from tests.support.iam import Call, Decision, Policy, Word, decide

KEY_ARN: Final = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
REGION: Final = "us-east-1"
_USER: Final = re.compile(r"Credential=([^/]+)/")
_CONDITIONS: Final = {
    "if-match": "s3:if-match",
    "if-none-match": "s3:if-none-match",
    "x-amz-server-side-encryption": "s3:x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm": "s3:x-amz-server-side-encryption-customer-algorithm",
}
_LISTED: Final = {"prefix": "s3:prefix", "delimiter": "s3:delimiter", "max-keys": "s3:max-keys"}
_DECRYPT: Final = "kms:Decrypt"
_DATA_KEY: Final = "kms:GenerateDataKey"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of S3's API, path-style, over TLS (the test's own connection is not, and that is not checked)."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def bucket(self) -> str:
        return unquote(urlsplit(self.url).path).lstrip("/").partition("/")[0]

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.url).path).lstrip("/").partition("/")[2]

    @property
    def query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.url).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    @property
    def user(self) -> str:
        """The access key that signed it."""
        found = _USER.search(self.headers.get("authorization", ""))
        return found[1] if found else ""


def calls_of(request: Request) -> list[Call]:
    """What S3 asks before it answers. Raises `ValueError` for a request that is not known here."""
    return list(_object_calls(request) if request.key else _bucket_calls(request))


def missing_key_call(request: Request) -> Call:
    """What S3 checks for a missing key: only callers that may list the bucket get a 404."""
    return Call("s3:ListBucket", _arn(request.bucket), dict(_SECURE))


def _bucket_calls(request: Request) -> Iterator[Call]:
    query, arn = request.query, _arn(request.bucket)
    listed = {name: query[key] for key, name in _LISTED.items() if query.get(key)}
    match request.method:
        case "HEAD":
            yield Call("s3:ListBucket", arn, dict(_SECURE))
        case "GET" if "uploads" in query:
            yield Call("s3:ListBucketMultipartUploads", arn, dict(_SECURE))  # it knows no condition about the prefix
        case "GET" if "versions" in query:
            yield Call("s3:ListBucketVersions", arn, _SECURE | listed)
        case "GET" if query.get("list-type") == "2":
            yield Call("s3:ListBucket", arn, _SECURE | listed)
        case "PUT" if "versioning" in query:
            yield Call("s3:PutBucketVersioning", arn, dict(_SECURE))
        case _:
            raise ValueError(f"{request.method} {request.url}")


def _object_calls(request: Request) -> Iterator[Call]:
    arn = _arn(request.bucket, request.key)
    is_of_upload = "uploadId" in request.query
    match request.method:
        case "PUT" | "POST":
            yield from _writing_calls(request, arn)
        case "GET" if is_of_upload:
            yield Call("s3:ListMultipartUploadParts", arn, dict(_SECURE))
            yield from _key_calls(arn, _DECRYPT)
        case "GET" | "HEAD":
            yield Call("s3:GetObjectVersion" if "versionId" in request.query else "s3:GetObject", arn, dict(_SECURE))
            if request.method == "GET":
                yield from _key_calls(arn, _DECRYPT)
        case "DELETE" if is_of_upload:
            yield Call("s3:AbortMultipartUpload", arn, dict(_SECURE))
        case "DELETE" if "versionId" in request.query:
            yield Call("s3:DeleteObjectVersion", arn, dict(_SECURE))
        case "DELETE" if not request.query:
            yield Call("s3:DeleteObject", arn, dict(_SECURE))
        case _:
            raise ValueError(f"{request.method} {request.url}")


def _writing_calls(request: Request, arn: str) -> Iterator[Call]:
    """An object in one request, or an upload's beginning, parts and end. Only what makes an object has conditions."""
    query, source = request.query, unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/")
    headers = {name: request.headers[header] for header, name in _CONDITIONS.items() if header in request.headers}
    match request.method:
        case "PUT" if "uploadId" in query:
            yield Call("s3:PutObject", arn, _SECURE | {_CREATES: "false"})
            if source:
                yield Call("s3:GetObject", f"arn:aws:s3:::{source}", dict(_SECURE))
                yield from _key_calls(f"arn:aws:s3:::{source}", _DECRYPT)
            yield from _key_calls(arn, _DATA_KEY, _DECRYPT)
        case "PUT" if not query and not source:
            yield Call("s3:PutObject", arn, _SECURE | headers | {_CREATES: "true"})
            yield from _key_calls(arn, _DATA_KEY)
        case "POST" if "uploads" in query:
            yield Call("s3:PutObject", arn, _SECURE | headers | {_CREATES: "false"})
            yield from _key_calls(arn, _DATA_KEY)
        case "POST" if "uploadId" in query:
            yield Call("s3:PutObject", arn, _SECURE | headers | {_CREATES: "true"})
            yield from _key_calls(arn, _DATA_KEY, _DECRYPT)
        case _:
            raise ValueError(f"{request.method} {request.url}")


_CREATES: Final = "s3:objectcreationoperation"
_SECURE: Final = {"aws:securetransport": "true"}


def _key_calls(arn: str, *actions: str) -> Iterator[Call]:
    """The questions about the key, each twice: with a bucket key the context names the bucket, without the object."""
    via = {"kms:viaservice": f"s3.{REGION}.amazonaws.com"}
    for action in actions:
        for named in (arn.partition("/")[0], arn):
            yield Call(action, KEY_ARN, via | {"kms:encryptioncontext:aws:s3:arn": named})


def _arn(bucket: str, key: str = "") -> str:
    return f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"


@dataclass
class User:
    """A principal with policies, and its requests."""

    identity: Sequence[Policy]
    allowed: list[Call] = field(default_factory=list)
    refused: list[Call] = field(default_factory=list)
    words: set[Word] = field(default_factory=set)

    def unused(self) -> list[str]:
        """Rights that his policies give and that no call needed, as text."""
        given = frozenset[Word]().union(*(policy.words() for policy in self.identity))
        return sorted(str(word) for word in given - self.words)


class _Guard(local_s3.Application):
    """Asks the policies first."""

    def __init__(self, s3: IamS3) -> None:
        super().__init__()
        self._s3 = s3

    def answer(self, environ: dict[str, Any]) -> Answer | None:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        request = Request(environ["REQUEST_METHOD"], environ["REQUEST_URI"], headers)
        user = self._s3.users.get(request.user)
        if user is None:
            return super().answer(environ)
        if not all(self._s3.asks(user, request.bucket, call) for call in calls_of(request)):
            local_s3._read_body(environ)
            return _REFUSED
        answer = super().answer(environ)
        is_missing = answer is not None and answer.status == 404 and request.key
        if is_missing and not self._s3.asks(user, request.bucket, missing_key_call(request)):
            return _REFUSED
        return answer


class IamS3(LocalS3):
    """A local S3 with users. `bucket_policies` are those of buckets, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[str, User] = {}
        self.bucket_policies: dict[str, Policy] = {}
        self._asking = threading.Lock()
        self._server.application = _Guard(self)

    def add_user(self, name: str, *identity: Policy) -> User:
        """A user whose access key is his name."""
        self.users[name] = User(identity)
        return self.users[name]

    def asks(self, user: User, bucket: str, call: Call) -> bool:
        """Decide a call, and write it down."""
        policies = [self.bucket_policies[bucket]] if bucket in self.bucket_policies else []
        decision: Decision = decide(user.identity, policies, call)
        with self._asking:
            (user.allowed if decision.allowed else user.refused).append(call)
            user.words |= decision.words
        return decision.allowed


_REFUSED: Final = Answer(
    403,
    (("Content-Type", "application/xml"),),
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>by policy</Message></Error>',
)
