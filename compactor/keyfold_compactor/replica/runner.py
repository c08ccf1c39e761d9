"""All partitions of a replica: each in rounds of its own, once or for ever.

A partition that fails waits by its own backoff and holds up no other. Topics and partitions that appear are taken in.
What was asked (paused, which topics) is read again every few seconds; while that cannot be read, what is known holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from keyfold.clock import Clock
from keyfold_compactor.replica.link import Desk, Link, ReplicaSettings
from keyfold_compactor.replica.states import PartitionState, State

Publish = Callable[[Sequence[PartitionState]], None]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How all partitions stand after a run. `error`: why the run as a whole could not be done, empty if it could."""

    states: tuple[PartitionState, ...] = ()
    error: str = ""

    @property
    def is_in_sync(self) -> bool:
        """Whether nothing is left to send."""
        return not self.error and all(s.state is State.IN_SYNC for s in self.states)


class Runner:
    """Replicates what a registration covers. `publish` is given all states at most every 2 s while some change."""

    def __init__(
        self,
        link: Link,
        desk: Desk,
        settings: ReplicaSettings,
        *,
        clock: Clock,
        random: Random,
        publish: Publish = lambda _states: None,
    ) -> None:
        self._link = link
        self._desk = desk
        self._settings = settings
        self._clock = clock
        self._random = random
        self._publish = publish

    def states(self) -> tuple[PartitionState, ...]:
        """How each partition stands now, by topic and partition. Any thread may ask."""
        raise NotImplementedError

    def once(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        topic: str | None = None,
        partition: int | None = None,
        resync: bool = False,
    ) -> RunSummary:
        """One round of each partition. `resync` accepts that tombstones were purged which the replica never had."""
        raise NotImplementedError

    def loop(self, stop: threading.Event) -> None:
        """Rounds until `stop`, or until the registration is removed."""
        raise NotImplementedError
