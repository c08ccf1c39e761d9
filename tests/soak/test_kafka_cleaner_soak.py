"""Kafka's cleaner and keyfold over hundreds of random topics (`KEYFOLD_CLEANER_SEEDS`, 300 by default)."""

from __future__ import annotations

import os

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.kafka_cleaner import Lab
from tests.support.kafka_cleaner_twin import compare_seeds

SEEDS = int(os.environ.get("KEYFOLD_CLEANER_SEEDS", "300"))
FIRST = int(os.environ.get("KEYFOLD_CLEANER_FIRST_SEED", "1000"))
SIDE_BY_SIDE = 15


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.timeout(7200)
def test_kafka_and_keyfold_leave_the_same_records_of_hundreds_of_random_topics() -> None:
    with KafkaBroker() as broker:
        lab = Lab(broker)
        for first in range(FIRST, FIRST + SEEDS, SIDE_BY_SIDE):
            seeds = range(first, min(first + SIDE_BY_SIDE, FIRST + SEEDS))
            tally = compare_seeds(lab, seeds, rounds=6, prefix="soak")
            print(seeds, tally)
