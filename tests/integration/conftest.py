"""What integration tests share.

log, jvm, engine      readers on a real Spark: a log in a folder, and by which engine it is read
between               a source and its replica on two S3 servers with credentials of their own
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark_logs import FolderLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.moto import LocalS3Process
    from tests.support.replica_scene import Scene
    from tests.support.versitygw import Versitygw


@pytest.fixture
def log(tmp_path: Path) -> FolderLog:
    return FolderLog(tmp_path)


@pytest.fixture
def jvm(spark: SparkSession) -> str:
    """The engine that needs an Avro reader, which Spark has in itself from version 4 on."""
    from keyfold.spark.dataframe.paths import AVRO
    from keyfold.spark.jvm import has_class

    if not has_class(spark, AVRO):
        pytest.skip("this Spark has no Avro reader")
    return "jvm"


@pytest.fixture(params=["jvm", "keyfold"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("jvm") if request.param == "jvm" else request.param)


@pytest.fixture(scope="session")
def _far_versitygw() -> Iterator[Versitygw]:
    from tests.support.versitygw import Versitygw

    with Versitygw(access_key_id="farkey", secret_access_key="farsecret") as running:
        yield running


@pytest.fixture(scope="session")
def _far_moto() -> Iterator[LocalS3Process]:
    from tests.support.moto import LocalS3Process

    with LocalS3Process() as running:
        yield running


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.real)])
def between(
    request: pytest.FixtureRequest, local_s3: LocalS3Process, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Scene]:
    """A source on moto and its replica on another server, with credentials that the other one does not know."""
    from tests.support.moto import ACCESS_KEY_ID, SECRET_ACCESS_KEY
    from tests.support.replica_scene import Account, scene

    far = request.getfixturevalue(f"_far_{request.param}")
    source = Account(local_s3, ACCESS_KEY_ID, SECRET_ACCESS_KEY)
    with scene(source, Account(far, "farkey", "farsecret"), capsys.readouterr, tmp_path) as made:
        yield made
