"""The source and the replica of a replication, and its settings: values that every part gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from keyfold.log.names import Place
from keyfold.replicas.documents import Enablement
from keyfold.store.api import ObjectStore
from keyfold_replicator.state.retry import RoundBackoff

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A directory of logs in one bucket: its store, path, URL (`s3://bucket/topics`), and host for messages."""

    store: ObjectStore
    topics_dir: str
    url: str
    host: str

    def place(self, topic: str, partition: int) -> Place:
        """Return where a partition's log is in this directory."""
        return Place(self.topics_dir, topic, partition)


@dataclass(frozen=True, slots=True)
class ReplicaPair:
    """A registered replica: its name, both sides, and the name of its cursor in the source's manifests."""

    name: str
    hold_name: str
    source: LogDirectory
    replica: LogDirectory


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Settings of replication.

    `threads` limits partitions and objects at once. A partition in sync is checked every `poll_ms`, topics are listed
    every `discover_ms`. A round that copies at least `pin_min_bytes` holds its version at the source, for `pin_ms` at a
    time. Objects that the replica's commits unlinked are kept for `file_delete_delay_ms`. Orphans are searched for
    after each claim, and every `collect_ms`.
    """

    threads: int = 16
    poll_ms: int = 5_000
    discover_ms: int = 30_000
    pin_min_bytes: int = 64 * 1024 * 1024
    pin_ms: int = 600_000
    retry: RoundBackoff = field(default_factory=RoundBackoff)
    file_delete_delay_ms: int = HOUR_MS
    collect_ms: int = HOUR_MS
    retry_timeout_s: float = 30.0


def every_topic(_topic: str) -> bool:
    """Cover all topics, as a registration without topics does."""
    return True


@dataclass(frozen=True, slots=True)
class DesiredReplication:
    """What the registration asks for: whether replication is paused, and which topics it covers.

    `covers` raises `ConfigError` if it cannot decide in time. Its answer for a topic is cached.
    """

    paused: bool = False
    covers: Callable[[str], bool] = every_topic


class ReplicaDocuments(Protocol):
    """Reads the documents of a replica. Calls go to the stores and raise what they raise."""

    def load_desired(self) -> DesiredReplication | None:
        """Return what the registration in the source bucket says; None if it was removed."""

    def load_enablement(self) -> Enablement:
        """Return the permissions in the replica's bucket. One GET there."""
