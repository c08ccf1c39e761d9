"""Everything at once for an hour: see `tests.support.storm` and docs/testing.md.

make soak ARGS="tests/soak/test_storm.py -s"
STORM_SECONDS=120 STORM_SEED=7 make soak ARGS="tests/soak/test_storm.py -s"
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.storm.storm import storm_over
from tests.support.storm.traffic import BROKER
from tests.support.versitygw import Versitygw

SECONDS = float(os.environ.get("STORM_SECONDS", "3600"))
SEED = int(os.environ.get("STORM_SEED", "1"))

pytestmark = [pytest.mark.soak, pytest.mark.real, pytest.mark.kafka, pytest.mark.timeout(4 * SECONDS + 3600)]


def test_every_reader_sees_an_exact_prefix_of_the_topic_in_a_storm(tmp_path: Path) -> None:
    with (
        KafkaBroker(settings=BROKER, heap_mb=1024) as broker,
        Versitygw() as server,
        storm_over(broker, server, tmp_path, seed=SEED, seconds=SECONDS) as storm,
    ):
        summary = storm.run()
    print(f"\n{summary.table()}\n\n{summary.document()}")
