"""What the Kafka client has said of itself and of topics: why a task that is well has nothing to do, or cannot do it.

The client says it once, or again and again, and never that it is over. So what it says of a topic holds until a
partition of it is assigned, and what it says of itself for a while after it said so last, or until records arrive.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from keyfold.clock import Clock

# The client repeats what goes on at least this often (its brokers are tried again every ten seconds at most).
_HOLDS_FOR_S: Final = 60.0


class Troubles:
    """Used by the main thread alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of_topics: dict[str, str] = {}
        self._of_client = ""
        self._until_s = 0.0

    def note(self, error: KafkaError, topic: str | None = None) -> None:
        """The client has said this, of a topic or of itself."""
        if topic is not None:
            self._of_topics[topic] = error.str()
        else:
            self._of_client = error.str()
            self._until_s = self._clock.monotonic_s() + _HOLDS_FOR_S

    def assigned(self, topic: str) -> None:
        """The topic is there."""
        self._of_topics.pop(topic, None)

    def moves(self) -> None:
        """Records have arrived, or the group has answered."""
        self._of_client = ""

    def words(self) -> list[str]:
        """What is in the way now."""
        of_client = [f"Kafka: {self._of_client}"] * bool(self._of_client and self._clock.monotonic_s() < self._until_s)
        return [*of_client, *self._of_topics.values()]
