"""The compactor killed at random moments, in its short form (`tests/soak` has the long one)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compact_storm import storm
from tests.support.moto import LocalS3Process


@pytest.mark.full
def test_a_local_compactor_killed_three_times_leaves_the_log_sound(tmp_path: Path) -> None:
    with LocalS3Process() as s3:
        s3.create_bucket("storm")
        storm(s3.location("storm"), tmp_path, kills=3, seed=3, engine="local")


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.any_spark
@pytest.mark.usefixtures("spark")
def test_a_compactor_killed_three_times_leaves_the_log_sound(tmp_path: Path) -> None:
    with LocalS3Process() as s3:
        s3.create_bucket("storm")
        location = s3.location("storm")
        storm(location, tmp_path, kills=3, seed=1)
