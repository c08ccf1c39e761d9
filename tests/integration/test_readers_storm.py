"""Every kind of reader while a log is written and cleaned, in its short form (`tests/soak` has the long one)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.moto import LocalS3Process
from tests.support.readers_storm import storm
from tests.support.readers_world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark.sql.datasource")


def world_of(s3: LocalS3Process, bucket: str) -> World:
    location = s3.location(bucket)
    return World(location)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(900)  # on a busy machine turns of Spark's readers are slow, and the storm waits for them
def test_everything_read_in_a_ten_second_storm_existed(
    local_s3: LocalS3Process, bucket: str, spark: SparkSession, tmp_path: Path
) -> None:
    tally = storm(world_of(local_s3, bucket), seconds=10, seed=1, each=4, session=spark, folder=tmp_path)
    assert min(tally.right[name] for name in ("latest", "ordered", "follow", "cache", "near")) > 3
