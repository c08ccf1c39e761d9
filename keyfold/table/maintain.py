"""Upkeep of a table: merging files, expiring snapshots, and deleting what no snapshot names.

    merge     rewrites small files as fewer ones, and files of which many rows are hidden; no row changes
    expire    forgets old snapshots; readers that still read one have had the time to finish
    collect   deletes objects that no snapshot names

Before it deletes, `collect` commits a snapshot without a change. A commit that was prepared before is refused then, and
a commit that is prepared later has names of its own. So no snapshot can ever name a deleted object, however long a
process was suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple, TypeVar

from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotsUpdate
from pyiceberg.typedef import Record

from keyfold.runtime.clock import Clock
from keyfold.table.catalog import CatalogFailed
from keyfold.table.commit import Change, commit, pyiceberg_value, small_ones
from keyfold.table.data_files import FileWriter
from keyfold.table.file_io import METADATA_BYTES_MAX, TableMoved
from keyfold.table.open import OpenedTable
from keyfold.table.table import TableFile, TableVersion, manifests_of, scope_of

T = TypeVar("T")

FILES_MAX: Final = 20
HIDDEN_MAX: Final = 0.3
TRIES: Final = 5
_LEAST: Final = 10

SNAPSHOT_AGE_MS: Final = 3_600_000
ORPHAN_AGE_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class FileRows:
    """What a merge is decided from: the rows of a data file, and those that are hidden."""

    path: str
    rows: int
    hidden: int

    @property
    def visible(self) -> int:
        """Rows that a merge would write."""
        return self.rows - self.hidden


def files_to_merge(files: Sequence[FileRows], files_max: int = FILES_MAX, hidden_max: float = HIDDEN_MAX) -> set[str]:
    """Return which data files of one partition to rewrite together. Of too many files the small ones are merged."""
    chosen = {file.path for file in files if file.hidden > hidden_max * file.rows}
    if len(files) > files_max:
        chosen |= small_ones({file.path: file.visible for file in files}, _LEAST)
    return chosen


class MergeGroup(NamedTuple):
    """Files that may be merged: of one partition of the topic, and of one partition of the table."""

    partition: int
    spec_id: int
    values: Record


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did: files before and after, and rows that it wrote."""

    removed: int
    added: int
    rows: int


def merge(
    table: OpenedTable,
    *,
    clock: Clock,
    random: Random,
    files_max: int = FILES_MAX,
    hidden_max: float = HIDDEN_MAX,
) -> Merged | None:
    """Merge the files of each partition that needs it, in one commit; None if none does. Raises `TableMoved`."""
    loaded = table.catalog.load()
    if loaded is None:
        return None
    version = TableVersion(table.files, loaded)
    plan = plan_of(version, files_max, hidden_max)
    if not plan:
        return None
    commit_id = f"{random.getrandbits(64):016x}"
    writer = FileWriter(table.files, loaded.metadata, version.schema, commit_id)
    by_path = {file.file.file_path: file for file in version.data_files}
    removed: set[str] = set()
    added: list[DataFile] = []
    for (partition, *_), chosen in plan.items():
        due = sorted((by_path[each.path] for each in chosen), key=lambda file: file.first_offset)
        added += writer.data(partition, (rows for file in due for rows in version.visible(file)))
        for file in due:
            removed |= {file.file.file_path, *(e.data_file.file_path for e in file.hidden_by if scope_of(e.data_file))}
    change = Change(Operation.REPLACE, version.shown, added, frozenset(removed))
    commit(table.catalog, version, change, commit_id=commit_id, now_ms=clock.now_ms(), random=random)
    return Merged(sum(map(len, plan.values())), len(added), sum(file.record_count for file in added))


def plan_of(version: TableVersion, files_max: int, hidden_max: float) -> dict[MergeGroup, list[FileRows]]:
    """Return the data files that `merge` would rewrite. Files with rows of several partitions are left alone."""
    groups: dict[MergeGroup, list[FileRows]] = {}
    for file in version.data_files:
        if len(file.partitions) == 1:
            rows = FileRows(file.file.file_path, file.file.record_count, hidden_count(file))
            group = MergeGroup(file.partitions[0], file.file.spec_id, file.file.partition)
            groups.setdefault(group, []).append(rows)
    plan = {}
    for group, found in sorted(groups.items(), key=lambda each: each[0].partition):
        chosen = files_to_merge(found, files_max, hidden_max)
        if chosen:
            plan[group] = [each for each in found if each.path in chosen]
    return plan


def hidden_count(file: TableFile) -> int:
    """Return how many rows of a data file are hidden, from metadata alone."""
    return sum(entry.data_file.record_count for entry in file.hidden_by if scope_of(entry.data_file))


