"""Bring back a lost manifest from the segments in the folder.

    survey      list the folder; read every segment in full; all must be readable and carry one sync marker
    choose      `keyfold.read.cover` says which of them make up the log, or that it cannot be said
    describe    an entry for each, its range from the bases in the names; an index object is taken over where it is
                there, agrees with the segment row by row and has no marks, else a new one is built
    restore     upload new indexes, then create the manifest: create-only, so nothing that is there is replaced

What the segments do not know begins anew: the log id; epochs, above every epoch in any name, so that no writer of the
old manifest can ever commit; `first_dirty_offset` at the log start, so that everything is cleaned again; no tombstone
is marked, so every delete horizon starts from the next pass; topic settings and ids, which the sink follows again.

One thing cannot be known: a segment that a pass emptied and the collector has not taken yet, when the tombstones that
emptied it were purged since and their own sources are collected already. Its deleted keys come back. The collector
takes lower offsets first, so the emptied segment goes before the tombstones that emptied it.

Nothing is deleted or overwritten. An older version of the manifest object, where the bucket keeps versions, is better
than this; the store protocol does not know versions, so that is done with the bucket's own tools (see the hint).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from uuid import UUID

from keyfold.clock import Clock
from keyfold.errors import AlreadyExists, LogError, LogNotFound, ManifestLost
from keyfold.log.commit import Patience
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place, Role, new_name, parse_name
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog
from keyfold.read.cover import Candidate, Cover, choose_cover, never_committed
from keyfold.read.survey import Surveyed, read_matching_index, survey_segment
from keyfold.store.api import ObjectStore


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would write. `new_indexes` are names and bytes; `notes` are sentences for the operator."""

    place: Place
    manifest: Manifest
    new_indexes: tuple[tuple[str, bytes], ...]
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def plan_repair(store: ObjectStore, place: Place, *, clock: Clock, random: Random) -> RepairPlan:
    """Find out what the lost manifest must have said. Writes nothing.

    Raises `LogError` where a manifest is there, `Corrupt` where it or a segment is damaged, `LogNotFound` where there
    are no segments, `ManifestLost` where the segments do not tell the log without doubt.
    """
    _require_lost(store, place, clock, random)
    surveyed, highest_epoch = _survey(store, place)
    cover = choose_cover([s.candidate for s in surveyed.values()])
    _require_proved(place, cover)
    epoch = highest_epoch + 1
    entries: list[SegmentEntry] = []
    new_indexes: list[tuple[str, bytes]] = []
    for one, (begin, end) in zip(cover.chosen, _ranges(cover.chosen), strict=True):
        found = surveyed[str(one.name)]
        index_name, index_data = _index_for(store, place, found, epoch, random)
        if index_data is None:
            index_data = store.get(place.key(index_name)).data
        else:
            new_indexes.append((index_name, index_data))
        entries.append(_entry(found, index_name, index_data, begin, end))
    manifest = Manifest(
        topic=place.topic,
        partition=place.partition,
        log_id=str(UUID(int=random.getrandbits(128), version=4)),
        sync_marker=next(iter(surveyed.values())).index.sync_marker,
        last_epoch=epoch,
        log_start_offset=entries[0].base_offset,
        next_offset=entries[-1].next_offset,
        first_dirty_offset=entries[0].base_offset,
        segments=tuple(entries),
    )
    left_out = tuple((str(c.name), why) for c, why in cover.left_out)
    return RepairPlan(place, manifest, tuple(new_indexes), left_out, tuple(_notes(cover)))


def apply_repair(store: ObjectStore, plan: RepairPlan, *, clock: Clock, random: Random) -> None:
    """Write the new indexes and create the manifest. Raises `LogError` where one has appeared meanwhile."""
    log = PartitionLog(store, plan.place, clock=clock, random=random)
    patience = Patience(clock, random)
    for name, data in plan.new_indexes:
        create_object(store, plan.place.key(name), data, patience)
    try:
        log.restore(plan.manifest)
    except AlreadyExists as error:
        raise _not_lost(plan.place) from error


def _require_lost(store: ObjectStore, place: Place, clock: Clock, random: Random) -> None:
    try:
        PartitionLog(store, place, clock=clock, random=random).load()
    except ManifestLost:
        return
    raise _not_lost(place)


def _not_lost(place: Place) -> LogError:
    return LogError(
        place.topic,
        place.partition,
        f"the manifest `{place.manifest_key}` is there and can be read: there is nothing to repair",
        hint="`keyfold log verify` finds damage in segments and indexes",
    )


