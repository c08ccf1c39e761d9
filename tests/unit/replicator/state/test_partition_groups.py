"""One sentence for partitions that have the same to say."""

from __future__ import annotations

from keyfold.runtime.text import ranges_text
from keyfold_replicator.state.partition_groups import PartitionGroup, grouped, without_partition


def test_equal_values_of_a_topic_are_one_group_in_the_order_of_their_first() -> None:
    values = [("users", 3, "a"), ("users", 0, "b"), ("users", 1, "a"), ("orders", 2, "a"), ("users", 2, "a")]
    assert [(str(group), value) for group, value in grouped(values)] == [
        ("3 partitions of topic users (1-3)", "a"),
        ("users-0", "b"),
        ("orders-2", "a"),
    ]


def test_every_partition_is_in_one_group() -> None:
    values = [("t", n, n % 3) for n in range(2_000)]
    groups = grouped(values)
    assert sorted(n for group, _ in groups for n in group.partitions) == [*range(2_000)]
    assert str(groups[0][0]) == "667 partitions of topic t (0, 3, 6, 9, 12 and 662 more)"


def test_ranges() -> None:
    assert ranges_text([7]) == "7"
    assert ranges_text([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges_text(range(12)) == "0-11"


def test_one_partition_has_its_usual_name() -> None:
    assert str(PartitionGroup("users", (3,))) == "users-3"


def test_only_the_partition_at_the_start_of_a_message_is_left_out() -> None:
    assert without_partition("users-3: the log users-3: is gone", "users-3") == "the log users-3: is gone"
    assert without_partition("users-31: gone", "users-3") == "users-31: gone"
