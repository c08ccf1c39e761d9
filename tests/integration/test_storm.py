"""The storm over everything at once, in its short form; tests/soak has the one of an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.storm.storm import storm_over
from tests.support.storm.traffic import BROKER
from tests.support.versitygw import Versitygw

pytestmark = [pytest.mark.real, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]


def test_a_half_minute_storm_breaks_no_guarantee(tmp_path: Path) -> None:
    with (
        KafkaBroker(settings=BROKER) as broker,
        Versitygw() as server,
        storm_over(broker, server, tmp_path, seed=5, seconds=30) as storm,
    ):
        summary = storm.run()
    print(f"\n{summary.table()}")
    accepted = summary.parts["readers"]
    assert min(accepted[f"accepted by {name}"] for name in ("plain fastavro", "latest", "batches", "follow")) >= 27
