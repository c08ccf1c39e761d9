"""Servers for tests, one of each for a pytest process, started when a test first asks for them.

Under xdist every worker has its own, but for the broker, which all workers of a run share. Buckets and topics get fresh
names, because a server outlives the test that uses it.

    broker      a real Kafka (marks: `kafka`); private_broker is one that a test may freeze
    topic       a function that makes a topic with a fresh name
    local_s3    moto behind one lock in a process of its own; faults are cleared after each test
    bucket      a fresh bucket on it
    location    the same, for tests that open stores themselves
    versitygw   an S3 server with real conditions (marks: `real`)
    spark       a local Spark session that the compactor finds and uses too (marks: `spark`)
"""

from __future__ import annotations

import gc
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings

from keyfold_demo.loopback import without_proxy
from tests.support.quick_starts import start_quickly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keyfold.store.s3 import S3Location
    from tests.support.kafka import KafkaBroker
    from tests.support.moto import LocalS3Process
    from tests.support.versitygw import Versitygw

# Of this process and its children: the servers below are on loopback, where no proxy can reach them.
os.environ.update(without_proxy(os.environ))
start_quickly()

# A busy machine is no failure, and a failing example can be repeated from what is printed.
settings.register_profile("keyfold", deadline=None, print_blob=True)
settings.load_profile("keyfold")

MakeTopic = Callable[..., str]


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests, which live as long as the run, from garbage collections."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(autouse=True)
def _logging_as_found() -> Iterator[None]:
    """A command that a test runs in this process sets up logging to streams that are closed when the test ends."""
    yield
    structlog.reset_defaults()
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(handler)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    from tests.support.shared_broker import broker_of_run

    with broker_of_run(tmp_path_factory.getbasetemp(), os.environ) as running:
        yield running


@pytest.fixture(scope="module")
def private_broker() -> Iterator[KafkaBroker]:
    """A broker that a test may freeze or configure."""
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


@pytest.fixture
def location(local_s3: LocalS3Process, bucket: str) -> S3Location:
    return local_s3.location(bucket)


@pytest.fixture(scope="session")
def versitygw() -> Iterator[Versitygw]:
    from tests.support.versitygw import Versitygw

    with Versitygw() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from keyfold_compactor.spark.session import spark_session

    with spark_session("keyfold-tests", {"spark.master": "local[2]"}) as session:
        yield session
