"""The broker for tests (`keyfold_demo.broker`), and records to fill it with."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from keyfold_demo.broker import KafkaBroker
from keyfold_demo.produce import Row, produce_all, produce_changes

__all__ = ["KafkaBroker", "Row", "produce_all", "produce_changes", "synthetic"]


def synthetic(
    count: int,
    *,
    key_count: int,
    value_bytes: int = 200,
    tombstone_share: float = 0.0,
    partition: int | None = None,
    seed: int = 0,
    base_timestamp_ms: int = 1_700_000_000_000,
) -> Iterator[Row]:
    """`count` records for `produce_all`: keys drawn evenly, values begin with their number and compress by half."""
    random = Random(seed)
    pool = random.randbytes(value_bytes * 8).hex().encode()
    for number in range(count):
        key = b"key-%08d" % random.randrange(key_count)
        value: bytes | None = None
        if random.random() >= tombstone_share:
            at = random.randrange(len(pool) - value_bytes)
            value = (b"%d " % number + pool[at : at + value_bytes])[:value_bytes]
        yield key, value, base_timestamp_ms + number, partition
