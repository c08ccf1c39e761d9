"""What a replication is between, and what it goes by: values that every part of it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from keyfold.log.names import Place
from keyfold.store.api import ObjectStore
from keyfold_compactor.replica.desk.documents import Enablement
from keyfold_compactor.replica.standing.retry import Retry

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Side:
    """One bucket's end: the directory of its logs, its URL (`s3://bucket/topics`), and its host for messages."""

    store: ObjectStore
    topics_dir: str
    url: str
    host: str

    def place(self, topic: str, partition: int) -> Place:
        """Where a partition's log is on this side."""
        return Place(self.topics_dir, topic, partition)


@dataclass(frozen=True, slots=True)
class Link:
    """A registered replica: its name, both sides of it, and what its cursor is called in the source's manifests."""

    name: str
    hold_name: str
    source: Side
    replica: Side


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What replication goes by.

    `threads` are as many partitions at once, and as many objects. `poll_ms` is how often a partition in sync is looked
    at, `discover_ms` how often topics are listed. A round that is to copy at least `pin_min_bytes` pins its version at
    the source, for `pin_ms` at a time. What the replica's commits unlinked stays for `file_delete_delay_ms`; orphans
    are looked for after each claim, and every `collect_ms`.
    """

    threads: int = 16
    poll_ms: int = 5_000
    discover_ms: int = 30_000
    pin_min_bytes: int = 64 * 1024 * 1024
    pin_ms: int = 600_000
    retry: Retry = field(default_factory=Retry)
    file_delete_delay_ms: int = HOUR_MS
    collect_ms: int = HOUR_MS
    patience_s: float = 30.0


def every_topic(_topic: str) -> bool:
    """A registration that names no topics covers all."""
    return True


@dataclass(frozen=True, slots=True)
class Orders:
    """What was asked of a replica: is it paused, which topics does it cover.

    `covers` raises `ConfigError` where it cannot tell in time; what it has told of a topic it tells again at once.
    """

    paused: bool = False
    covers: Callable[[str], bool] = every_topic


class Desk(Protocol):
    """Where the documents of a replica are read. Calls go to the stores and raise what they raise."""

    def orders(self) -> Orders | None:
        """What the registration in the source bucket says; None: it was removed."""

    def enablement(self) -> Enablement:
        """What the replica bucket says about compaction. One GET there."""
