"""Answers of S3 servers and the resulting errors: refusals, incomplete answers and silence.

The server is a script: each request takes the next answer of a list. So the tests also see exactly which requests were
sent, how often, and with which headers.
"""

from __future__ import annotations

import socket
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from botocore.loaders import JSONFileLoader

from keyfold.errors import (
    AccessDenied,
    AlreadyExists,
    BucketMissing,
    ConditionUndecided,
    ConfigError,
    KeyfoldError,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UploadLost,
)
from keyfold.store.api import Create, Update
from keyfold.store.s3 import Checksums, S3Location, S3Store
from keyfold.store.s3_answers import UploadedPart
from tests.support.pickled import sent
from tests.support.scripted_s3 import DATE, Answer, ScriptedServer, scripted_server

DATE_END_MS = 1_795_176_005_999
SECOND_BEFORE = "Fri, 20 Nov 2026 12:00:04 GMT"


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


@pytest.fixture(scope="module")
def store(running: ScriptedServer) -> Iterator[S3Store]:
    opened = S3Store(
        "bkt",
        endpoint_url=running.url,
        access_key_id="k",
        secret_access_key="s",
        read_attempts=2,
        connect_timeout_s=1,
        read_timeout_s=60,
    )
    yield opened
    opened.close()


@pytest.fixture
def server(running: ScriptedServer) -> ScriptedServer:
    running.answers.clear()
    running.asked.clear()
    return running


def error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode())


def found(data: bytes, **headers: str) -> Answer:
    return Answer(200, data, {"ETag": '"e1"', "Last-Modified": SECOND_BEFORE, **headers})


def etag(value: str = '"e1"') -> Answer:
    return Answer(200, b"", {"ETag": value})


CREATE, UPDATE = Create(), Update('"e0"')

REFUSALS = [
    (error(412, "PreconditionFailed"), CREATE, AlreadyExists),
    (error(412, "PreconditionFailed"), UPDATE, PreconditionFailed),
    (error(409, "ConditionalRequestConflict"), CREATE, ConditionUndecided),
    (error(409, "ConditionalRequestConflict"), UPDATE, ConditionUndecided),
    (error(409, "OperationAborted"), UPDATE, ConditionUndecided),
    (error(404, "NoSuchKey"), UPDATE, ObjectNotFound),
    (error(404, "NoSuchBucket"), CREATE, BucketMissing),
    (error(403, "AccessDenied"), CREATE, AccessDenied),
    (error(403, "SignatureDoesNotMatch"), CREATE, AccessDenied),
    (error(400, "ExpiredToken"), CREATE, AccessDenied),
    (error(403, "RequestTimeTooSkewed"), CREATE, AccessDenied),
    (error(500, "InternalError"), UPDATE, StoreUnavailable),
    (error(502, "BadGateway"), UPDATE, StoreUnavailable),
    (error(503, "SlowDown"), CREATE, StoreUnavailable),
    (error(400, "BadDigest"), CREATE, StoreUnavailable),
    (error(503, "ServiceUnavailable"), UPDATE, StoreUnavailable),
    (error(504, "GatewayTimeout"), UPDATE, StoreUnavailable),
    (error(429, "TooManyRequests"), UPDATE, StoreUnavailable),
    (error(400, "RequestTimeout"), UPDATE, StoreUnavailable),
    (Answer(503, b"<html>a proxy's page</html>"), UPDATE, StoreUnavailable),
    (Answer(502), UPDATE, StoreUnavailable),
    (Answer(None), UPDATE, StoreUnavailable),
    (error(400, "InvalidRequest"), CREATE, StoreError),
    (error(501, "NotImplemented"), CREATE, StoreError),
    (error(409, "ObjectParentIsFile"), CREATE, StoreError),
    # versitygw's word for any trouble in its file system between two publications, also where the object has landed
    (error(409, "ExistingObjectIsDirectory"), CREATE, StoreUnavailable),
]


@pytest.mark.parametrize(("answer", "mode", "kind"), REFUSALS, ids=lambda value: "")
def test_a_refused_put_is_sent_once_and_distinguished(
    server: ScriptedServer, store: S3Store, answer: Answer, mode: Create | Update, kind: type[StoreError]
) -> None:
    server.answers = [answer]
    with pytest.raises(StoreError) as raised:
        store.put("dir/key", b"data", mode)
    assert type(raised.value) is kind
    assert raised.value.key == "dir/key"
    assert "dir/key" in str(raised.value)
    puts = [asked for asked in server.asked if asked.method == "PUT"]
    assert len(puts) == 1
    condition = "If-None-Match" if mode is CREATE else "If-Match"
    assert puts[0].headers[condition] == ("*" if mode is CREATE else '"e0"')


