"""Every kind of reader for ten minutes, while a log is written and cleaned and replaced objects go soon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.moto import LocalS3Process
from tests.support.readers_storm import storm
from tests.support.readers_world import Pace, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark.sql.datasource")
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("KEYFOLD_SEED", "1"))
STORM_S = float(os.environ.get("KEYFOLD_STORM_S", "600"))
EACH = 6
KINDS = ("latest", "ordered", "follow", "cache", "near", "read_log", "read.format", "readStream", "latest_state")


def test_everything_read_in_a_ten_minute_storm_existed(
    local_s3: LocalS3Process, bucket: str, spark: SparkSession, tmp_path: Path
) -> None:
    location = local_s3.location(bucket)
    pace = Pace(lag_s=5.0, delete_retention_s=10.0, file_delete_delay_s=2.0, keys=300)
    tally = storm(World(location, pace), seconds=STORM_S, seed=SEED, each=EACH, session=spark, folder=tmp_path)
    assert min(tally.right[name] for name in KINDS) >= EACH
