"""The same random records and settings, cleaned by Kafka's own cleaner and by keyfold: what is left must be the same.

`tests.support.kafka_cleaner_twin` says how, and has a function for each difference that is by design;
`test_kafka_cleaner_rules.py` shows each of them.
"""

from __future__ import annotations

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.kafka_cleaner import Lab
from tests.support.kafka_cleaner_twin import compare_seeds

SEEDS = range(1, 11)


@pytest.mark.kafka
def test_kafka_and_keyfold_leave_the_same_records_of_random_topics(broker: KafkaBroker) -> None:
    outcome = compare_seeds(Lab(broker), SEEDS, rounds=3)
    # The seeds are not vacuous: each way a round can go has happened.
    assert outcome.cleaned_by_both >= 10
    assert outcome.left_by_both >= 1
    assert outcome.tombstones_gone_by_themselves >= 1
    assert outcome.tombstones_removed >= 10
    assert outcome.records_removed >= 500
    assert outcome.young_rounds >= 2
