"""Prove one partition's log: read all of it back, and compare every part with every other.

    manifest    can be read, is sound in itself (`keyfold.log.manifest.faults`), and is not older than the objects
    objects     every listed one is there, with its size and SHA-256
    segments    see `verify_segment`: blocks, records and index row by row, counts, times, marks, sync marker
    keys        see `verify_keys`: nothing superseded below the first dirty offset, nothing under a marked tombstone,
                nothing gone that replaced objects still know
    the rest    orphans, replaced objects that wait for their deletion, unfinished uploads: notes, no damage

Everything is read once; only what is damaged is read again, to say what is lost. `parallel` segments are read at a
time. Memory is bounded, whatever the log's size: an index and a range per segment that is being read, and the rows of
`verify_hashes`.

The folder is listed before the manifest is read, so that nothing that is being committed looks like an orphan. The log
may be in use: when an object of the version under test has been collected meanwhile, the newest version is verified
from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from keyfold.clock import Clock
from keyfold.errors import Corrupt, ManifestLost, ObjectNotFound
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place, parse_name
from keyfold.log.partition_log import PartitionLog
from keyfold.read.findings import REPORT, RESTORE, Finding, Findings, Kind, VerifyReport
from keyfold.read.verify_blame import blame, impostors
from keyfold.read.verify_hashes import ROWS_AT_ONCE, HashedRows
from keyfold.read.verify_keys import add_replaced, check_keys, replaced_indexes
from keyfold.read.verify_segment import Progress, SegmentCheck
from keyfold.store.api import ObjectStore, UploadInfo

__all__ = ["Finding", "Kind", "VerifyReport", "verify_partition"]


@dataclass(slots=True)
class Folder:
    """What was in a partition's folder, before the manifest was read: sizes by name, and unfinished uploads."""

    sizes: dict[str, int]
    uploads: tuple[UploadInfo, ...]

    @staticmethod
    def list(store: ObjectStore, place: Place) -> Folder:
        """Look now."""
        sizes = {info.key.removeprefix(place.folder): info.size_bytes for info in store.list(place.folder)}
        return Folder(sizes, tuple(store.list_uploads(place.folder)))


def verify_partition(
    store: ObjectStore,
    place: Place,
    *,
    clock: Clock,
    random: Random,
    progress: Progress = lambda _: None,
    parallel: int = 1,
    rows_at_once: int = ROWS_AT_ONCE,
) -> VerifyReport:
    """Verify the newest version of a partition's log.

    Damage is in the report, not raised. `progress` may be called from `parallel` threads. Raises `LogNotFound` where
    no log is, `FormatTooNew` where this version cannot judge, and `StoreError` where the store cannot be asked.
    """
    log = PartitionLog(store, place, clock=clock, random=random)
    while True:
        folder = Folder.list(store, place)
        try:
            manifest = log.load().manifest
        except (Corrupt, ManifestLost) as error:
            return VerifyReport(place, -1, 0, 0, (unreadable(place, error),))
        with HashedRows(expected_rows(manifest), rows_at_once) as rows:
            report = Verification(store, place, log, manifest, folder, rows, progress).run(parallel)
        if report is not None:
            return report


def unreadable(place: Place, error: Corrupt | ManifestLost) -> Finding:
    """The finding about a manifest that cannot be read."""
    repair = f"keyfold log repair <url> {place.topic} --partition {place.partition}"
    if isinstance(error, ManifestLost):
        lost = "nothing that the segments hold; the list of what the log is made of"
        return Finding(Kind.MANIFEST_LOST, place.manifest_key, error.message, lost, repair)
    lost = "unknown: nothing else can be judged without it"
    return Finding(Kind.MANIFEST_DAMAGED, place.manifest_key, error.message, lost, f"{repair} --replace-damaged")


def expected_rows(manifest: Manifest) -> int:
    """About how many rows there will be, of keys in the log and in what it replaced."""
    return manifest.record_count * (2 if manifest.replaced else 1)


class _Moved(Exception):
    """An object of the version under test was collected: begin again."""


