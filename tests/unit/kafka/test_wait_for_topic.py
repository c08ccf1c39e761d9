"""A topic that was just made is used once all brokers know it and its partitions have leaders."""

from __future__ import annotations

from typing import cast

import pytest

from keyfold.kafka.cluster import KafkaCluster, PartitionFacts, TopicFacts, wait_for_topic
from keyfold.kafka.errors import KafkaTopicMissing, KafkaUnavailable


class SlowCluster:
    """Answers with one description after the other, and with the last one again; None: the topic is not known."""

    def __init__(self, *leaders: tuple[int, ...] | None) -> None:
        self._answers = list(leaders)

    def topic(self, name: str) -> TopicFacts:
        leaders = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if leaders is None:
            raise KafkaTopicMissing(f"topic {name} not found")
        parts = tuple(PartitionFacts(at, leader, 1, 1) for at, leader in enumerate(leaders))
        return TopicFacts(name, "id", parts)


def wait(cluster: SlowCluster, tries: int = 5) -> TopicFacts:
    return wait_for_topic(cast("KafkaCluster", cluster), "users", 2, tries=tries)


def test_a_topic_without_all_leaders_is_waited_for() -> None:
    found = wait(SlowCluster(None, (0,), (0, -1), (0, 1)))
    assert [part.leader for part in found.partitions] == [0, 1]


def test_a_topic_without_leaders_is_an_error() -> None:
    with pytest.raises(KafkaUnavailable, match="its partitions have no leaders yet"):
        wait(SlowCluster((0, -1)), tries=2)
