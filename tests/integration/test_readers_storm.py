"""Every kind of reader while a log is written and cleaned, in its short form (`tests/soak` has the long one)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyfold.store.s3 import S3Location
from tests.support.moto import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, LocalS3Process
from tests.support.readers_storm import storm
from tests.support.readers_world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark.sql.datasource")


def world_of(s3: LocalS3Process, bucket: str) -> World:
    location = S3Location(
        bucket, region=REGION, endpoint_url=s3.url, access_key_id=ACCESS_KEY_ID, secret_access_key=SECRET_ACCESS_KEY
    )
    return World(location)


@pytest.mark.spark
def test_what_readers_see_in_a_storm_of_twenty_seconds_existed(
    local_s3: LocalS3Process, bucket: str, spark: SparkSession, tmp_path: Path
) -> None:
    tally = storm(world_of(local_s3, bucket), seconds=20, seed=1, session=spark, folder=tmp_path)
    assert min(tally.right[name] for name in ("latest", "ordered", "follow", "cache", "near")) > 3
