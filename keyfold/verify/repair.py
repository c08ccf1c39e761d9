"""Repair of a lost or damaged manifest, from an older version of its object or from the segments in the folder.

    version     if the bucket keeps versions, the newest readable one is the base (`repair_version`)
    survey      otherwise list the folder and read every segment; all must be readable and have one sync marker
    choose      `keyfold.verify.surviving_segments` selects the segments of the log, or refuses if that is ambiguous
    describe    create an entry for each, with its range from the bases in the names; keep an existing index object if
                it matches the segment row by row and has no marks, otherwise build a new one
    restore     upload new indexes, then create the manifest, create-only, so no existing object is replaced. Only a
                damaged manifest is replaced if requested: by its ETag, after a copy was written next to it

State that the segments do not have starts from scratch: the log id; epochs, above every epoch in any name, so that no
writer of the old manifest can ever commit; `first_dirty_offset` at the log start, so that everything is cleaned again;
no tombstone is marked, so every delete horizon starts with the next pass; topic settings and ids, which the sink
follows again. `purged_to` is as high as it may have been, because the removed tombstones are unknown.

One case cannot be detected: a segment that a pass emptied and that is not deleted yet, if the tombstones that emptied
it were removed since, and the segments with these tombstones are already deleted. Its deleted keys come back. Garbage
collection deletes lower offsets first, so the emptied segment is deleted before the tombstones that emptied it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

from keyfold.errors import (
    AlreadyExists,
    Corrupt,
    FirstCopyUnfinished,
    LogError,
    LogNotFound,
    ManifestLost,
    ObjectNotFound,
    StoreError,
)
from keyfold.log.commit import get_manifest
from keyfold.log.manifest import NO_OFFSET, Manifest, SegmentEntry, new_log_id
from keyfold.log.names import FIRST_COPY_NAME, ObjectName, Place, Role, manifest_copy_name, new_name, parse_name
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Blob, ObjectInfo, ObjectStore
from keyfold.verify.repair_version import (
    ReadableVersion,
    Versions,
    appended_since,
    cleaned_since,
    enriched,
    missing_objects,
    newest_version,
    renewed,
)
from keyfold.verify.segment_survey import Surveyed, read_matching_index, survey_segment
from keyfold.verify.surviving_segments import Candidate, Cover, choose_cover, never_committed

Base = Literal["auto", "version", "segments"]
"""The base of a repair; auto: a version that still describes the log if there is one, otherwise the segments."""

REPLICA_DOCUMENT: Final = "_replica.json"
"""Document next to the topics of a replica's bucket: whether compacted logs may be replicated there."""

