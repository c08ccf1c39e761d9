"""The configuration of `keyfold replica run`: where the source is, and how fast the process replicates.

Settings of a single replica are in its registration (`keyfold.replicas.options`).
"""

from __future__ import annotations

from keyfold.config.options import Millis, Names, option
from keyfold.config.process_options import ProcessOptions
from keyfold_replicator.registry.replica_pair import ReplicaSettings


class RunOptions(ProcessOptions):
    """The configuration file of `keyfold replica run`. Its keys about the store are those of the source."""

    name: str = option("name", "keyfold-replicator", doc="Name of this process in the status of the replicas.")
    replicas: Names = option("replicas", (), doc="Names of the registered replicas to replicate to. Default: all.")
    io_max_bytes_per_second: float | None = option(
        "replica.io.max.bytes.per.second",
        None,
        doc="Maximum bytes read at the source and written at the replicas per second, over all replicas. For rates of "
        "200000 and more, no second exceeds 1.3 times the rate. Default: no limit.",
        importance="high",
        gt=0,
    )
    threads: int = option(
        "replica.threads",
        16,
        doc="Number of partitions of a replica that are replicated at the same time, and of objects that are copied at "
        "the same time.",
        ge=1,
        le=256,
    )
    poll_ms: Millis = option(
        "replica.poll.ms",
        5_000,
        doc="How often a partition that is in sync is checked, with one GET each. Lower: less lag, more requests.",
    )
    discover_ms: Millis = option(
        "replica.discover.ms", 30_000, doc="How often topics and partitions are listed.", importance="low"
    )
    collect_ms: Millis = option(
        "replica.collect.ms",
        3_600_000,
        doc="How often each partition's folder at the replica is searched for objects that an interrupted round left "
        "behind.",
        importance="low",
    )

    @property
    def settings(self) -> ReplicaSettings:
        """The settings of all replicas of this process."""
        return ReplicaSettings(
            threads=self.threads, poll_ms=self.poll_ms, discover_ms=self.discover_ms, collect_ms=self.collect_ms
        )
