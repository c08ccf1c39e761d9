"""URLs of logs: their meaning, and refused ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold.errors import ConfigError
from keyfold.store.api import StoreAccess
from keyfold.store.location import host_of, location_of, open_store, parse_url
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location, S3Store


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
def test_a_url_has_a_bucket_and_a_directory(url: str, bucket: str, topics_dir: str) -> None:
    assert parse_url(url) == (bucket, topics_dir)


@pytest.mark.parametrize(
    "url", ["", "log/topics", "/log", "http://log/topics", "s3:/log", "s3://", "s3:///topics", "s3://a b/c",
            "s3://log/a//b", "s3://log/../b", "s3://user@log/x", "s3://log?x=1"],
)  # fmt: skip
def test_an_invalid_url_is_refused_with_its_key(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(url, key="store.url")
    assert raised.value.key == "store.url"


def test_a_store_is_opened_by_url_or_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert location_of("s3://log/topics") == S3Location("log")
    for place in ("s3://log/topics", S3Location("log", region="us-east-1")):
        store = open_store(place)
        assert store.url == "s3://log"
        assert isinstance(store, S3Store)
        assert store.location.endpoint_url == "http://127.0.0.1:9"
        store.close()


def test_a_location_is_adjusted_and_resolved_without_secrets_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = StoreAccess(endpoint_url="http://127.0.0.1:9", access_key_id="a", secret_access_key="b")
    location = location_of("s3a://log/topics", access)
    assert location == S3Location("log", endpoint_url="http://127.0.0.1:9", access_key_id="a", secret_access_key="b")
    assert location.adjusted() == location
    assert location.adjusted(max_connections=40, access_key_id="") == replace(
        S3Location.of("log", access), max_connections=40, access_key_id=""
    )
    assert "b" not in repr(access)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-environment")
    assert location_of("s3://log").resolved() == S3Location("log", region="eu-west-1")


@pytest.mark.parametrize(
    ("location", "host"),
    [
        (S3Location("b", endpoint_url="http://127.0.0.1:9"), "127.0.0.1:9"),
        (S3Location("b", region="eu-west-1"), "s3.eu-west-1.amazonaws.com"),
        (S3Location("b"), "s3.amazonaws.com"),
    ],
)
def test_a_location_names_its_host_for_messages(location: S3Location, host: str) -> None:
    assert location.host == host


def test_a_store_without_a_location_is_named_by_its_url() -> None:
    assert host_of(MemoryStore()) == MemoryStore().url
    store = open_store(S3Location("b", region="eu-west-1", endpoint_url="http://127.0.0.1:9"))
    assert host_of(store) == "127.0.0.1:9"
    store.close()