def expire(table: OpenedTable, now_ms: int, age_ms: int = SNAPSHOT_AGE_MS) -> int:
    """Forget snapshots that have not been current for `age_ms`. Return how many. Raises `TableMoved`."""
    loaded = table.catalog.load()
    if loaded is None or loaded.metadata.current_snapshot_id is None:
        return 0
    metadata = loaded.metadata
    old = old_snapshots(metadata, now_ms - age_ms)
    if old:
        updates = (pyiceberg_value(RemoveSnapshotsUpdate, snapshot_ids=old),)
        table.catalog.commit(loaded, (AssertTableUUID(uuid=metadata.table_uuid),), updates)
    return len(old)


def old_snapshots(metadata: TableMetadata, until_ms: int) -> list[int]:
    """Return the snapshots that a newer one had replaced at `until_ms`, without those that a branch or tag names."""
    named_ids = {reference.snapshot_id for reference in metadata.refs.values()}
    ordered = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    return [
        old.snapshot_id
        for old, new in pairwise(ordered)
        if old.snapshot_id not in named_ids and new.timestamp_ms <= until_ms
    ]


def collect(table: OpenedTable, *, clock: Clock, random: Random, age_ms: int = ORPHAN_AGE_MS) -> int:
    """Delete objects that no snapshot names and that are older than `age_ms`, and unfinished uploads of that age.

    Return how many objects. Raises `TableMoved`.
    """
    loaded, files = table.catalog.load(), table.files
    if loaded is None:
        return 0
    metadata = loaded.metadata
    prefix = files.key(f"{metadata.location}/")
    listed = {info.key: info for info in files.store.list(prefix)}
    named_keys = named_objects(TableVersion(files, loaded))
    # The store's time, as in a listing.
    now_ms = files.store.get(files.key(loaded.location), METADATA_BYTES_MAX).date_ms
    orphans = [
        key
        for key, info in listed.items()
        if key not in named_keys and info.last_modified_ms + age_ms <= now_ms and _is_ours(key.removeprefix(prefix))
    ]
    uploads = [each for each in files.store.list_uploads(prefix) if each.started_ms + age_ms <= now_ms]
    if not orphans and not uploads:
        return 0
    version = TableVersion(files, loaded)
    fence = Change(Operation.REPLACE, version.shown)
    commit(
        table.catalog, version, fence, commit_id=f"{random.getrandbits(64):016x}", now_ms=clock.now_ms(), random=random
    )
    for key in orphans:
        files.store.delete(key)
    for upload in uploads:
        files.store.abort_upload(upload.key, upload.upload_id)
    return len(orphans)


def _is_ours(name: str) -> bool:
    return name.startswith(("data/", "metadata/")) and not name.endswith("version-hint.text")


def named_objects(version: TableVersion) -> set[str]:
    """Return the keys of all objects that a table's metadata names. Reads the manifests of all snapshots."""
    return {version.files.key(location) for location in _named(version)}


def _named(version: TableVersion) -> Iterator[str]:
    """Yield every file that the table's metadata names."""
    metadata = version.loaded.metadata
    yield version.loaded.location
    yield from (each.metadata_file for each in metadata.metadata_log)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in manifests_of(snapshot, version.files):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(version.files):
                    yield entry.data_file.file_path


def retried(work: Callable[[], T]) -> T:
    """Do work on a table again if another commit came first, or the catalog failed, at most `TRIES` times.

    Raises the last error.
    """
    for _ in range(TRIES - 1):
        with suppress(CatalogFailed, TableMoved):
            return work()
    return work()


def maintain(table: OpenedTable, clock: Clock, random: Random) -> None:
    """Merge what is due. About once per `SNAPSHOT_AGE_MS`, expire snapshots and collect. Raises `TableMoved`."""
    merge(table, clock=clock, random=random)
    loaded, now_ms = table.catalog.load(), clock.now_ms()
    if loaded is not None and old_snapshots(loaded.metadata, now_ms - 2 * SNAPSHOT_AGE_MS):
        expire(table, now_ms)
        collect(table, clock=clock, random=random)


def drop(table: OpenedTable, *, dry_run: bool = False) -> int:
    """Remove a table from its catalog, and delete its files. Return how many objects are deleted."""
    loaded = table.catalog.load()
    assert loaded is not None, "the table exists"
    prefix = table.files.key(f"{loaded.metadata.location}/")
    keys = [info.key for info in table.files.store.list(prefix) if _is_ours(info.key.removeprefix(prefix))]
    if not dry_run:
        table.catalog.drop()
        for key in keys:
            table.files.store.delete(key)
    return len(keys)
