"""A hundred thousand lookups by key while the log is written, cleaned and replicated, and directories of keys are kept.

make soak ARGS="tests/soak/test_lookup_soak.py -s"

The store is versitygw, whose answers cost less than moto's; the short storm in `tests/integration` has moto.
"""

from __future__ import annotations

import os

import pytest

from tests.support.lookup_storm import storm
from tests.support.versitygw import Versitygw

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("KEYFOLD_SEED", "1"))


def test_a_hundred_thousand_answers_are_right() -> None:
    with Versitygw() as server:
        server.create_bucket("lookups")
        seen = storm(server.location("lookups"), lookups=100_000, seed=SEED)
    print(f"\n{dict(seen)}")
    assert {"present", "deleted", "absent", "purged", "long"} <= set(seen), seen
    assert seen["directories"] > 50, "directories of keys were not kept"
    assert seen["too late for an object"], "no object was ever deleted under a lookup"
