"""The interface between the REST API and a running sink, the same in each of its workers.

Requests that change something are saved once, in the bucket, and every worker follows. They return when they are saved,
not when they are carried out (Connect's 202). Every call may raise `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from keyfold.errors import KeyfoldError
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.status import RunState, WorkerStatus
from keyfold_sink.topic_partition import TopicPartitionKey


class NoSuchTask(KeyfoldError):
    """No worker has a task with this id."""


class NotStopped(KeyfoldError):
    """Offsets can only be altered while the sink is stopped and all of its tasks have ended."""


class OffsetRefused(KeyfoldError):
    """The offset is below the log's end, beyond the topic's end, or of an unknown partition."""


class SinkControl(Protocol):
    """The operations on a running sink."""

    @property
    def options(self) -> SinkOptions:
        """The running configuration."""

    @property
    def worker_id(self) -> str:
        """The id of this worker."""

    def cluster_id(self) -> str:
        """Return Kafka's cluster id, empty if Kafka does not answer."""

    def target(self) -> RunState:
        """Return the desired state: RUNNING, PAUSED or STOPPED."""

    def workers(self) -> Sequence[WorkerStatus]:
        """Return all live workers, this one first."""

    def is_alive(self) -> bool:
        """Whether this worker is alive: its supervisor's loop runs."""

    def not_ready(self) -> str:
        """Return why this worker is not ready (a task has not joined yet, has failed or hangs), empty if it is."""

    def pause(self) -> None:
        """Pause every task: it flushes, stops reading, and stays in the group."""

    def resume(self) -> None:
        """Resume reading in every task."""

    def stop(self) -> None:
        """Stop every task: it flushes and ends."""

    def restart(self, *, include_tasks: bool, only_failed: bool) -> None:
        """Restart tasks, as Connect's restart of a connector does (KIP-745).

        Without `include_tasks`, all tasks look up again what they have cached: the store's credentials, topics and
        their settings.
        """

    def restart_task(self, task_id: int) -> None:
        """Restart one task of any worker. Raise `NoSuchTask` if there is none with this id."""

    def flush(self) -> None:
        """Make every task commit what it has read."""

    def set_log_level(self, logger: str, level: str) -> None:
        """Set the level of a logger and its children in this worker's tasks, including later ones.

        `logger` is a name of Python's logging, empty for the root; `level` one of
        `keyfold.runtime.event_log.CONNECT_LEVELS`.
        """

    def topics(self) -> Sequence[str]:
        """Return the topics that the sink reads or has logs of, in name order."""

    def offsets(self) -> Mapping[TopicPartitionKey, int]:
        """Return the end of each partition's log: the next offset to be written; all below it is durable."""

    def alter_offsets(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Move logs' ends forward, each over a recorded gap. Raise `NotStopped` or `OffsetRefused` if one may not move.

        As KIP-875, with one exception: an end never moves back, because a log holds each offset once.
        """
