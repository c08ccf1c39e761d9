"""A replica in a storm, in its short form (`tests/soak` has the long one): see `tests.support.replica_storm`."""

from __future__ import annotations

import pytest

from tests.support.replica_scene import Scene
from tests.support.replica_storm import storm


@pytest.mark.full
def test_a_replica_whose_replicators_are_killed_at_any_request_is_always_a_state_of_its_source(between: Scene) -> None:
    between.add()
    between.keyfold("replica", "enable-compaction", *between.registered)
    report = storm(between, kills=4, seed=1)
    assert sum(report.deaths.values()) == 4
    assert min(report.tally.right[name] for name in ("ordered", "latest", "follow")) > 1