SEGMENTS: Final = "the segments in the folder"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The objects that a repair writes. `new_indexes` are names and bytes; `notes` are sentences for the operator.

    `source` describes the base. `damaged` is the existing manifest to replace, if there is one.
    """

    place: Place
    manifest: Manifest
    new_indexes: tuple[tuple[str, bytes], ...]
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    source: str = SEGMENTS
    damaged: Blob | None = None


def plan_repair(
    store: ObjectStore,
    place: Place,
    *,
    clock: Clock,
    random: Random,
    base: Base = "auto",
    replace_damaged: bool = False,
) -> RepairPlan:
    """Determine the contents of the lost manifest. Writes nothing.

    Raises `LogError` if a sound manifest exists, `Corrupt` for a damaged one without `replace_damaged` and for a
    damaged segment, `LogNotFound` if there are no segments, `ManifestLost` if neither a version nor the segments
    determine the log, and `FirstCopyUnfinished` for an incomplete first copy unless `base` requests a log of the
    copied part.
    """
    notes: list[str] = []
    try:
        damaged = _require_lost(store, place, clock, random, replace_damaged=replace_damaged)
    except FirstCopyUnfinished as error:
        if base == "auto":
            raise _not_copied(error) from error
        damaged = None
        notes.append(
            f"{error.message}: the log ends with the last copied segment; you can now delete `{FIRST_COPY_NAME}`"
        )
    versions = Versions(None, "") if base == "segments" else newest_version(store, place)
    if base == "version" and versions.found is None:
        raise _refused(place, versions.why_not)
    if base == "auto":
        _require_no_replica(store, place, versions.found)
    if versions.found is None and versions.why_not:
        notes.append(versions.why_not)
    folder = _Folder.look(store, place)
    if versions.found is not None:
        found = versions.found
        plan = _plan_from_version(store, folder, found, random, damaged)
        if isinstance(plan, RepairPlan):
            return plan
        if base == "version":
            hint = "put the missing object back, from an older version of it or from a replica, or use --from segments"
            raise _refused(place, f"{found} no longer describes the log: {plan}", hint=hint)
        notes.append(f"settings, ids and gaps come from {found}, which no longer describes the log: {plan}")
    made = _plan_from_segments(store, folder, random)
    if versions.found is not None:
        made = replace(made, manifest=enriched(made.manifest, versions.found.manifest))
    return replace(made, notes=(*notes, *made.notes), damaged=damaged)


def apply_repair(store: ObjectStore, plan: RepairPlan, *, clock: Clock, random: Random) -> None:
    """Write the new indexes and create the manifest. Raises `LogError` if a manifest was created meanwhile."""
    log = PartitionLog(store, plan.place, clock=clock, random=random)
    retry = RetryPolicy(clock, random)
    for name, data in plan.new_indexes:
        create_object(store, plan.place.key(name), data, retry)
    if plan.damaged is not None:
        create_object(store, plan.place.key(copy_name(plan.damaged)), plan.damaged.data, retry)
    try:
        log.restore(plan.manifest, over=None if plan.damaged is None else plan.damaged.etag)
    except AlreadyExists as error:
        raise _not_lost(plan.place) from error
    except ObjectNotFound as error:
        raise StoreError(
            plan.place.manifest_key,
            "the store answers both that the object exists and that it does not: it seems to treat a delete marker "
            "as an object",
            hint="remove the delete marker with the store's own tools; the version before it is then the manifest",
        ) from error


def copy_name(damaged: Blob) -> str:
    """Return the name of the copy of a replaced damaged manifest."""
    return manifest_copy_name(hashlib.sha256(damaged.data).hexdigest())


def _require_lost(
    store: ObjectStore, place: Place, clock: Clock, random: Random, *, replace_damaged: bool
) -> Blob | None:
    """Return the damaged manifest, or None if there is none. Raises an error for a sound one."""
    log = PartitionLog(store, place, clock=clock, random=random)
    try:
        log.load()
    except ManifestLost:
        return None
    except Corrupt:
        if not replace_damaged:
            raise
        return log.retry.repeat(lambda: get_manifest(store, place))
    raise _not_lost(place)


def _require_no_replica(store: ObjectStore, place: Place, found: ReadableVersion | None) -> None:
    """Refuse to repair a replica: replication restores its manifest, and a repair would make it another log."""
    following = None if found is None else found.manifest.replica
    head = f"{place.topics_dir}/" if place.topics_dir else ""
    if following is None and (found is not None or not _is_there(store, head + REPLICA_DOCUMENT)):
        return
    whose = f"the replica `{following.name}` of {following.source}" if following is not None else "a replica"
    raise LogError(
        place.topic,
        place.partition,
        f"the log here was {whose}; replication recreates its manifest from the objects that exist",
        hint="move a damaged manifest away and run `keyfold replica run`; if the source is lost, repair with "
        "`--from version` or `--from segments`, which makes it an independent log",
    )


def _not_copied(error: FirstCopyUnfinished) -> FirstCopyUnfinished:
    """Return the refusal for an incomplete first copy: a replicator could not continue a repaired log."""
    error.hint = (
        f"nothing was changed: run `keyfold replica run {error.source or '<source>'} {error.replica or '<name>'}` to "
        "continue the copy. If the source is lost, `--from segments` makes an independent log of the copied segments"
    )
    return error


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True


def _not_lost(place: Place) -> LogError:
    return LogError(
        place.topic,
        place.partition,
        f"the manifest `{place.manifest_key}` can be read: there is nothing to repair",
        hint=f"run `{place.command('verify')}` to find damaged segments and indexes",
    )


@dataclass(frozen=True, slots=True)
class _Folder:
    """All objects of the partition by name, and an epoch above every epoch in their names."""

    place: Place
    objects: dict[str, ObjectInfo]
    epoch: int

    @staticmethod
    def look(store: ObjectStore, place: Place) -> _Folder:
        objects = {info.key.removeprefix(place.folder): info for info in store.list(place.folder)}
        uploads = (upload.key.removeprefix(place.folder) for upload in store.list_uploads(place.folder))
        names = [parsed for name in (*objects, *uploads) if (parsed := parse_name(name)) is not None]
        return _Folder(place, objects, 1 + max((n.epoch for n in names), default=0))

    def segments(self) -> list[ObjectName]:
        parsed = [parse_name(name) for name in self.objects]
        return [name for name in parsed if name is not None and not name.is_index]


def _plan_from_version(
    store: ObjectStore, folder: _Folder, found: ReadableVersion, random: Random, damaged: Blob | None
) -> RepairPlan | str:
    """Return the plan, or the reason why the version no longer describes the log."""
    version, place = found.manifest, folder.place
    missing = missing_objects(version, {name: info.size_bytes for name, info in folder.objects.items()})
    if missing:
        return f"{len(missing)} of its objects are missing, such as {missing[0]}"
    surveyed = _survey(store, place, folder, appended_since(version, iter(folder.objects)))
    behind = _survey(store, place, folder, cleaned_since(version, iter(folder.objects)))
    if any(s.seen.last_offset >= version.next_offset for s in behind.values()):
        return "a later pass cleaned records that were appended after it"
    if any(s.index.sync_marker != version.sync_marker for s in surveyed.values()):
        return "segments of another log start after its end"
    _require_one_log(place, surveyed)
    cover = choose_cover([s.candidate for s in surveyed.values()])
    epoch = max(folder.epoch, version.last_epoch + 1)
    tail, new_indexes = _entries(store, place, surveyed, cover, epoch, random)
    notes = [*_version_notes(found, tail, behind), *_notes(cover)]
    manifest = renewed(version, tuple(tail), log_id=new_log_id(random), epoch=epoch)
    left_out = [(str(c.name), why) for c, why in cover.left_out]
    left_out += [
        (name, "written by a pass after this version; the segments that the pass read still exist") for name in behind
    ]
    return RepairPlan(place, manifest, tuple(new_indexes), tuple(left_out), tuple(notes), str(found), damaged)


def _version_notes(
    found: ReadableVersion, tail: Sequence[SegmentEntry], behind: Mapping[str, Surveyed]
) -> Iterator[str]:
    if found.skipped:
        yield f"{found.skipped} newer versions cannot be read"
    if tail:
        begin = tail[0].base_offset
        yield f"{len(tail)} segments that were appended after this version, from offset {begin}, are included"
    if behind:
        yield "a pass after this version is undone; the next pass cleans again"


def _plan_from_segments(store: ObjectStore, folder: _Folder, random: Random) -> RepairPlan:
    place, epoch = folder.place, folder.epoch
    surveyed = _survey(store, place, folder, folder.segments())
    if not surveyed:
        raise LogNotFound(place.topic, place.partition, f"no segment found in `{place.folder}`")
    _require_one_log(place, surveyed)
    cover = choose_cover([s.candidate for s in surveyed.values()])
    _require_proved(place, cover)
    entries, new_indexes = _entries(store, place, surveyed, cover, epoch, random)
    cleaned = [c.last_offset for c in cover.chosen if c.name.role is Role.COMPACTOR]
    manifest = Manifest(
        topic=place.topic,
        partition=place.partition,
        log_id=new_log_id(random),
        sync_marker=next(iter(surveyed.values())).index.sync_marker,
        last_epoch=epoch,
        log_start_offset=entries[0].base_offset,
        next_offset=entries[-1].next_offset,
        first_dirty_offset=entries[0].base_offset,
        purged_to=max(cleaned, default=NO_OFFSET),
        segments=tuple(entries),
    )
    left_out = tuple((str(c.name), why) for c, why in cover.left_out)
    return RepairPlan(place, manifest, tuple(new_indexes), left_out, tuple(_notes(cover)))


def _survey(store: ObjectStore, place: Place, folder: _Folder, names: Iterable[ObjectName]) -> dict[str, Surveyed]:
    """Read some segments of the folder completely; return them by name."""
    surveyed: dict[str, Surveyed] = {}
    for name in names:
        info = folder.objects[str(name)]
        surveyed[str(name)] = survey_segment(store, place, name, info.size_bytes, info.last_modified_ms)
    return surveyed


def _entries(
    store: ObjectStore, place: Place, surveyed: Mapping[str, Surveyed], cover: Cover, epoch: int, random: Random
) -> tuple[list[SegmentEntry], list[tuple[str, bytes]]]:
    """Return an entry for each chosen segment, and the indexes to write."""
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
    return entries, new_indexes


def _require_one_log(place: Place, surveyed: Mapping[str, Surveyed]) -> None:
    """Require that all segments have one sync marker, and that an offset is the same record in all of them."""
    markers: dict[bytes, list[str]] = {}
    for name, found in surveyed.items():
        markers.setdefault(found.index.sync_marker, []).append(name)
    if len(markers) > 1:
        groups = sorted(markers.values(), key=len)
        told = "; ".join(f"{len(names)} such as {names[0]}" for names in groups)
        raise _refused(
            place, f"the folder has segments of {len(groups)} different logs, according to their sync markers: {told}"
        )
    orphans = never_committed([s.candidate for s in surveyed.values()])
    seen: dict[int, tuple[tuple[object, ...], str]] = {}
    for name, found in surveyed.items():
        if found.candidate in orphans:
            continue
        columns = (found.index.rows.column(c).to_pylist() for c in ("offset", "timestamp", "key", "is_tombstone"))
        for offset, *identity in zip(*columns, strict=True):
            other, holder = seen.setdefault(offset, (tuple(identity), name))
            if other != tuple(identity):
                raise _refused(place, f"offset {offset} is a different record in {name} and in {holder}")


_HINT: Final = (
    "restore an older version of the manifest object, or move the segment that does not belong here out of the folder "
    "and repair again"
)


def _refused(place: Place, why: str, *, hint: str = _HINT) -> ManifestLost:
    return ManifestLost(
        place.topic,
        place.partition,
        f"the manifest cannot be rebuilt: {why}",
        hint=f"nothing was changed; {hint}",
    )


def _require_proved(place: Place, cover: Cover) -> None:
    if cover.missing:
        some = ", ".join(map(str, cover.missing[:10]))
        why = f"segments overlap, and every choice loses records; {len(cover.missing)} would be lost, at offsets {some}"
        raise _refused(place, why)
    if cover.resurrected:
        some = ", ".join(map(str, cover.resurrected[:10]))
        raise _refused(place, f"{len(cover.resurrected)} deleted keys would come back, at offsets {some}")


def _ranges(chosen: tuple[Candidate, ...]) -> list[tuple[int, int]]:
    """Return contiguous ranges: each starts at the base in its name if that is after the previous records."""
    begins: list[int] = []
    last = -1
    for one in chosen:
        base = one.name.base_offset
        begins.append(base if last < base <= one.first_offset else one.first_offset)
        last = one.last_offset
    return list(zip(begins, [*begins[1:], last + 1][: len(begins)], strict=True))


def _index_for(
    store: ObjectStore, place: Place, found: Surveyed, epoch: int, random: Random
) -> tuple[str, bytes | None]:
    """Return the index object's name, and its bytes if it has to be written."""
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
                f"offsets [{begin}, {end}) are in no segment: they were cleaned, never used, skipped by the sink, "
                "or their segment is lost"
            )
    return notes
