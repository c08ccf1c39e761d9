"""Say once what is the same for many partitions of a topic. Pure.

grouped              partitions of a topic with equal values, in the order of their first
PartitionGroup       their subject in a sentence: `users-3`, or `12 partitions of topic users (0-11)`
without_partition    a message about one partition without its name, so that it can be the message about many
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from keyfold.runtime.text import count_text, ranges_text

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PartitionGroup:
    """Partitions of one topic, in ascending order."""

    topic: str
    partitions: tuple[int, ...]

    def __str__(self) -> str:
        if len(self.partitions) == 1:
            return f"{self.topic}-{self.partitions[0]}"
        return f"{count_text(len(self.partitions), 'partition')} of topic {self.topic} ({ranges_text(self.partitions)})"


def grouped(values: Iterable[tuple[str, int, T]]) -> list[tuple[PartitionGroup, T]]:
    """Group (topic, partition, value) by topic and value."""
    found: dict[tuple[str, T], set[int]] = {}
    for topic, partition, value in values:
        found.setdefault((topic, value), set()).add(partition)
    return [(PartitionGroup(topic, tuple(sorted(numbers))), value) for (topic, value), numbers in found.items()]


def without_partition(message: str, place: object) -> str:
    """Return an error's message without the partition that it begins with; `place` is the partition's name."""
    return message.removeprefix(f"{place}: ")
