"""What can be asked of a running sink, from any of its workers: the seam between the REST API and what does the work.

Requests that change something are written down once, in the bucket, and every worker follows; they return when they
are written down, not when they are carried out (Connect's 202). Every call may raise `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from keyfold.errors import KeyfoldError
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.status import State, WorkerStatus
from keyfold_sink.writing.batch import TopicPartitionKey


class NoSuchTask(KeyfoldError):
    """No worker has a task with this id."""


class NotStopped(KeyfoldError):
    """Offsets are altered only while the sink is stopped and no task of it is left."""


class OffsetRefused(KeyfoldError):
    """An offset that would lose or repeat records: below the log's end, beyond the topic's, or of no partition."""


class Service(Protocol):
    """A sink as a service."""

    @property
    def options(self) -> SinkOptions:
        """The configuration that runs."""

    @property
    def worker_id(self) -> str:
        """What this worker is known by."""

    def cluster_id(self) -> str:
        """Kafka's cluster id; empty where Kafka does not answer."""

    def target(self) -> State:
        """What was asked for last: RUNNING, PAUSED or STOPPED."""

    def workers(self) -> Sequence[WorkerStatus]:
        """All workers that are alive, this one first."""

    def is_alive(self) -> bool:
        """Whether this process itself works: its supervisor's loop goes round."""

    def not_ready(self) -> str:
        """Why this worker is not ready (a task has not joined yet, has failed, hangs); empty when it is."""

    def pause(self) -> None:
        """Every task flushes, then stops reading; it stays in the group."""

    def resume(self) -> None:
        """Every task reads (again)."""

    def stop(self) -> None:
        """Every task flushes and ends."""

    def restart(self, *, include_tasks: bool, only_failed: bool) -> None:
        """Start tasks anew, as Connect's restart of a connector does (KIP-745).

        Without them everything is looked up anew that they have looked up: credentials of the store, topics, settings.
        """

    def restart_task(self, task_id: int) -> None:
        """Start one task anew, wherever it is. Raises `NoSuchTask`."""

    def flush(self) -> None:
        """Every task finishes and commits what it has read."""

    def set_log_level(self, logger: str, level: str) -> None:
        """Have this worker's tasks, also those to come, log a logger and what is below it at a level.

        `logger` is a name of Python's logging, empty for the root; `level` one of `keyfold.logs.CONNECT_LEVELS`.
        """

    def topics(self) -> Sequence[str]:
        """Topics that the sink has a log of, or reads, in name order."""

    def offsets(self) -> Mapping[TopicPartitionKey, int]:
        """Where each partition's log ends: the next offset to be written, durable."""

    def alter_offsets(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Move logs' ends forward, each over a recorded gap. Raises `NotStopped`, `OffsetRefused`; then none was moved.

        Follows KIP-875, but for one thing: an end never goes back, for a log holds each offset once.
        """
