"""URLs of logs: what they mean, and which are refused."""

from __future__ import annotations

import pytest

from keyfold.errors import ConfigError
from keyfold.store.location import location_of, open_store, parse_url
from keyfold.store.s3 import S3Location


@pytest.mark.parametrize(
    ("url", "bucket", "topics_dir"),
    [
        ("s3://log/topics", "log", "topics"),
        ("s3://log/topics/", "log", "topics"),
        ("s3://log", "log", ""),
        ("s3://log/", "log", ""),
        ("s3a://my.bucket-1/a/b=c/d", "my.bucket-1", "a/b=c/d"),
    ],
)
def test_a_url_is_a_bucket_and_a_directory(url: str, bucket: str, topics_dir: str) -> None:
    assert parse_url(url) == (bucket, topics_dir)


@pytest.mark.parametrize(
    "url", ["", "log/topics", "/log", "http://log/topics", "s3:/log", "s3://", "s3:///topics", "s3://a b/c",
            "s3://log/a//b", "s3://log/../b", "s3://user@log/x", "s3://log?x=1"],
)  # fmt: skip
def test_what_is_no_url_of_a_log_is_refused_by_key(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(url, key="store.url")
    assert raised.value.key == "store.url"


def test_a_store_is_opened_by_url_or_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert location_of("s3://log/topics") == S3Location("log")
    for place in ("s3://log/topics", S3Location("log", region="us-east-1")):
        store = open_store(place)
        assert store.url == "s3://log"
        assert store.location.endpoint_url == "http://127.0.0.1:9"
        store.close()
