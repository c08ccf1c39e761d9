"""Decide how far an error of one partition reaches; pure.

again        retry the partition from the log's end
partition    the partition fails, the others continue
task         the task ends: no right to the bucket or the group, an unexpected exception
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from keyfold.errors import (
    AccessDenied,
    BucketMissing,
    CommitUnknown,
    ConditionsIgnored,
    ConfigError,
    Fenced,
    KeyfoldError,
    OffsetMoved,
    UploadLost,
)
from keyfold_sink.kafka.source import SourceForbidden, TopicForbidden


class PositionLost(KeyfoldError):
    """Kafka does not serve the position at which the partition is read."""

    retriable = True


class ErrorScope(Enum):
    """How far an error reaches."""

    AGAIN = "again"
    PARTITION = "partition"
    TASK = "task"


_AGAIN: Final = (Fenced, OffsetMoved, UploadLost, CommitUnknown)
_TASK: Final = (AccessDenied, BucketMissing, ConditionsIgnored, ConfigError, SourceForbidden)


def scope_of(error: BaseException) -> ErrorScope:
    """Return how far the error that ended a partition's work reaches."""
    if not isinstance(error, KeyfoldError):
        return ErrorScope.TASK
    if isinstance(error, _AGAIN) or error.retriable:
        return ErrorScope.AGAIN
    if isinstance(error, _TASK) and not isinstance(error, TopicForbidden):
        return ErrorScope.TASK
    return ErrorScope.PARTITION


_CAUSES: Final = (
    (Fenced, "fenced"),
    (OffsetMoved, "offset-moved"),
    (UploadLost, "upload-lost"),
    (CommitUnknown, "commit-unknown"),
)


def reset_cause(error: BaseException) -> str:
    """Return the cause of a reset, as the metric's label (`names.SET_BACK_CAUSES`)."""
    if isinstance(error, PositionLost):
        return "position"
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), "other")
