"""What readers on a real Spark share: a log in a folder, and by which engine it is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark_logs import FolderLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(tmp_path: Path) -> FolderLog:
    return FolderLog(tmp_path)


@pytest.fixture
def jvm(spark: SparkSession) -> str:
    """The engine that needs an Avro reader, which Spark has in itself from version 4 on."""
    from keyfold.spark.jvm import has_class
    from keyfold.spark.paths import AVRO

    if not has_class(spark, AVRO):
        pytest.skip("this Spark has no Avro reader")
    return "jvm"


@pytest.fixture(params=["jvm", "keyfold"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("jvm") if request.param == "jvm" else request.param)
