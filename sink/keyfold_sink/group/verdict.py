"""What an error of one partition means for the task: pure.

again        another attempt from the log's end puts it right
partition    this partition cannot go on: it fails, the others go on
task         what is wrong is wrong for all of them: no right to the bucket or the group, a defect
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
    """Kafka does not serve the position at which a partition was to be read."""

    retriable = True


class Verdict(Enum):
    """How far an error reaches."""

    AGAIN = "again"
    PARTITION = "partition"
    TASK = "task"


_AGAIN: Final = (Fenced, OffsetMoved, UploadLost, CommitUnknown)
_TASK: Final = (AccessDenied, BucketMissing, ConditionsIgnored, ConfigError, SourceForbidden)


def verdict(error: BaseException) -> Verdict:
    """Judge what ended a partition's work."""
    if not isinstance(error, KeyfoldError):
        return Verdict.TASK
    if isinstance(error, _AGAIN) or error.retriable:
        return Verdict.AGAIN
    if isinstance(error, _TASK) and not isinstance(error, TopicForbidden):
        return Verdict.TASK
    return Verdict.PARTITION


_CAUSES: Final = (
    (Fenced, "fenced"),
    (OffsetMoved, "offset-moved"),
    (UploadLost, "upload-lost"),
    (CommitUnknown, "commit-unknown"),
)


def set_back_cause(error: BaseException) -> str:
    """What a partition was set back for, as it is counted (`metric_names.SET_BACK_CAUSES`)."""
    if isinstance(error, PositionLost):
        return "position"
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), "other")
