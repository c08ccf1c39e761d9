"""A commit: new manifests, their list, and a snapshot that the catalog makes the current one.

Manifests that the change does not touch stay as they are. Of many small ones one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from keyfold.table.catalog import LoadedTable, TableCatalog
from keyfold.table.table import STATE, ShownVersion, TableVersion

T = TypeVar("T")

MANIFESTS_MAX: Final = 8
"""If there are more manifests of one kind than this, the small ones become one."""

_GROWTH: Final = 2
_LAST_ADDED: Final = -1


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit changes: files by what becomes of them, and which versions of the log the table then shows.

    `removed` are locations of data files and delete files. `schema` is None if it stays as it is.
    """

    operation: Operation
    shown: Mapping[int, ShownVersion]
    added: Sequence[DataFile] = ()
    removed: frozenset[str] = frozenset()
    schema: Schema | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def small_ones(sizes: Mapping[str, int], at_least: int) -> set[str]:
    """Return the smallest of many: `at_least` of them, and more as long as the next is not much larger than all before.

    If these become one, each entry is rewritten about as often as the whole has doubled since.
    """
    chosen: set[str] = set()
    total = 0
    for name, size in sorted(sizes.items(), key=lambda each: each[1]):
        if len(chosen) >= at_least and size > _GROWTH * total:
            break
        chosen.add(name)
        total += size
    return chosen


def pyiceberg_value(kind: Callable[..., T], **fields: object) -> T:
    """Return a value of pyiceberg's with these fields. mypy knows them only by their names in JSON."""
    return kind(**fields)


