"""Errors of Kafka.

KeyfoldError
├── KafkaClientMissing        confluent-kafka is not installed
├── KafkaUnavailable          Kafka did not answer in time; a retry may help      (retriable)
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
    """Kafka did not answer; a retry may help."""

    retriable = True


class KafkaRefused(KeyfoldError):
    """Kafka refuses this client's login, certificate or request."""


class KafkaTopicMissing(KeyfoldError):
    """The cluster knows no such topic."""
