"""A replica between two real servers through some sixty kills, with rivals and unavailable sides."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.moto import ACCESS_KEY_ID, SECRET_ACCESS_KEY, LocalS3Process
from tests.support.replica_scene import Account, Scene, scene
from tests.support.replica_storm import storm
from tests.support.versitygw import Versitygw

pytestmark = [pytest.mark.soak, pytest.mark.real, pytest.mark.timeout(7200)]

SEED = int(os.environ.get("KEYFOLD_SEED", "1"))
KILLS = int(os.environ.get("KEYFOLD_KILLS", "60"))


@pytest.fixture(params=["from moto", "to moto"])
def far_apart(
    request: pytest.FixtureRequest, local_s3: LocalS3Process, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Scene]:
    with Versitygw(access_key_id="farkey", secret_access_key="farsecret") as server:
        near, far = Account(local_s3, ACCESS_KEY_ID, SECRET_ACCESS_KEY), Account(server, "farkey", "farsecret")
        if request.param == "to moto":
            near, far = far, near
        with scene(near, far, capsys.readouterr, tmp_path) as made:
            yield made


@pytest.mark.parametrize("rivals", [False, True], ids=["alone", "with rivals"])
def test_a_replica_through_sixty_kills_is_always_a_state_of_its_source(far_apart: Scene, rivals: bool) -> None:
    far_apart.add()
    far_apart.keyfold("replica", "enable-compaction", *far_apart.registered)
    report = storm(far_apart, kills=KILLS, seed=SEED, partitions=3, rivals=rivals)
    assert sum(report.deaths.values()) == KILLS
    assert min(report.tally.right[name] for name in ("ordered", "latest", "follow")) > 5