def _survey(store: ObjectStore, place: Place) -> tuple[dict[str, Surveyed], int]:
    """Every segment of the folder by name, and the highest epoch in any name."""
    surveyed: dict[str, Surveyed] = {}
    epochs: list[int] = []
    for info in store.list(place.folder):
        name = parse_name(info.key.removeprefix(place.folder))
        if name is None:
            continue
        epochs.append(name.epoch)
        if not name.is_index:
            surveyed[str(name)] = survey_segment(store, place, name, info.size_bytes, info.last_modified_ms)
    for upload in store.list_uploads(place.folder):
        name = parse_name(upload.key.removeprefix(place.folder))
        epochs += [] if name is None else [name.epoch]
    if not surveyed:
        raise LogNotFound(place.topic, place.partition, f"there is no segment in `{place.folder}`")
    _require_one_log(place, surveyed)
    return surveyed, max(epochs)


def _require_one_log(place: Place, surveyed: dict[str, Surveyed]) -> None:
    """All segments carry one sync marker, and an offset is the same record wherever it is."""
    markers: dict[bytes, list[str]] = {}
    for name, found in surveyed.items():
        markers.setdefault(found.index.sync_marker, []).append(name)
    if len(markers) > 1:
        groups = sorted(markers.values(), key=len)
        told = "; ".join(f"{len(names)} as {names[0]}" for names in groups)
        raise _refused(place, f"its segments are of {len(groups)} different logs, by their sync markers: {told}")
    orphans = never_committed([s.candidate for s in surveyed.values()])
    seen: dict[int, tuple[tuple[object, ...], str]] = {}
    for name, found in surveyed.items():
        if found.candidate in orphans:
            continue
        columns = (found.index.rows.column(c).to_pylist() for c in ("offset", "timestamp", "key", "is_tombstone"))
        for offset, *identity in zip(*columns, strict=True):
            other, holder = seen.setdefault(offset, (tuple(identity), name))
            if other != tuple(identity):
                raise _refused(place, f"offset {offset} is another record in {name} than in {holder}")


def _refused(place: Place, why: str) -> ManifestLost:
    return ManifestLost(
        place.topic,
        place.partition,
        f"the manifest cannot be brought back from the segments: {why}",
        hint="nothing was changed; restore an older version of the manifest object, or move the segment that does not "
        "belong here out of the folder and repair again",
    )


def _require_proved(place: Place, cover: Cover) -> None:
    if cover.missing:
        some = ", ".join(map(str, cover.missing[:10]))
        why = f"no choice without overlap keeps all records; {len(cover.missing)} would be lost, at offsets {some}"
        raise _refused(place, why)
    if cover.resurrected:
        some = ", ".join(map(str, cover.resurrected[:10]))
        raise _refused(place, f"{len(cover.resurrected)} deleted keys would come back, at offsets {some}")


def _ranges(chosen: tuple[Candidate, ...]) -> list[tuple[int, int]]:
    """Contiguous ranges: each begins at the base in its name where that lies behind the records before it."""
    begins: list[int] = []
    last = -1
    for one in chosen:
        base = one.name.base_offset
        begins.append(base if last < base <= one.first_offset else one.first_offset)
        last = one.last_offset
    return list(zip(begins, [*begins[1:], last + 1], strict=True))


def _index_for(
    store: ObjectStore, place: Place, found: Surveyed, epoch: int, random: Random
) -> tuple[str, bytes | None]:
    """The index object's name, and its bytes where it has to be written."""
    own = str(found.candidate.name.index)
    if read_matching_index(store, place, own, found.index):
        return own, None
    name = new_name(found.candidate.name.base_offset, epoch, Role.COMPACTOR, random, is_index=True)
    return str(name), found.index.encode()


def _entry(found: Surveyed, index_name: str, index_data: bytes, begin: int, end: int) -> SegmentEntry:
    seen = found.seen
    return SegmentEntry(
        name=str(found.candidate.name),
        index_name=index_name,
        base_offset=begin,
        last_offset=seen.last_offset,
        next_offset=end,
        record_count=seen.record_count,
        tombstone_count=seen.tombstone_count,
        unmarked_tombstone_count=seen.tombstone_count,
        keyless_count=seen.keyless_count,
        size_bytes=found.size_bytes,
        index_size_bytes=len(index_data),
        min_timestamp=seen.min_timestamp,
        max_timestamp=seen.max_timestamp,
        appended_at_ms=found.last_modified_ms,
        checksum=found.checksum,
        index_checksum=hashlib.sha256(index_data).digest(),
    )


def _notes(cover: Cover) -> list[str]:
    notes: list[str] = []
    for one, after in zip(cover.chosen, cover.chosen[1:], strict=False):
        begin, end = one.last_offset + 1, after.name.base_offset
        if after.name.role is Role.SINK and begin < end:
            notes.append(
                f"offsets [{begin}, {end}) are in no segment: cleaned away, never records, skipped by the sink, "
                "or in a segment that is lost"
            )
    return notes
