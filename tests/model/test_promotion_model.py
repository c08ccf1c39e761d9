"""A promotion gives no reader wrong data in small worlds, and the model finds planted mistakes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.model.promotion_world import Kafka, PromotionBounds, PromotionRules, PromotionWorld
from tests.model.search import explore

LIMIT_STATES = 400_000
SHORT_STATES = 40_000

UPDATED: Kafka = (("A", 1), ("B", 1), ("A", 2))
DELETED: Kafka = (("B", 1), ("B", 2), ("A", 1), ("A", None))
OTHER: Kafka = (("C", 7), ("D", 7), ("C", 8), ("D", None))
SHORT: Kafka = (("A", 1), ("A", None), ("B", 1))


@pytest.mark.sharded
@pytest.mark.parametrize(
    ("kafka", "bounds"),
    [
        pytest.param(UPDATED, PromotionBounds(passes=1, forced=False), id="switched over"),
        pytest.param(SHORT, PromotionBounds(passes=2, forced=False), id="switched over, with a tombstone"),
        pytest.param(UPDATED, PromotionBounds(passes=1), id="by force"),
        pytest.param(SHORT, PromotionBounds(passes=1), id="by force, with a tombstone"),
        pytest.param(DELETED, PromotionBounds(passes=2, begun=4), id="by force, and cleaned on both sides"),
    ],
)
def test_no_reader_gets_wrong_data(kafka: Kafka, bounds: PromotionBounds) -> None:
    result = explore(PromotionWorld(kafka, OTHER, bounds), limit=SHORT_STATES)
    assert result.holds, str(result)


@pytest.mark.soak
@pytest.mark.parametrize("kafka", [UPDATED, DELETED, SHORT], ids=["updated", "deleted", "short"])
@pytest.mark.parametrize("forced", [True, False], ids=["by force", "switched over"])
def test_no_reader_gets_wrong_data_in_larger_worlds(kafka: Kafka, forced: bool) -> None:
    result = explore(PromotionWorld(kafka, OTHER, PromotionBounds(passes=2, forced=forced)), limit=LIMIT_STATES)
    print(result)
    assert result.holds, str(result)


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake, a world in which it shows, and what the model must say about it."""

    name: str
    rules: PromotionRules
    kafka: Kafka
    bounds: PromotionBounds
    says: str


PLANTED = [
    Planted(
        "S1 lets a reader go on from a version that saw more than the new log has",
        PromotionRules(asks_what_was_seen=False),
        UPDATED,
        PromotionBounds(passes=1),
        "the reader ends with",
    ),
    Planted(
        "S2 takes the old log's later passes for the new one's",
        PromotionRules(counts_only_common_passes=False),
        DELETED,
        PromotionBounds(passes=2, begun=4),
        "the reader ends with",
    ),
    Planted(
        "S3 asks neither for the position nor for what was seen",
        PromotionRules(asks_for_the_position=False),
        UPDATED,
        PromotionBounds(passes=0),
        "the reader ends with",
    ),
    Planted(
        "S4 promotes without fencing the old log's writers first",
        PromotionRules(fences_the_old_log_first=False),
        UPDATED,
        PromotionBounds(passes=0, forced=False),
        "both logs have writers",
    ),
]


@pytest.mark.sharded
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    world = PromotionWorld(planted.kafka, OTHER, planted.bounds, planted.rules)
    result = explore(world, limit=LIMIT_STATES)
    assert not result.holds, f"not found in {result.states} states"
    assert planted.says in result.violation, str(result)
