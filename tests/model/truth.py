"""What Kafka has: a few records, and what they mean. A dict is the specification of a compacted log."""

from __future__ import annotations

from collections.abc import Iterable

KafkaLog = tuple[tuple[str, int | None] | None, ...]
"""By offset: (key, value), value None for a tombstone; None where the offset has no record (a transaction marker)."""

FOUR: KafkaLog = (("A", 1), ("B", 1), ("A", None), ("B", 2))
FIVE: KafkaLog = (("A", 1), ("B", 1), ("A", None), ("B", 2), ("A", 3))
HOLE: KafkaLog = (("A", 1), None, ("A", None), ("B", 1))
EMPTIED: KafkaLog = (("A", 1), ("A", None), ("B", 1))
UPDATES: KafkaLog = (("A", 1), ("B", 1), ("A", 2))
TWO_TOMBSTONES: KafkaLog = (("A", 1), ("B", None), ("A", None))
ENDS_IN_A_HOLE: KafkaLog = (("A", 1), ("A", 2), None)
RETURNS: KafkaLog = (("A", 1), ("A", None), ("A", 2), ("B", 1))

State = tuple[tuple[str, int], ...]
"""The latest state: for each live key the offset of its last record, in key order."""


def fold(kafka: KafkaLog, offsets: Iterable[int]) -> State:
    """The latest state after the records at `offsets`, in this order."""
    latest: dict[str, int] = {}
    for offset in offsets:
        record = kafka[offset]
        assert record is not None, f"offset {offset} has no record"
        key, value = record
        if value is None:
            latest.pop(key, None)
        else:
            latest[key] = offset
    return tuple(sorted(latest.items()))


def offsets_between(kafka: KafkaLog, begin: int, end: int) -> tuple[int, ...]:
    """Offsets of records in `[begin, end)`."""
    return tuple(o for o in range(begin, end) if kafka[o] is not None)


def superseded(kafka: KafkaLog, offsets: Iterable[int], below: int) -> list[int]:
    """Offsets below `below` that a later record below it replaces."""
    kept = [o for o in offsets if o < below]
    last = {kafka[o][0]: o for o in kept}  # type: ignore[index]  # it is there, or the test fails
    return [o for o in kept if last[kafka[o][0]] > o]  # type: ignore[index]  # it is there, or the test fails
