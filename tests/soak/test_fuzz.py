"""Every decoder that reads the bucket, Kafka or HTTP is given an hour of objects that no writer made."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.bounded import Bounded
from tests.support.fuzz.bounded_run import Tally, fuzz_batch, told
from tests.support.fuzz.targets import TARGETS

FUZZ_S = float(os.environ.get("FUZZ_SECONDS", "3600"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
_TURN_S = 20.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(int(FUZZ_S) + 3600)]


def test_an_hour_of_fuzzing_finds_nothing(tmp_path: Path) -> None:
    tallies = {name: Tally() for name in TARGETS}
    until_s = time.monotonic() + FUZZ_S
    with Bounded() as bounded:
        # Turn by turn: a run that is stopped early has tried each target.
        while time.monotonic() < until_s:
            for name, tally in tallies.items():
                turn_s = min(_TURN_S, FUZZ_S / len(TARGETS))
                fuzz_batch(bounded, name, tally, seed=SEED, folder=tmp_path, seconds=turn_s)
            bounded.end()  # what a decoder keeps in memory begins from nothing
    for name, tally in tallies.items():
        print(tally.line(name))
    findings = [finding for tally in tallies.values() for finding in tally.findings]
    assert not findings, "\n\n".join(map(told, findings))
