"""The S3 store continues with other credentials than it was opened with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from keyfold.errors import AccessDenied, ConfigError
from keyfold.store.api import Create
from keyfold.store.s3 import S3Store
from tests.support.scripted_s3 import Answer, Asked, ScriptedServer, scripted_server

LANDED = Answer(200, b"", {"ETag": '"e1"'})
REFUSED = Answer(403, b"<Error><Code>InvalidAccessKeyId</Code><Message>said so</Message></Error>")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


def key_of(asked: Asked) -> str:
    """Return the access key id that signed a request."""
    return asked.headers["Authorization"].partition("Credential=")[2].partition("/")[0]


def test_a_store_continues_with_renewed_credentials(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """boto3 reads a replaced credentials file again; an unfinished upload continues."""
    credentials = tmp_path / "credentials"

    def write(key_id: str) -> None:
        credentials.write_text(f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = s\n")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    write("old")
    opened = S3Store("bkt", endpoint_url=server.url, region="us-east-1", read_timeout_s=60)
    upload_id = b"<R><Bucket>bkt</Bucket><Key>u</Key><UploadId>id</UploadId></R>"
    server.answers[:] = [Answer(200, upload_id), REFUSED]
    upload = opened.start_upload("u")
    write("new")
    with pytest.raises(AccessDenied):
        upload.write(b"part")
    assert {key_of(asked) for asked in server.asked} == {"old"}
    server.asked.clear()
    server.answers[:] = [LANDED]
    for _ in range(3):  # whatever is left of the time before is closed, not what works now
        opened.renew(opened.location)
        upload.write(b"part")
        opened.put("k", b"x", Create())
    assert [key_of(asked) for asked in server.asked] == ["new"] * 6
    opened.close()


def test_a_store_without_new_credentials_keeps_the_old_ones(
    server: ScriptedServer,
) -> None:
    store = S3Store("bkt", endpoint_url=server.url, access_key_id="k", secret_access_key="s", region="us-east-1")
    server.answers[:] = [LANDED]
    with pytest.raises(ConfigError, match="no-such-profile"):
        store.renew(replace(store.location, profile="no-such-profile"))
    store.put("k", b"x", Create())
    assert key_of(server.asked[-1]) == "k"
    store.close()
