"""Requests of a copy inside a store and of a resumed upload, and unusual answers to them."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Iterator

import pytest

from keyfold.errors import AccessDenied, ObjectNotFound, StoreError, StoreUnavailable
from keyfold.store.s3 import S3Store
from keyfold.store.s3_uploads import COPY_BYTES_MAX
from tests.support.scripted_s3 import Answer, ScriptedServer, scripted_server

DIGEST = hashlib.sha256(b"bytes").digest()
SUM = b64encode(DIGEST).decode()
BEGUN = Answer(200, b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
COPIED = Answer(
    200, f'<CopyPartResult><ETag>"p1"</ETag><ChecksumSHA256>{SUM}</ChecksumSHA256></CopyPartResult>'.encode()
)
COMPLETED = Answer(200, b'<CompleteMultipartUploadResult><ETag>"m-1"</ETag></CompleteMultipartUploadResult>')
GONE = Answer(204)


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


@pytest.fixture
def server(running: ScriptedServer) -> ScriptedServer:
    running.answers.clear()
    running.asked.clear()
    return running


def opened(server: ScriptedServer, bucket: str, **options: str) -> S3Store:
    return S3Store(
        bucket,
        endpoint_url=server.url,
        access_key_id="k",
        secret_access_key="s",
        read_attempts=1,
        connect_timeout_s=1,
        read_timeout_s=60,
        **options,  # type: ignore[arg-type]  # fields by name, of any type
    )


@pytest.fixture
def stores(server: ScriptedServer) -> Iterator[tuple[S3Store, S3Store]]:
    source, target = opened(server, "from"), opened(server, "to", encryption="AES256")
    yield source, target
    source.close()
    target.close()


def error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode())


def test_a_copy_is_an_upload_with_one_part(server: ScriptedServer, stores: tuple[S3Store, S3Store]) -> None:
    source, target = stores
    server.answers = [BEGUN, COPIED, COMPLETED]
    copied = target.start_copy(source, "t/partition=0/a b.avro", "k", 5)
    assert copied is not None
    assert copied.sha256 == DIGEST
    assert copied.complete().etag == '"m-1"'
    begin, part, complete = server.asked
    assert (begin.method, begin.headers["x-amz-checksum-algorithm"]) == ("POST", "SHA256")
    assert begin.headers["x-amz-server-side-encryption"] == "AES256"
    assert (part.method, part.headers["x-amz-copy-source"]) == ("PUT", "from/t/partition%3D0/a%20b.avro")
    assert "partNumber=1" in part.path
    assert complete.headers["If-None-Match"] == "*"
    assert SUM.encode() in complete.body
    assert b"<PartNumber>1</PartNumber>" in complete.body


@pytest.mark.parametrize(
    "answer", [Answer(200, b'<CopyPartResult><ETag>"p1"</ETag></CopyPartResult>'), Answer(200, b"<CopyPartResult/>")]
)
def test_a_copy_without_the_stores_checksum_is_aborted(
    server: ScriptedServer, stores: tuple[S3Store, S3Store], answer: Answer
) -> None:
    server.answers = [BEGUN, answer, GONE]
    assert stores[1].start_copy(stores[0], "a", "k", 5) is None
    assert [asked.method for asked in server.asked] == ["POST", "PUT", "DELETE"]


@pytest.mark.parametrize(
    ("answer", "kind", "key"),
    [
        (error(404, "NoSuchKey"), ObjectNotFound, "a"),
        (error(403, "AccessDenied"), AccessDenied, "k"),
        (error(501, "NotImplemented"), StoreError, "k"),
        (error(503, "SlowDown"), StoreUnavailable, "k"),
        (error(200, "InternalError"), StoreUnavailable, "k"),
    ],
    ids=lambda value: "",
)
def test_a_copy_that_fails_leaves_no_upload(
    server: ScriptedServer, stores: tuple[S3Store, S3Store], answer: Answer, kind: type[StoreError], key: str
) -> None:
    server.answers = [BEGUN, answer, GONE]
    with pytest.raises(StoreError) as raised:
        stores[1].start_copy(stores[0], "a", "k", 5)
    assert type(raised.value) is kind
    assert raised.value.key == key
    assert [asked.method for asked in server.asked] == ["POST", "PUT", "DELETE"]


def test_a_copy_that_is_not_possible_sends_no_request(server: ScriptedServer, stores: tuple[S3Store, S3Store]) -> None:
    source, target = stores
    plain = opened(server, "to", checksums="when_required")
    assert target.start_copy(source, "a", "k", 0) is None
    assert target.start_copy(source, "a", "k", COPY_BYTES_MAX + 1) is None
    assert plain.start_copy(source, "a", "k", 5) is None
    assert server.asked == []
    plain.close()


UPLOADS = Answer(
    200,
    b"<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>u1</UploadId>"
    b"<Initiated>2026-11-20T12:00:00Z</Initiated></Upload></ListMultipartUploadsResult>",
)
PARTS = [b"a" * 10, b"b" * 12, b"c"]


def parts(numbers: range, more: bool = False) -> Answer:
    rows = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;p{n}&quot;</ETag><Size>{len(PARTS[n - 1])}</Size>"
        f"<ChecksumCRC32>{b64encode(zlib.crc32(PARTS[n - 1]).to_bytes(4, 'big')).decode()}</ChecksumCRC32></Part>"
        for n in numbers
    )
    marker = f"<NextPartNumberMarker>{numbers[-1]}</NextPartNumberMarker>" if more else ""
    told = f"<ListPartsResult><IsTruncated>{str(more).lower()}</IsTruncated>{marker}{rows}</ListPartsResult>"
    return Answer(200, told.encode())


def test_all_pages_of_parts_are_listed(server: ScriptedServer, stores: tuple[S3Store, S3Store]) -> None:
    server.answers = [UPLOADS, parts(range(1, 3), more=True), parts(range(3, 4)), COMPLETED]
    upload = stores[1].resume_upload("k")
    assert upload is not None
    assert "part-number-marker=2" in server.asked[-1].path
    assert not upload.keep(b"x" * len(PARTS[0])), "of the same size, and with other bytes"
    assert [upload.keep(part) for part in PARTS] == [True] * 3
    upload.complete()
    body = server.asked[-1].body.decode()
    assert all(f"<PartNumber>{n}</PartNumber>" in body for n in (1, 2, 3))
    assert body.count("ChecksumCRC32>") == 6


def test_an_upload_that_disappeared_is_not_continued(server: ScriptedServer, stores: tuple[S3Store, S3Store]) -> None:
    server.answers = [UPLOADS, error(404, "NoSuchUpload")]
    assert stores[1].resume_upload("k") is None


def test_errors_of_a_store_name_the_host(server: ScriptedServer, stores: tuple[S3Store, S3Store]) -> None:
    server.answers = [error(403, "AccessDenied")]
    for call in (lambda: stores[0].get("k"), lambda: list(stores[0].list("k")), lambda: stores[0].resume_upload("k")):
        with pytest.raises(AccessDenied) as raised:
            call()
        assert raised.value.host == server.url.removeprefix("http://")