def test_a_bucket_in_another_region_is_reported(server: ScriptedServer, store: S3Store) -> None:
    moved = error(301, "PermanentRedirect")
    server.answers = [Answer(301, moved.body, {"x-amz-bucket-region": "eu-central-1"})]
    with pytest.raises(StoreError, match=r"s3\.region"):
        store.put("k", b"data", CREATE)


def test_a_put_returns_the_etag_and_the_end_of_the_stores_second(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [etag()]
    result = store.put("k", b"data", CREATE)
    assert (result.etag, result.date_ms) == ('"e1"', DATE_END_MS)


def test_a_read_returns_its_times(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [found(b"abc"), Answer(200, b"abc", {"ETag": '"e1"', "Last-Modified": DATE}, date=SECOND_BEFORE)]
    blob = store.get("k")
    assert (blob.date_ms, blob.last_modified_ms) == (DATE_END_MS, DATE_END_MS - 1000)
    stale = store.get("k")
    assert stale.date_ms == stale.last_modified_ms == DATE_END_MS


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_a_store_without_a_readable_date_is_refused(server: ScriptedServer, store: S3Store, date: str | None) -> None:
    server.answers = [Answer(200, b"", {"ETag": '"e1"'}, date=date)]
    with pytest.raises(StoreError, match="Date"):
        store.put("k", b"data", CREATE)


def test_a_put_without_an_etag_is_an_error(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [Answer(200)]
    with pytest.raises(StoreError, match="ETag"):
        store.put("k", b"data", CREATE)


def test_a_silent_server_is_unavailable(server: ScriptedServer, store: S3Store) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        deaf = S3Store("bkt", endpoint_url=url, access_key_id="k", secret_access_key="s", read_timeout_s=0.2)
        with pytest.raises(StoreUnavailable):
            deaf.put("k", b"data", CREATE)
        deaf.close()


def test_a_refused_connection_is_unavailable_with_a_hint_about_the_address(store: S3Store) -> None:
    away = S3Store("bkt", endpoint_url="http://127.0.0.1:9", access_key_id="k", secret_access_key="s", read_attempts=1)
    for call in (lambda: away.put("k", b"", CREATE), lambda: away.get("k"), lambda: list(away.list(""))):
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9") as told:
            call()
        assert "store.url" in (told.value.hint or "")
    away.close()


def test_access_denied_names_the_action_and_the_key(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [error(403, "AccessDenied")]
    calls: dict[str, Callable[[], object]] = {
        "s3:PutObject": lambda: store.put("the/key", b"", CREATE),
        "s3:GetObject": lambda: store.get("the/key"),
        "s3:DeleteObject": lambda: store.delete("the/key"),
        "s3:ListBucket": lambda: list(store.list("the/key")),
        "s3:ListBucketMultipartUploads": lambda: list(store.list_uploads("the/key")),
        "s3:AbortMultipartUpload": lambda: store.abort_upload("the/key", "u"),
    }
    for action, call in calls.items():
        with pytest.raises(AccessDenied) as raised:
            call()
        assert action in str(raised.value)
        assert "the/key" in str(raised.value)


def test_missing_credentials_give_a_clear_error(monkeypatch: pytest.MonkeyPatch, server: ScriptedServer) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    store = S3Store("bkt", endpoint_url=server.url)
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        store.get("k")
    store.close()


# Reads are repeated


@pytest.mark.parametrize("first", [error(503, "SlowDown"), error(500, "InternalError"), Answer(None)])
def test_reads_lists_deletes_and_parts_are_retried(server: ScriptedServer, store: S3Store, first: Answer) -> None:
    listing = Answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
    calls: list[tuple[Answer, Callable[[], object]]] = [
        (found(b"abc"), lambda: store.get("k")),
        (listing, lambda: list(store.list(""))),
        (Answer(204), lambda: store.delete("k")),
        (etag(), lambda: store.write_part("k", "u", 1, b"part")),
    ]
    for answer, call in calls:
        server.asked.clear()
        server.answers = [first, answer]
        call()
        assert len(server.asked) == 2
        assert server.asked[0].body == server.asked[1].body


@pytest.mark.parametrize("cut", [0, 1, 999])
def test_a_broken_body_is_requested_again(server: ScriptedServer, store: S3Store, cut: int) -> None:
    whole = found(b"x" * 1000)
    broken = Answer(200, whole.body, whole.headers, cut=cut)
    server.answers = [broken, whole]
    assert store.get("k").data == b"x" * 1000
    server.answers = [broken]
    with pytest.raises(StoreUnavailable):
        store.get("k")


def test_bytes_that_do_not_match_their_checksum_are_not_returned(server: ScriptedServer, store: S3Store) -> None:
    right = b64encode(zlib.crc32(b"right").to_bytes(4, "big")).decode()
    server.answers = [found(b"wrong", **{"x-amz-checksum-crc32": right}), found(b"right")]
    assert store.get("k").data == b"right"
    server.answers = [found(b"wrong", **{"x-amz-checksum-crc32": right})]
    with pytest.raises(StoreUnavailable, match="checksum"):
        store.get("k")


def test_a_store_that_ignores_ranges_is_detected(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [found(b"0123456789")]
    with pytest.raises(StoreError, match="whole object"):
        store.get_range("k", 2, 3)
    with pytest.raises(StoreError, match="whole object"):
        store.get_range("k", 0, 3)
    assert server.asked[0].headers["Range"] == "bytes=2-4"


def test_a_head_without_a_result_checks_the_bucket(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [Answer(404), Answer(404)]
    with pytest.raises(BucketMissing):
        store.head("k")
    for bucket_answer in (Answer(200), Answer(403)):
        server.answers = [Answer(404), bucket_answer]
        with pytest.raises(ObjectNotFound):
            store.head("k")


# Completing an upload

COMPLETED = Answer(200, b'<CompleteMultipartUploadResult><ETag>"m-1"</ETag></CompleteMultipartUploadResult>')
PARTS: list[UploadedPart] = [{"PartNumber": 1, "ETag": '"p1"'}]


def complete(store: S3Store) -> str:
    return store.complete_upload("k", "u", PARTS).etag


def test_an_upload_is_completed_under_a_condition(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [COMPLETED]
    assert complete(store) == '"m-1"'
    assert server.asked[0].headers["If-None-Match"] == "*"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(412, "PreconditionFailed"), AlreadyExists),
        (error(409, "ConditionalRequestConflict"), UploadLost),
        (error(503, "SlowDown"), StoreUnavailable),
        (Answer(None), StoreUnavailable),
        (error(200, "InternalError"), StoreUnavailable),
        (error(200, "SlowDown"), StoreUnavailable),
        (Answer(200, b" \n  <?xml version='1.0'?>\n<Error><Code>InternalError</Code></Error>"), StoreUnavailable),
        (Answer(200, b""), StoreUnavailable),
        (Answer(200, COMPLETED.body, cut=30), StoreUnavailable),
        (Answer(200, b"<CompleteMultipartUploadResult><Key>k</Key></CompleteMultipartUploadResult>"), StoreUnavailable),
        (error(400, "EntityTooSmall"), StoreError),
        (error(400, "InvalidPart"), UploadLost),
    ],
    ids=lambda value: "",
)
def test_a_completion_that_fails_is_sent_once(
    server: ScriptedServer, store: S3Store, answer: Answer, kind: type[KeyfoldError]
) -> None:
    server.answers = [answer]
    with pytest.raises(KeyfoldError) as raised:
        complete(store)
    assert type(raised.value) is kind
    assert len(server.asked) == 1


def test_a_missing_upload_may_be_complete(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [error(404, "NoSuchUpload"), found(b"")]
    assert complete(store) == '"e1"'
    assert [asked.method for asked in server.asked] == ["POST", "HEAD"]


def test_a_missing_upload_without_its_object_is_lost(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [error(404, "NoSuchUpload"), Answer(404), Answer(200)]
    with pytest.raises(UploadLost):
        complete(store)


def test_the_result_of_a_missing_upload_may_stay_unknown(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [error(404, "NoSuchUpload"), Answer(503)]
    with pytest.raises(StoreUnavailable):
        complete(store)


def test_a_part_of_a_lost_upload_is_refused(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [error(404, "NoSuchUpload")]
    with pytest.raises(UploadLost):
        store.write_part("k", "u", 1, b"part")


def test_aborting_a_missing_upload_is_no_error(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [error(404, "NoSuchUpload")]
    store.abort_upload("k", "u")


# Where the bucket is


def test_a_location_can_be_pickled(server: ScriptedServer, store: S3Store) -> None:
    location = sent(store.location)
    assert location == store.location
    assert "secret" not in repr(S3Location("b", secret_access_key="secret", session_token="secret"))
    server.answers = [found(b"abc")]
    opened = location.open()
    assert opened.get("k").data == b"abc"
    assert server.asked[0].path == "/bkt/k"
    opened.close()


def test_endpoint_and_region_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, server: ScriptedServer) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_REGION", "eu-central-7")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    store = S3Store("bkt")
    server.answers = [found(b"abc")]
    store.get("a key")
    store.close()
    assert server.asked[0].path == "/bkt/a%20key"
    assert "from-environment/" in server.asked[0].headers["Authorization"]
    assert "/eu-central-7/s3/" in server.asked[0].headers["Authorization"]
    # What the driver read from its environment goes to the executors, who have another one. Secrets do not.
    assert (store.location.endpoint_url, store.location.region) == (server.url, "eu-central-7")
    assert store.location.secret_access_key is None


def test_amazon_is_addressed_by_the_buckets_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    store = S3Store("bkt", access_key_id="k", secret_access_key="s")
    assert store.location.endpoint_url is None
    url = store._retrying.generate_presigned_url("get_object", Params={"Bucket": "bkt", "Key": "k"})
    assert url.startswith("https://bkt.s3.")
    store.close()


@pytest.mark.parametrize("asked", [{"profile": "nobody"}, {"endpoint_url": "no url"}])
def test_an_invalid_location_is_a_configuration_error(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        S3Store("bkt", **asked)


@pytest.mark.parametrize(("checksums", "sent"), [("when_supported", True), ("when_required", False)])
def test_checksums_can_be_omitted_for_old_servers(server: ScriptedServer, checksums: Checksums, sent: bool) -> None:
    server.answers = [etag()]
    location = S3Location("bkt", endpoint_url=server.url, access_key_id="k", secret_access_key="s", checksums=checksums)
    store = location.open()
    store.put("k", b"data", CREATE)
    assert ("x-amz-checksum-crc32" in server.asked[0].headers) is sent
    server.answers = [Answer(200, b"<R><UploadId>u</UploadId></R>"), etag(), COMPLETED]
    upload = store.start_upload("k")
    upload.write(b"part")
    upload.complete()
    assert ("x-amz-checksum-algorithm" in server.asked[1].headers) is sent
    assert ("x-amz-checksum-crc32" in server.asked[2].headers) is sent
    store.close()


def test_a_small_body_does_not_wait_for_100_continue(server: ScriptedServer, store: S3Store) -> None:
    server.answers = [etag()]
    store.put("k", b"data", CREATE)
    assert "Expect" not in server.asked[0].headers
    store.put("k", bytes(2_000_000), CREATE)
    assert server.asked[1].headers["Expect"] == "100-continue"


def test_encryption_by_the_store_is_requested_for_each_object(server: ScriptedServer) -> None:
    asked_for = S3Location("bkt", "r", server.url, "k", "s", encryption="aws:kms", kms_key_id="key-1")
    store = asked_for.open()
    server.answers = [etag(), Answer(200, b"<R><UploadId>u</UploadId></R>")]
    store.put("one", b"data", CREATE)
    store.start_upload("large")
    store.close()
    for asked in server.asked:
        assert asked.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert asked.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"


def test_requests_name_keyfold(server: ScriptedServer, store: S3Store) -> None:
    server.answers.append(Answer(200, b"", {"ETag": "e"}))
    store.put("k", b"x", Create())
    assert server.asked[0].headers["User-Agent"].startswith("keyfold botocore/")


def test_the_models_of_services_are_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch, store: S3Store) -> None:
    """A task of Spark opens a store, and a command opens several."""

    def load(*_args: object, **_keys: object) -> NoReturn:
        raise AssertionError("read anew")

    monkeypatch.setattr(JSONFileLoader, "load_file", load)
    store.location.open().close()