class Verification:
    """The verification of one version: which segments to check, and what their checks add up to."""

    def __init__(
        self,
        store: ObjectStore,
        place: Place,
        log: PartitionLog,
        manifest: Manifest,
        folder: Folder,
        rows: HashedRows,
        progress: Progress,
    ) -> None:
        self._store = store
        self._place = place
        self._log = log
        self._manifest = manifest
        self._folder = folder
        self._sizes = folder.sizes
        self._rows = rows
        self._progress = progress
        self._names = {e.checksum: e.name for e in manifest.segments}
        self._findings = Findings()

    def run(self, parallel: int) -> VerifyReport | None:
        """The report, or None where the log has moved on under it."""
        manifest = self._manifest
        try:
            self._findings.extend(contradictions(self._place, manifest, self._folder))
            present = [entry for entry in manifest.segments if self._is_present(entry)]
            checks = self._check_all(present, parallel)
            add_replaced(self._store, self._place, manifest, self._replaced(), self._rows)
            self._findings.extend(check_keys(self._store, self._place, manifest, self._rows))
        except (_Moved, ObjectNotFound):
            return None  # what is missing for good is a finding in the next round
        for check in checks:
            self._findings.extend(check.findings)
        self._findings.extend(impostors(checks, self._names))
        self._findings.extend(notes(self._place, manifest, self._folder))
        records = sum(check.seen.record_count for check in checks)
        found = tuple(self._findings)
        return VerifyReport(self._place, manifest.version, len(manifest.segments), records, found, manifest.size_bytes)

    def _check_all(self, entries: Iterable[SegmentEntry], parallel: int) -> list[SegmentCheck]:
        if parallel == 1:
            return [self._check(entry) for entry in entries]
        with ThreadPoolExecutor(parallel, thread_name_prefix="verify") as pool:
            return list(pool.map(self._check, entries))

    def _check(self, entry: SegmentEntry) -> SegmentCheck:
        check = SegmentCheck(
            self._store,
            self._place,
            entry,
            self._manifest.sync_marker,
            self._sizes[entry.name],
            self._progress,
            self._rows.add,
        )
        check.run()
        if not check.has_index and self._is_newer_without(entry.index_name):
            raise _Moved
        if check.checksum == entry.checksum or check.checksum not in self._names:
            blame(check)
        return check

    def _replaced(self) -> list[str]:
        return [name for name in replaced_indexes(self._manifest) if name in self._sizes]

    def _is_present(self, entry: SegmentEntry) -> bool:
        """Whether the segment is there; a finding where it is not, and about its index where that is not either."""
        missing = [name for name in (entry.name, entry.index_name) if not self._find(name)]
        for name in missing:
            if self._is_newer_without(name):
                raise _Moved
        if entry.name not in missing:
            return True
        for name in missing:
            self._findings.add(_missing(self._place, entry, name))
        return False

    def _find(self, name: str) -> bool:
        if name not in self._sizes:  # it may have been uploaded after the listing
            try:
                self._sizes[name] = self._store.head(self._place.key(name)).size_bytes
            except ObjectNotFound:
                return False
        return True

    def _is_newer_without(self, name: str) -> bool:
        return name not in self._log.load().manifest.object_names()


def notes(place: Place, manifest: Manifest, folder: Folder) -> Iterator[Finding]:
    """Objects in the folder that are not part of the log."""
    listed = manifest.object_names()
    replaced = {r.name for r in manifest.replaced}
    for name, size_bytes in folder.sizes.items():
        key = place.key(name)
        if name in listed or key == place.manifest_key:
            continue
        if name in replaced:
            yield Finding(Kind.REPLACED, key, f"{size_bytes} bytes wait for their deletion")
        elif parse_name(name) is not None:
            what = f"{size_bytes} bytes that no manifest names; the collector takes it when its writer's epoch is over"
            yield Finding(Kind.ORPHAN, key, what)
        else:
            yield Finding(Kind.UNKNOWN_OBJECT, key, f"{size_bytes} bytes; keyfold does not make such names")
    for upload in folder.uploads:
        yield Finding(Kind.UNFINISHED_UPLOAD, upload.key, f"multipart upload {upload.upload_id} was not finished")


def contradictions(place: Place, manifest: Manifest, folder: Folder) -> Iterator[Finding]:
    """What a manifest that can be read says and cannot be.

    A writer claims its epoch in the manifest before it uploads anything, and the folder was listed before the manifest
    was read: so a name with an epoch that the manifest does not know proves that a newer manifest was there.
    """
    uploads = (u.key.removeprefix(place.folder) for u in folder.uploads)
    names = [parsed for name in (*folder.sizes, *uploads) if (parsed := parse_name(name)) is not None]
    newer = [n for n in names if n.epoch > manifest.last_epoch and str(n) not in manifest.object_names()]
    if newer:
        what = (
            f"it knows epochs up to {manifest.last_epoch}, and {newer[0]} ({len(newer)} objects like it) was written "
            f"by epoch {max(n.epoch for n in newer)}: an older version of the manifest was put back"
        )
        lost = "what was committed since that version"
        to_do = "stop sink and compactor; restore the newest version of the manifest, or move this one away and repair"
        yield Finding(Kind.MANIFEST_OUTDATED, place.manifest_key, what, lost, to_do)
    for what in _impossible(manifest):
        yield Finding(Kind.MANIFEST_DAMAGED, place.manifest_key, what, "unknown", REPORT)


def _impossible(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.segments:
        for name in (entry.name, entry.index_name):
            parsed = parse_name(name)
            if parsed is None or parsed.is_index != (name == entry.index_name):
                yield f"{name} is not the name of a segment or an index"
            elif parsed.epoch > manifest.last_epoch:
                yield f"{name} has an epoch above last_epoch {manifest.last_epoch}"
    if manifest.purged_to >= manifest.next_offset > 0:
        yield f"purged_to is {manifest.purged_to}, next_offset {manifest.next_offset}"
    newest_pass = max(manifest.last_pass_epoch, manifest.purged_epoch, *(p.epoch for p in manifest.passes), 0)
    if newest_pass > manifest.last_epoch:
        yield f"a pass has epoch {newest_pass}, last_epoch is {manifest.last_epoch}"


def _missing(place: Place, entry: SegmentEntry, name: str) -> Finding:
    if name == entry.name:
        lost = f"{entry.record_count} records, offsets {entry.base_offset} to {entry.last_offset}"
        return Finding(Kind.SEGMENT_MISSING, place.key(name), "the manifest lists it, the bucket has it not", lost)
    what = f"the manifest lists it for {entry.name}, the bucket has it not"
    return Finding(Kind.INDEX_MISSING, place.key(name), what, to_do=RESTORE)
