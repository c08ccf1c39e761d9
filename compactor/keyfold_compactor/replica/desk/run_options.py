"""The configuration of a process that replicates, `keyfold replica run`: where the source is, and how fast it goes.

What differs from replica to replica is in their registrations (`keyfold_compactor.replica.desk.options`).
"""

from __future__ import annotations

from keyfold.options import Millis, Names, option
from keyfold_compactor.option_parts import ProcessOptions
from keyfold_compactor.replica.desk.link import ReplicaSettings


class RunOptions(ProcessOptions):
    """What `keyfold replica run` reads from its configuration file. The keys about the store are the source's."""

    name: str = option("name", "keyfold-replicator", doc="Name of this process in the status of the replicas.")
    replicas: Names = option("replicas", (), doc="Registered replicas to replicate to. Left out: all.")
    io_max_bytes_per_second: float | None = option(
        "replica.io.max.bytes.per.second",
        None,
        doc="Bytes read at the source and written at the replicas a second, over all replicas together. No second "
        "has more than 1.3 times the rate, for rates of 200000 and more. Default: no limit.",
        importance="high",
        gt=0,
    )
    threads: int = option(
        "replica.threads",
        16,
        doc="Partitions of one replica that are worked on at once, and objects that are copied at once.",
        ge=1,
        le=256,
    )
    poll_ms: Millis = option(
        "replica.poll.ms",
        5_000,
        doc="How often a partition that is in sync is looked at: one GET each. Low: less lag, more requests.",
    )
    discover_ms: Millis = option(
        "replica.discover.ms", 30_000, doc="How often topics and partitions are listed.", importance="low"
    )
    collect_ms: Millis = option(
        "replica.collect.ms",
        3_600_000,
        doc="How often each partition's folder at the replica is searched for objects that a round which was broken "
        "off has left.",
        importance="low",
    )

    @property
    def settings(self) -> ReplicaSettings:
        """What all replicas of this process go by."""
        return ReplicaSettings(
            threads=self.threads, poll_ms=self.poll_ms, discover_ms=self.discover_ms, collect_ms=self.collect_ms
        )