class _DeletesWriter(ManifestWriterV2):
    """pyiceberg writes manifests of data files only; one of delete files differs in these two places."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def commit(
    catalog: TableCatalog, version: TableVersion, change: Change, *, commit_id: str, now_ms: int, random: Random
) -> LoadedTable:
    """Make a change visible, and return the table with it. Raises `TableMoved`; then nothing is visible."""
    metadata = version.loaded.metadata
    assert isinstance(metadata, TableMetadataV2), "`TableVersion` has looked at it"
    parent = version.snapshot
    snapshot_id = random.getrandbits(63)
    schema, updates = _schema_updates(version, change.schema)
    writing = _Manifests(version, schema, f"{metadata.location}/metadata/{commit_id}", snapshot_id)
    manifests = [
        *writing.of(ManifestContent.DATA, change),
        *writing.of(ManifestContent.DELETES, change),
    ]
    sequence_number = metadata.last_sequence_number + 1
    location = f"{metadata.location}/metadata/snap-{snapshot_id}-{commit_id}.avro"
    with write_manifest_list(
        2,
        version.files.new_output(location),
        snapshot_id,
        None if parent is None else parent.snapshot_id,
        sequence_number,
        "deflate",
    ) as listing:
        listing.add_manifests(manifests)
    if change.properties:
        updates.append(SetPropertiesUpdate(updates=dict(change.properties)))
    snapshot = pyiceberg_value(
        Snapshot,
        snapshot_id=snapshot_id,
        parent_snapshot_id=None if parent is None else parent.snapshot_id,
        sequence_number=sequence_number,
        timestamp_ms=max(now_ms, metadata.last_updated_ms),
        manifest_list=location,
        summary=_summary(version, change),
        schema_id=schema.schema_id,
    )
    reference = pyiceberg_value(
        SetSnapshotRefUpdate, ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id
    )
    updates += [AddSnapshotUpdate(snapshot=snapshot), reference]
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        pyiceberg_value(
            AssertRefSnapshotId, ref=MAIN_BRANCH, snapshot_id=None if parent is None else parent.snapshot_id
        ),
    )
    return catalog.commit(version.loaded, requirements, tuple(updates))


def _schema_updates(version: TableVersion, schema: Schema | None) -> tuple[Schema, list[TableUpdate]]:
    """Return the schema with its id, and what makes it the current one."""
    if schema is None:
        return version.schema, []
    number = max(each.schema_id for each in version.loaded.metadata.schemas) + 1
    added = Schema(*schema.fields, schema_id=number)
    return added, [AddSchemaUpdate(schema=added), pyiceberg_value(SetCurrentSchemaUpdate, schema_id=_LAST_ADDED)]


def commit_spec(catalog: TableCatalog, version: TableVersion, schema: Schema, spec: PartitionSpec) -> LoadedTable:
    """Partition a table that has no rows, and return it. Raises `TableMoved`."""
    metadata = version.loaded.metadata
    _, updates = _schema_updates(version, None if schema == version.schema else schema)
    updates += [AddPartitionSpecUpdate(spec=spec), pyiceberg_value(SetDefaultSpecUpdate, spec_id=_LAST_ADDED)]
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        pyiceberg_value(AssertDefaultSpecId, default_spec_id=metadata.default_spec_id),
        pyiceberg_value(AssertRefSnapshotId, ref=MAIN_BRANCH, snapshot_id=metadata.current_snapshot_id),
    )
    return catalog.commit(version.loaded, requirements, tuple(updates))


class _Manifests:
    """The manifests of one new snapshot."""

    def __init__(self, version: TableVersion, schema: Schema, prefix: str, snapshot_id: int) -> None:
        self._version = version
        self._schema = schema
        self._prefix = prefix
        self._snapshot_id = snapshot_id
        self._count = 0

    def of(self, content: ManifestContent, change: Change) -> list[ManifestFile]:
        """Return the manifests of one kind, of which the changed ones are written."""
        added = [file for file in change.added if _content_of(file) is content]
        old = [each for each in self._version.manifests if each.content is content]
        live = [each for each in old if self._version.entries[each.manifest_path]]
        merged = self._to_merge(live) if len(live) + bool(added) > MANIFESTS_MAX else set()
        kept: list[ManifestFile] = []
        rewritten: dict[int, list[ManifestEntry]] = {}
        for manifest in live:
            entries = self._version.entries[manifest.manifest_path]
            if manifest.manifest_path in merged or any(e.data_file.file_path in change.removed for e in entries):
                rewritten.setdefault(manifest.partition_spec_id, []).extend(entries)
            else:
                kept.append(manifest)
        for file in added:
            rewritten.setdefault(file.spec_id, [])
        new = [
            self._written(content, number, entries, [each for each in added if each.spec_id == number], change.removed)
            for number, entries in rewritten.items()
        ]
        return [*kept, *new]

    def _to_merge(self, manifests: Sequence[ManifestFile]) -> set[str]:
        """Return which manifests become one."""
        return small_ones({each.manifest_path: len(self._version.entries[each.manifest_path]) for each in manifests}, 2)

    def _written(
        self,
        content: ManifestContent,
        spec_id: int,
        entries: Iterable[ManifestEntry],
        added: Iterable[DataFile],
        removed: frozenset[str],
    ) -> ManifestFile:
        self._count += 1
        location = f"{self._prefix}-m{self._count}.avro"
        spec = self._version.loaded.metadata.specs()[spec_id]
        kind = _DeletesWriter if content is ManifestContent.DELETES else ManifestWriterV2
        output = self._version.files.new_output(location)
        with kind(spec, self._schema, output, self._snapshot_id, "deflate") as writer:
            for entry in entries:
                if entry.data_file.file_path in removed:
                    writer.delete(entry)
                else:
                    writer.existing(entry)
            for file in added:
                status, number = ManifestEntryStatus.ADDED, self._snapshot_id
                writer.add(ManifestEntry.from_args(status=status, snapshot_id=number, data_file=file))
        return writer.to_manifest_file()


def _content_of(file: DataFile) -> ManifestContent:
    return ManifestContent.DATA if file.content is DataFileContent.DATA else ManifestContent.DELETES


def _summary(version: TableVersion, change: Change) -> Summary:
    """Return the summary: Iceberg's counts, and the version of each partition that the snapshot shows."""
    metadata = version.loaded.metadata
    collector = SnapshotSummaryCollector()
    for file in change.added:
        collector.add_file(file, version.schema, metadata.specs()[file.spec_id])
    for entries in version.entries.values():
        for entry in entries:
            if entry.data_file.file_path in change.removed:
                spec = metadata.specs()[entry.data_file.spec_id]
                collector.remove_file(entry.data_file, version.schema, spec)
    parent = version.snapshot
    before = parent.summary.additional_properties if parent is not None and parent.summary is not None else None
    counts = update_snapshot_summaries(Summary(Operation.OVERWRITE, **collector.build()), before)
    states = {f"{STATE}{number}": shown.text() for number, shown in sorted(change.shown.items())}
    return Summary(change.operation, **counts.additional_properties, **states)
