"""Translation of S3's answers into keyfold's errors.

Every row answers the same question: did the request certainly not land (a refusal), may the same request be retried
(409), or is the result unknown (timeout, lost connection, 5xx, throttling)? Error codes take precedence over the HTTP
status, because S3 sends some timeouts as 400 and some errors inside a 200.
"""

from __future__ import annotations

from typing import Final

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from keyfold.errors import (
    AccessDenied,
    AlreadyExists,
    BucketMissing,
    ConditionUndecided,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UploadLost,
)
from keyfold.store.api import Create, PutMode

FAILURES: Final = (boto.ClientError, boto.BotoCoreError, HTTPError, OSError)
"""Exceptions of boto3 and of the streams that it returns."""

_UNKNOWN_CODES: Final = frozenset({
    "InternalError", "InternalServerError", "OperationTimedOut", "RequestTimeout", "RequestTimeoutException",
    "ServiceUnavailable", "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException",
    "RequestThrottled", "RequestLimitExceeded", "TooManyRequests", "503 SlowDown",
    "BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch",  # damaged in transit: a retry may succeed
    "ExistingObjectIsDirectory",  # versitygw, for any error in its file system while it published the object
})  # fmt: skip
_DENIED_CODES: Final = frozenset({
    "AccessDenied", "AllAccessDisabled", "AccountProblem", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch",
})  # fmt: skip
_CLOCK_IS_OFF: Final = "RequestTimeTooSkewed"
_WRONG_REGION_CODES: Final = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301"}
)
# Another process has completed it, aborted it, or sent one of its parts again.
_UPLOAD_LOST_CODES: Final = frozenset({"NoSuchUpload", "InvalidPart"})
# An impossible name on stores that keep objects as files: `o` together with `o/x`. A retry does not help.
_NAME_CONFLICTS: Final = frozenset({"ObjectParentIsFile", "ParentIsObject"})

_NO_ANSWER: Final = (
    boto.HTTPClientError,  # read timeouts, connections closed in the middle, broken streams
    boto.ConnectionError,
    boto.IncompleteReadError,
    boto.ChecksumError,
    boto.FlexibleChecksumError,
    boto.CredentialRetrievalError,  # the metadata service is unavailable: nothing was sent, and a retry may succeed
    boto.TokenRetrievalError,
    HTTPError,
    OSError,
)
_NOT_REACHED: Final = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_NO_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.NoAuthTokenError,
    boto.SSOError,
)


def code_of(error: BaseException) -> str:
    """Return the S3 error code of a boto3 exception, or an empty string."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, boto.ClientError) else ""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of a boto3 exception, or 0."""
    if not isinstance(error, boto.ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def translate(error: Exception, *, bucket: str, key: str, action: str, mode: PutMode | None = None) -> StoreError:
    """Return keyfold's error for an exception of boto3 during `action` (`s3:GetObject`...) on `key`."""
    if isinstance(error, boto.ClientError):
        return _of_answer(error, bucket=bucket, key=key, action=action, mode=mode)
    said = f"{action} on bucket {bucket}: {error}"
    if isinstance(error, _NO_CREDENTIALS):
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or aws.access.key.id and its secret"
        return AccessDenied(key, said, hint=hint)
    if isinstance(error, _NOT_REACHED):
        return StoreUnavailable(
            key,
            said,
            hint="check that the store is running and that its address is right (store.url, AWS_ENDPOINT_URL)",
        )
    if isinstance(error, _NO_ANSWER):
        return StoreUnavailable(key, said)
    # Not an S3 answer (a proxy's page, truncated XML): whether the request landed is unknown.
    if type(error).__name__ == "ResponseParserError":
        return StoreUnavailable(key, said)
    return StoreError(key, said)


def _of_answer(error: boto.ClientError, *, bucket: str, key: str, action: str, mode: PutMode | None) -> StoreError:
    code, status = code_of(error), status_of(error)
    text = str(error.response.get("Error", {}).get("Message") or "").strip()
    said = f"{action} on bucket {bucket} answered {status} {code}" + (f" ({text})" if text and text != code else "")
    condition_false = AlreadyExists if isinstance(mode, Create) else PreconditionFailed
    unknown = code in _UNKNOWN_CODES or status == 429 or (status >= 500 and status != 501)
    rules: tuple[tuple[bool, type[StoreError], str | None], ...] = (
        (code == "NoSuchBucket", BucketMissing, f"create bucket {bucket}, or check s3.bucket.name"),
        (code in _UPLOAD_LOST_CODES, UploadLost, None),
        (unknown, StoreUnavailable, None),
        (
            code == _CLOCK_IS_OFF,
            AccessDenied,
            "the clocks of this machine and the store differ too much: correct this machine's clock",
        ),
        (code in _DENIED_CODES or status in {401, 403}, AccessDenied, f"the credentials need {action} on this key"),
        (status == 412, condition_false, None),
        (status == 409 and code not in _NAME_CONFLICTS, ConditionUndecided, None),
        (status == 404, ObjectNotFound, None),
        (code in _WRONG_REGION_CODES, StoreError, "the bucket is in another region: set s3.region"),
    )
    for applies, kind, hint in rules:
        if applies:
            return kind(key, said, hint=hint, code=code)
    return StoreError(key, said, code=code)
