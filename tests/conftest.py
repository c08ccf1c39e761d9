"""Servers for tests, one of each for a pytest process, started when a test first asks for them.

Under xdist every worker has its own, so tests share nothing but the jars and binaries in `.cache`. Buckets and topics
get fresh names, because a server outlives the test that uses it.

    broker      a real Kafka (marks: `kafka`)
    topic       a function that makes a topic with a fresh name
    local_s3    moto behind one lock in a process of its own; faults are cleared after each test
    bucket      a fresh bucket on it
    versitygw   an S3 server with real conditions (marks: `real`)
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.kafka import KafkaBroker
    from tests.support.moto import LocalS3Process
    from tests.support.versitygw import Versitygw

MakeTopic = Callable[..., str]


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def _no_aws_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own account, profile and endpoint play no part."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    from tests.support.kafka import KafkaBroker

    with KafkaBroker() as running:
        yield running


@pytest.fixture
def topic(broker: KafkaBroker) -> MakeTopic:
    """`topic(partitions=1, config={...}, name=None)` makes a topic and gives its name."""

    def make(partitions: int = 1, config: Mapping[str, str] | None = None, name: str | None = None) -> str:
        chosen = name or fresh("topic")
        broker.create_topic(chosen, partitions, config)
        return chosen

    return make


@pytest.fixture(scope="session")
def _local_s3() -> Iterator[LocalS3Process]:
    from tests.support.moto import LocalS3Process

    with LocalS3Process() as running:
        yield running


@pytest.fixture
def local_s3(_local_s3: LocalS3Process) -> Iterator[LocalS3Process]:
    yield _local_s3
    _local_s3.set_faults()


@pytest.fixture
def bucket(local_s3: LocalS3Process) -> str:
    return local_s3.create_bucket(fresh("bucket"))


@pytest.fixture(scope="session")
def versitygw() -> Iterator[Versitygw]:
    from tests.support.versitygw import Versitygw

    with Versitygw() as running:
        yield running
