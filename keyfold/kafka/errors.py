"""What can go wrong with Kafka.

KeyfoldError
├── KafkaClientMissing        confluent-kafka is not installed
├── KafkaUnavailable          no answer in the time given; asking again may help   (retriable)
├── KafkaRefused              wrong credentials, certificates or missing rights
└── KafkaTopicMissing         the cluster has no such topic
"""

from __future__ import annotations

from keyfold.errors import KeyfoldError


class KafkaClientMissing(KeyfoldError):
    """The Kafka client's package cannot be imported."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the Kafka client is required and cannot be loaded: {reason}",
            hint="install it with: pip install 'keyfold[kafka]'",
        )


class KafkaUnavailable(KeyfoldError):
    """Kafka gave no answer; asking again may help."""

    retriable = True


class KafkaRefused(KeyfoldError):
    """Kafka refuses this client: its login, its certificate, or what it asks for."""


class KafkaTopicMissing(KeyfoldError):
    """The cluster knows no such topic."""
