"""A partition's folder in a bucket: the common part of `PartitionLog` and `ReplicaLog`."""

from __future__ import annotations

from random import Random

from keyfold.log.commit import Committer
from keyfold.log.names import ObjectName, Place, parse_name
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import ObjectStore


class PartitionFolder:
    """A partition's store, place, retry policy and committer."""

    def __init__(
        self,
        store: ObjectStore,
        place: Place,
        *,
        clock: Clock,
        random: Random,
        backoff: Backoff | None = None,
        retry_timeout_s: float = 60.0,
    ) -> None:
        self.store = store
        self.place = place
        self.retry = RetryPolicy(clock, random, backoff or Backoff(), retry_timeout_s)
        self.committer = Committer(store, place, self.retry)

    def listed(self) -> dict[str, int]:
        """Return the sizes of all objects in the folder, by name. Raises `StoreError`."""
        folder = self.place.folder
        return self.retry.repeat(
            lambda: {info.key.removeprefix(folder): info.size_bytes for info in self.store.list(folder)}
        )

    def object_names(self) -> list[ObjectName]:
        """Return the segments and indexes in the folder, listed in a manifest or not. Raises `StoreError`."""
        return [parsed for name in self.listed() if (parsed := parse_name(name)) is not None]
