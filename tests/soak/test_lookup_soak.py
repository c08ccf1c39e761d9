"""A hundred thousand lookups by key while the log is written, cleaned and replicated.

make soak ARGS="tests/soak/test_lookup_soak.py -s"
"""

from __future__ import annotations

import os

import pytest

from tests.support.lookup_storm import storm
from tests.support.moto import LocalS3Process

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("KEYFOLD_SEED", "1"))


def test_a_hundred_thousand_answers_are_right(local_s3: LocalS3Process, bucket: str) -> None:
    seen = storm(local_s3.location(bucket), lookups=100_000, seed=SEED)
    print(f"\n{dict(seen)}")
    assert {"present", "deleted", "absent", "purged", "long"} <= set(seen), seen
    assert seen["directories"] > 50, "directories of keys were not kept"
    assert seen["too late for an object"], "no object was ever deleted under a lookup"
