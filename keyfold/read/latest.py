"""Latest state: the last record of each key of one version, deleted keys left out.

Indexes choose: their rows have key, offset and tombstone flag, and a later row wins, so a dirty log gives the same
result as a clean one. Then only the blocks that hold a chosen record are fetched. Memory is one entry a key, and one
index at a time. Records without a key have no latest state and are left out.

This is a snapshot. Choosing starts again in the newest version when an object has gone; after the first record was
given out that would mix two states, so from there on a missing object is `SnapshotLost`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from keyfold.errors import ObjectNotFound, SnapshotLost
from keyfold.log.index import Ints, read_index
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.fetch import BlockSource, damage_named, read_blocks_at
from keyfold.read.ordered import Load, newer
from keyfold.store.api import ObjectStore

_COLUMNS: Final = ("offset", "key", "is_tombstone")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The offsets that make up the latest state of one version, ascending, and where the blocks are."""

    manifest: Manifest
    offsets: Ints
    sources: tuple[BlockSource, ...]


def read_latest(store: ObjectStore, place: Place, load: Load) -> Iterator[Record]:
    """The last record of each key, in offset order, of the newest version. Chooses before it returns."""
    chosen = choose_newest(store, place, load)
    return _fetched(store, place, load, chosen)


def choose_newest(store: ObjectStore, place: Place, load: Load) -> Chosen:
    """Choose in the newest version, again where it was replaced and collected meanwhile."""
    manifest = load()
    while True:
        try:
            return choose(store, place, manifest)
        except ObjectNotFound as error:
            manifest = newer(place, load, error)


def choose(store: ObjectStore, place: Place, manifest: Manifest) -> Chosen:
    """The latest state of `manifest`, from indexes alone."""
    last: dict[bytes, int] = {}
    sources: list[BlockSource] = []
    for entry in manifest.segments:
        index = read_index(store, place, entry, columns=_COLUMNS)
        sources.append(BlockSource.of(entry, index))
        columns = (index.rows.column(name).to_pylist() for name in _COLUMNS)
        for offset, key, is_tombstone in zip(*columns, strict=True):
            if is_tombstone:
                last.pop(key, None)
            elif key is not None:
                last[key] = offset
    offsets = np.fromiter(last.values(), np.int64, len(last))
    offsets.sort()
    return Chosen(manifest, offsets, tuple(sources))


def _fetched(store: ObjectStore, place: Place, load: Load, chosen: Chosen) -> Iterator[Record]:
    given_out = False
    while True:
        try:
            for record in _records(store, place, chosen):
                given_out = True
                yield record
        except ObjectNotFound as error:
            newest = newer(place, load, error)
            if given_out:
                raise SnapshotLost(
                    place.topic,
                    place.partition,
                    f"version {chosen.manifest.version} was replaced and collected while its latest state was read "
                    f"(`{error.key}` has gone; the newest version is {newest.version})",
                    hint="read it again from the beginning; file.delete.delay.ms must be longer than such a read",
                ) from error
            chosen = choose_newest(store, place, load)
        else:
            return


def _records(store: ObjectStore, place: Place, chosen: Chosen) -> Iterator[Record]:
    for source in chosen.sources:
        begin, stop = np.searchsorted(chosen.offsets, (source.entry.base_offset, source.entry.next_offset))
        wanted = chosen.offsets[begin:stop]
        numbers = np.unique(np.searchsorted(source.blocks.first_offset, wanted, side="right") - 1)
        keep = frozenset(wanted.tolist())
        with damage_named(place):
            for record in read_blocks_at(store, place, source, numbers):
                if record.offset in keep:
                    yield record
