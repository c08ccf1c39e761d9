"""Logs of unusual shapes, and the dict that says what cleaning must leave of them.

A shape is a list of batches, one segment each; offsets ascend over all of them. `Expected` knows nothing of segments,
indexes, blocks or masks: a dict of keys, a list of records without one, and which tombstones a pass has seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from keyfold.log.record import Header, Record
from tests.support.cleaning import record

Batches = list[list[Record]]
MIB: Final = 1 << 20


def numbered(cells: Sequence[tuple[bytes | None, bytes | None]], segments: int) -> Batches:
    """Keys and values as records with offsets from 0, distributed over segments of one size."""
    records = [record(offset, key, value) for offset, (key, value) in enumerate(cells)]
    size = -(-len(records) // segments)
    return [records[at : at + size] for at in range(0, len(records), size)]


def shapes() -> dict[str, Batches]:
    """All shapes by name."""
    random = Random(4)
    many = range(600)
    return {
        "keys of one byte": numbered([(bytes([n % 256]), b"%d" % n) for n in many], 3),
        "keys of 100 KB": numbered([(b"k" * 100_000 + b"%d" % (n % 5), b"%d" % n) for n in range(18)], 3),
        "keys that differ in their last byte": numbered([(b"k" * 999 + bytes([n % 7]), b"v") for n in range(60)], 3),
        "empty keys": numbered([((b"", None, b"\0")[n % 3], b"%d" % n) for n in range(60)], 3),
        "empty values": numbered([(b"k%d" % (n % 50), (b"", None, b"v")[n % 3]) for n in range(200)], 3),
        "values of 20 MB": numbered(
            [(b"big", bytes(20 * MIB)), (b"a", b"1"), (b"a", b"2"), (b"big", random.randbytes(20 * MIB))], 2
        ),
        "null values only": numbered([(b"k%d" % (n % 70), None) for n in range(200)], 3),
        "one key in half of the records": numbered([(b"hot" if n % 2 else b"k%d" % n, b"%d" % n) for n in many], 4),
        "one key": numbered([(b"k", b"%d" % n) for n in many], 4),
        "one key, deleted at last": numbered([(b"k", b"v" if n < 599 else None) for n in many], 4),
        "all keys different": numbered([(b"k%d" % n, b"v") for n in many], 3),
        "no keys": numbered([(None, b"v" if n % 2 else None) for n in range(100)], 3),
        "no keys but one": numbered([(b"k" if n in {3, 90} else None, b"v") for n in range(100)], 3),
        "headers": with_headers(random),
        "records larger than a block": numbered(
            [(b"k%d" % (n % 4), random.randbytes(70_000 + n)) for n in range(12)], 3
        ),
        "huge gaps": spread([0, 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**41, 2**50, 2**62, 2**62 + 1], 5),
        "strange times": with_times([-1, 5_000, -5, 0, 2**53, -(2**40), -1, 5_000, 2_000, 1]),
        "two hundred segments of a record": numbered([(b"k%d" % (n % 90), b"%d" % n) for n in range(200)], 200),
    }


def with_headers(random: Random) -> Batches:
    """Many headers, large ones, none, repeated and empty names, null values."""
    kinds: list[tuple[Header, ...]] = [
        tuple((f"h{n}", b"%d" % n) for n in range(2_000)),
        (("large", random.randbytes(MIB)),),
        (),
        (("same", b"1"), ("same", None), ("", b"")),
        (("ünï", b"\xff" * 300),),
    ]
    batches = numbered([(b"k%d" % (n % 8), b"v") for n in range(20)], 3)
    return [[replace(r, headers=kinds[r.offset % len(kinds)]) for r in batch] for batch in batches]


def spread(offsets: Sequence[int], keys: int) -> Batches:
    """A segment for each two offsets."""
    records = [record(offset, b"k%d" % (n % keys), b"%d" % n) for n, offset in enumerate(offsets)]
    return [records[at : at + 2] for at in range(0, len(records), 2)]


def with_times(times: Sequence[int]) -> Batches:
    """One record per time, two rounds of the same keys."""
    batches = numbered([(b"k%d" % (n % 7), b"%d" % n) for n in range(2 * len(times))], 4)
    return [[replace(r, timestamp=times[r.offset % len(times)]) for r in batch] for batch in batches]


def one_after_another(logs: Iterable[Batches]) -> Batches:
    """Several shapes as one log: their keys are disjoint, offsets continue."""
    joined: Batches = []
    begin = 0
    for number, batches in enumerate(logs):
        for batch in batches:
            joined.append([_moved(r, begin, number) for r in batch])
        begin = joined[-1][-1].offset + 1
    return joined


def _moved(r: Record, begin: int, number: int) -> Record:
    return replace(r, offset=r.offset + begin, key=None if r.key is None else b"%d/" % number + r.key)


def again(batches: Batches) -> list[Record]:
    """A last segment that overwrites a third of a log's keys, deletes another third, and adds one key."""
    begin = batches[-1][-1].offset + 1
    keys = list(dict.fromkeys(r.key for batch in batches for r in batch))
    more = [(key, b"again" if n % 3 == 1 else None) for n, key in enumerate(keys) if n % 3]
    return [record(begin + n, key, value) for n, (key, value) in enumerate([*more, (b"a key of its own", b"v")])]


@dataclass
class Expected:
    """What cleaning must leave, as a dict; every append is followed by a pass."""

    remove_keyless: bool = False
    last: dict[bytes, Record] = field(default_factory=dict)
    keyless: list[Record] = field(default_factory=list)
    marked: set[int] = field(default_factory=set)

    def append(self, records: Iterable[Record]) -> None:
        """New records supersede older ones of their keys."""
        for r in records:
            if r.key is None:
                self.keyless.append(r)
            else:
                self.last[r.key] = r

    def clean(self) -> list[Record]:
        """What is left after a pass: a tombstone goes with the first pass after the one that saw it first."""
        self.last = {key: r for key, r in self.last.items() if r.offset not in self.marked}
        self.marked = {r.offset for r in self.last.values() if r.value is None}
        if self.remove_keyless:
            self.keyless = []
        return sorted([*self.last.values(), *self.keyless], key=lambda r: r.offset)
