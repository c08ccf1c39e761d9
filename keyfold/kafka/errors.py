"""Errors of Kafka.

KeyfoldError
├── KafkaUnavailable          Kafka did not answer in time; a retry may help      (retriable)
├── KafkaRefused              wrong credentials, certificates or missing rights
└── KafkaTopicMissing         the cluster has no such topic
"""

from __future__ import annotations

from keyfold.errors import KeyfoldError


class KafkaUnavailable(KeyfoldError):
    """Kafka did not answer; a retry may help."""

    retriable = True


class KafkaRefused(KeyfoldError):
    """Kafka refuses this client's login, certificate or request."""


class KafkaTopicMissing(KeyfoldError):
    """The cluster knows no such topic."""
