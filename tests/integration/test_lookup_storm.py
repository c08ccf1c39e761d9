"""Lookups by key over S3, while the log is written, cleaned and replicated (`tests/soak` has the long one)."""

from __future__ import annotations

import pytest

from tests.support.lookup_storm import storm
from tests.support.moto import LocalS3Process


@pytest.mark.full
def test_every_answer_is_right_in_a_short_storm(local_s3: LocalS3Process, bucket: str) -> None:
    seen = storm(local_s3.location(bucket), lookups=3000, seed=1)
    assert {"present", "deleted", "absent"} <= set(seen), seen
