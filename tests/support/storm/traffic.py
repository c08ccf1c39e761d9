"""The topics of a storm, and records that state their topic, partition, key and sequence.

    state       compacted, keyed, with tombstones
    window      the same, and the compactor keeps `retention.bytes` of each partition only
    ledger      not compacted; transactions, some of them aborted; some records without a key
    mixed       the compactor compacts what Kafka does not: transactions, tombstones and records without a key

Kafka's own cleaner is off, so the broker has every record until the end.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from tests.support.sink_load import Kind, Topic

WINDOW_BYTES: Final = 60_000
_FOREVER: Final = {"retention.ms": "-1"}
_COMPACT: Final = {**_FOREVER, "cleanup.policy": "compact"}
TOPICS: Final = (
    Topic("state", Kind("state", 3, _COMPACT, needs_keys=True)),
    Topic("window", Kind("window", 2, _COMPACT, needs_keys=True)),
    Topic("ledger", Kind("ledger", 2, _FOREVER, is_transactional=True)),
    Topic("mixed", Kind("mixed", 2, _FOREVER, is_transactional=True)),
)
COMPACTED: Final = frozenset({"state", "window", "mixed"})
EXPIRING: Final = frozenset({"window"})
BROKER: Final = {"log.cleaner.enable": "false"}
"""What the broker is told beside."""

CLEANING: Final = {
    "topic.mixed.cleanup.policy": "compact",
    "topic.window.cleanup.policy": "compact,delete",
    "topic.window.retention.bytes": str(WINDOW_BYTES),
    "topic.window.segment.bytes": "16384",
}
"""What the compactor is told of these topics beside."""


class Traffic:
    """Makes records; `kind` is set by the schedule while records are made."""

    def __init__(self) -> None:
        self.kind = "usual"

    def record(self, random: Random, topic: Topic, number: int) -> dict[str, Any]:
        """Return one record as `Producer.produce` wants it. `number` ascends within each topic."""
        partition = 0 if random.random() < 0.2 else random.randrange(topic.kind.partitions)
        key = self._key(random, topic)
        value = None
        if key is None or random.random() >= (0.6 if self.kind == "deletions" else 0.1):
            value = stated(topic.name, partition, key, number) + random.randbytes(self._filling(random)).hex().encode()
        headers = [("sequence", b"%d" % number)] * random.choice((0, 0, 1, 2))
        given: dict[str, Any] = {"topic": topic.name, "partition": partition, "key": key, "value": value}
        return given | {"headers": headers} if headers else given

    def _key(self, random: Random, topic: Topic) -> bytes | None:
        if not topic.kind.needs_keys and random.random() < (0.5 if self.kind == "without keys" else 0.05):
            return None
        count = {"hot keys": 10, "many keys": 3_000}.get(self.kind, 200)
        return b"key-%d" % random.randrange(count)

    def _filling(self, random: Random) -> int:
        return random.randrange(4_000 if self.kind == "large values" and random.random() < 0.1 else 60)


def stated(topic: str, partition: int, key: bytes | None, number: int) -> bytes:
    """Return how a value begins."""
    return b"%s|%d|%s|%d|" % (topic.encode(), partition, b"-" if key is None else key, number)
