"""Changes of keyed rows as Kafka records, and the latest state that they lead to.

A value is a row of about 1 KB in Avro with Confluent's framing (a zero, the schema's id, the row); a deletion is a
null. Keys are drawn evenly. A row's note is one of the texts of `tests.bench._records`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from keyfold.log.avro import varint
from tests.bench._records import BASE_MS, texts
from tests.support.kafka import Row

FIELDS: Final = {"id": "long", "name": "string", "cents": "long", "updated_ms": "long", "note": "string"}
SCHEMA: Final = {
    "type": "record",
    "name": "Customer",
    "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
}
DELETED_SHARE: Final = 0.02
FRAME_BYTES: Final = 5


class Digest(NamedTuple):
    """The number of keys in a state, and the sum of `row_hash` over its rows."""

    rows: int
    hash: int


def row_hash(key: str, row: Iterable[object]) -> int:
    """Return 60 bits of the MD5 of a row as text. Spark's functions compute the same."""
    text = "|".join((key, *map(str, row)))
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:15], 16)


@dataclass(slots=True)
class Changes:
    """Changes of `key_count` keys, in order. Equal arguments give equal changes."""

    key_count: int
    schema_id: int
    _last: dict[int, int | None] = field(default_factory=dict)
    _chance: Random = field(default_factory=lambda: Random(1))

    def rows(self, start: int, end: int) -> Iterator[Row]:
        """Yield the changes `[start, end)` for `produce_all`. Call it for one batch after the other."""
        for number in range(start, end):
            key = self._chance.randrange(self.key_count)
            is_deletion = self._chance.random() < DELETED_SHARE
            self._last[key] = None if is_deletion else number
            yield b"user-%08d" % key, None if is_deletion else self._value(key, number), BASE_MS + number, None

    def digest(self) -> Digest:
        """Return the digest of the latest state after all rows so far."""
        found = [(key, number) for key, number in self._last.items() if number is not None]
        return Digest(len(found), sum(self._hash(key, number) for key, number in found))

    def _hash(self, key: int, number: int) -> int:
        row = (number, _name(key), _cents(number), BASE_MS + number, _note(number).decode())
        return row_hash(f"user-{key:08d}", row)

    def _value(self, key: int, number: int) -> bytes:
        """Encode the fields of `FIELDS` in their order: fastavro takes five times as long."""
        row = (varint(number), _text(_name(key).encode()), varint(_cents(number)), varint(BASE_MS + number))
        return b"".join((b"\0", self.schema_id.to_bytes(4, "big"), *row, _text(_note(number))))


def _name(key: int) -> str:
    return f"customer {key:08d}"


def _cents(number: int) -> int:
    return number * 7919 % 1_000_000


def _note(number: int) -> bytes:
    return texts()[number * 7919 % len(texts())]


def _text(text: bytes) -> bytes:
    return varint(len(text)) + text
