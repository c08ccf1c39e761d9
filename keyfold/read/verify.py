"""Prove one partition's log: read all of it back, and compare every part with every other.

    manifest    can be read, and is sound in itself (`keyfold.log.manifest.faults`)
    objects     every listed one is there, with its size and SHA-256
    segments    see `verify_segment`: blocks, records and index row by row, counts, times, marks, sync marker
    keys        see `verify_keys`: nothing superseded below the first dirty offset, nothing under a marked tombstone
    the rest    orphans, replaced objects that wait for their deletion, unfinished uploads: notes, no damage

The folder is listed before the manifest is read, so that nothing that is being committed looks like an orphan. The log
may be in use: when an object of the version under test has been collected meanwhile, the newest version is verified
from the beginning. One segment at a time; memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from keyfold.clock import Clock
from keyfold.errors import Corrupt, ManifestLost, ObjectNotFound
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place, parse_name
from keyfold.log.partition_log import PartitionLog
from keyfold.read.findings import RESTORE, Finding, Kind, VerifyReport
from keyfold.read.verify_keys import check_keys
from keyfold.read.verify_segment import Progress, SegmentCheck
from keyfold.store.api import ObjectStore

__all__ = ["Finding", "Kind", "VerifyReport", "verify_partition"]

Sizes = dict[str, int]
"""Size of each object in the partition's folder, by its name there."""


def verify_partition(
    store: ObjectStore, place: Place, *, clock: Clock, random: Random, progress: Progress = lambda _: None
) -> VerifyReport:
    """Verify the newest version of a partition's log.

    Damage is in the report, not raised. Raises `LogNotFound` where no log is, `FormatTooNew` where this version cannot
    judge, and `StoreError` where the store cannot be asked.
    """
    log = PartitionLog(store, place, clock=clock, random=random)
    while True:
        sizes = {info.key.removeprefix(place.folder): info.size_bytes for info in store.list(place.folder)}
        try:
            manifest = log.load().manifest
        except (Corrupt, ManifestLost) as error:
            return VerifyReport(place, -1, 0, 0, (_unreadable(place, error),))
        report = _Verification(store, place, log, manifest, sizes, progress).run()
        if report is not None:
            return report


def _unreadable(place: Place, error: Corrupt | ManifestLost) -> Finding:
    if isinstance(error, ManifestLost):
        to_do = f"keyfold log repair <url> {place.topic} --partition {place.partition}"
        lost = "nothing that the segments hold; the list of what the log is made of"
        return Finding(Kind.MANIFEST_LOST, place.manifest_key, error.message, lost, to_do)
    lost = "unknown: nothing else can be judged without it"
    return Finding(Kind.MANIFEST_DAMAGED, place.manifest_key, error.message, lost, error.hint or RESTORE)


class _Moved(Exception):
    """An object of the version under test was collected: begin again."""


class _Verification:
    """The verification of one version."""

    def __init__(
        self, store: ObjectStore, place: Place, log: PartitionLog, manifest: Manifest, sizes: Sizes, progress: Progress
    ) -> None:
        self._store = store
        self._place = place
        self._log = log
        self._manifest = manifest
        self._sizes = sizes
        self._progress = progress
        self._names_by_checksum = {e.checksum: e.name for e in manifest.segments}
        self._findings: list[Finding] = []
        self._records = 0

    def run(self) -> VerifyReport | None:
        """The report, or None where the log has moved on under it."""
        manifest = self._manifest
        try:
            present = [entry for entry in manifest.segments if self._is_present(entry)]
            for entry in present:
                self._check_segment(entry)
            if len(present) == len(manifest.segments):
                self._findings.extend(check_keys(self._store, self._place, manifest))
        except (_Moved, ObjectNotFound):
            return None  # what is missing for good is a finding in the next round
        self._findings.extend(self._notes())
        return VerifyReport(self._place, manifest.version, len(manifest.segments), self._records, tuple(self._findings))

    def _check_segment(self, entry: SegmentEntry) -> None:
        check = SegmentCheck(
            self._store,
            self._place,
            entry,
            self._manifest.sync_marker,
            self._names_by_checksum,
            self._sizes[entry.name],
            self._progress,
        )
        check.run()
        self._findings.extend(check.findings)
        self._records += check.seen.record_count

    def _is_present(self, entry: SegmentEntry) -> bool:
        """Whether both objects are there; a finding for each that is not."""
        missing = [name for name in (entry.name, entry.index_name) if not self._find(name)]
        for name in missing:
            if self._is_newer_without(name):
                raise _Moved
            self._findings.append(_missing(self._place, entry, name))
        return not missing

    def _find(self, name: str) -> bool:
        if name not in self._sizes:  # it may have been uploaded after the listing
            try:
                self._sizes[name] = self._store.head(self._place.key(name)).size_bytes
            except ObjectNotFound:
                return False
        return True

    def _is_newer_without(self, name: str) -> bool:
        return name not in self._log.load().manifest.object_names()

    def _notes(self) -> Iterator[Finding]:
        listed = self._manifest.object_names()
        replaced = {r.name for r in self._manifest.replaced}
        for name, size_bytes in self._sizes.items():
            key = self._place.key(name)
            if name in listed or key == self._place.manifest_key:
                continue
            if name in replaced:
                yield Finding(Kind.REPLACED, key, f"{size_bytes} bytes wait for their deletion")
            elif parse_name(name) is not None:
                what = (
                    f"{size_bytes} bytes that no manifest names; the collector takes it when its writer's epoch is over"
                )
                yield Finding(Kind.ORPHAN, key, what)
            else:
                yield Finding(Kind.UNKNOWN_OBJECT, key, f"{size_bytes} bytes; keyfold does not make such names")
        for upload in self._store.list_uploads(self._place.folder):
            yield Finding(Kind.UNFINISHED_UPLOAD, upload.key, f"multipart upload {upload.upload_id} was not finished")


def _missing(place: Place, entry: SegmentEntry, name: str) -> Finding:
    if name == entry.name:
        lost = f"{entry.record_count} records, offsets {entry.base_offset} to {entry.last_offset}"
        return Finding(Kind.SEGMENT_MISSING, place.key(name), "the manifest lists it, the bucket has it not", lost)
    what = f"the manifest lists it for {entry.name}, the bucket has it not"
    return Finding(Kind.INDEX_MISSING, place.key(name), what)
