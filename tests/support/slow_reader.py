"""A reader that reads a little of each version: it is refused, or it ends with what the records say."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from keyfold.errors import OffsetOutOfRange
from keyfold.log.manifest import Manifest
from keyfold.log.record import Record
from keyfold.read.position import Anchor, anchor_of, check_resumed
from keyfold.store.api import ObjectStore
from tests.support.cleaning import latest, load, read_all


@dataclass
class Reader:
    """How far a reader is, what it has seen, and what its first version knew."""

    anchor: Anchor
    start: int
    position: int
    seen: list[Record] = field(default_factory=list)
    was_refused: bool = False

    @staticmethod
    def begin(manifest: Manifest) -> Reader:
        return Reader(anchor_of(manifest), manifest.log_start_offset, manifest.log_start_offset)

    def read(self, records: list[Record], count: int) -> None:
        ahead = [r for r in records if r.offset >= self.position][:count]
        self.seen += ahead
        if ahead:
            self.position = ahead[-1].offset + 1


def read_on(store: ObjectStore, reader: Reader, appended: list[Record], random: Random) -> Reader:
    """A little of the newest version: refused, or never deceived."""
    manifest = load(store)
    try:
        check_resumed(reader.anchor, reader.position, manifest)
    except OffsetOutOfRange:
        begun = Reader.begin(manifest)
        begun.was_refused = True
        return begun
    reader.was_refused = False
    reader.read(read_all(store), random.choice([1, 2, 99]))
    if all(r.offset < reader.position for r in read_all(store)):
        promised = [r for r in appended if r.offset >= reader.start]
        assert latest(reader.seen) == latest(promised)
        return Reader.begin(manifest)
    return reader
