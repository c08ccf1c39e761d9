"""Errors that the Kafka client reports about itself and about topics, which explain why a task is idle or blocked.

The client reports an error once or repeatedly, and never that it is over. So an error of a topic holds until a
partition of the topic is assigned. An error of the client holds for a while after its last report, or until records
arrive.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from keyfold.runtime.clock import Clock

# The client repeats an error that persists at least this often (it reconnects to brokers within ten seconds).
_HOLDS_FOR_S: Final = 60.0


class ClientErrors:
    """The errors of one client. Only the main thread uses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of_topics: dict[str, str] = {}
        self._of_client = ""
        self._until_s = 0.0

    def note(self, error: KafkaError, topic: str | None = None) -> None:
        """Record an error of a topic or of the client."""
        if topic is not None:
            self._of_topics[topic] = error.str()
        else:
            self._of_client = error.str()
            self._until_s = self._clock.monotonic_s() + _HOLDS_FOR_S

    def assigned(self, topic: str) -> None:
        """Clear the error of a topic, which exists."""
        self._of_topics.pop(topic, None)

    def moves(self) -> None:
        """Clear the client's error, because records or an answer of the group have arrived."""
        self._of_client = ""

    def words(self) -> list[str]:
        """Return the current errors."""
        of_client = [f"Kafka: {self._of_client}"] * bool(self._of_client and self._clock.monotonic_s() < self._until_s)
        return [*of_client, *self._of_topics.values()]
