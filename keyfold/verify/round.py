"""One round of a verification: one version of one partition, what has to be read for it, and what that adds up to.

    begin     list the folder, then read the manifest: so nothing that is being committed looks like an orphan
    jobs      a `SegmentJob` for each segment that is there; `check_segment` may run anywhere, and gives a plain value
    report    findings of all: of the manifest, the segments, their keys, and notes about the rest of the folder

`VerifiedVersionGone` is raised if an object is gone that a newer version does not list either: then another round
begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from keyfold.errors import Corrupt, FirstCopyUnfinished, ManifestLost, ObjectNotFound
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import FIRST_COPY_NAME, ObjectName, Place, Role, is_manifest_copy, parse_name
from keyfold.log.partition_log import PartitionLog
from keyfold.store.api import ObjectStore, UploadInfo
from keyfold.verify.diagnosis import blame, impostors
from keyfold.verify.findings import REPORT, RESTORE, Finding, FindingKind, Findings, VerifyReport
from keyfold.verify.key_rules import Promises, Suspected, replaced_indexes, tell
from keyfold.verify.segment import Progress, RowSink, SegmentCheck, SegmentResult

__all__ = ["Folder", "Round", "SegmentJob", "SegmentResult", "VerifiedVersionGone", "check_segment"]


ROWS_PER_BYTE: Final = 64
"""Records that a stored byte may stand for when memory and tasks are planned. A manifest may claim any number."""


@dataclass(slots=True)
class Folder:
    """What was in a partition's folder, before the manifest was read: sizes by name, and unfinished uploads."""

    sizes: dict[str, int]
    uploads: tuple[UploadInfo, ...]

    @staticmethod
    def look(store: ObjectStore, place: Place) -> Folder:
        """Look now."""
        sizes = {info.key.removeprefix(place.folder): info.size_bytes for info in store.list(place.folder)}
        return Folder(sizes, tuple(store.list_uploads(place.folder)))


class VerifiedVersionGone(Exception):
    """An object of the version under test was collected: begin again."""


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """A segment to check. `checksums` are those of all listed segments: one of theirs here needs no other blame."""

    place: Place
    entry: SegmentEntry
    sync_marker: bytes
    size_bytes: int
    checksums: frozenset[bytes]


def check_segment(store: ObjectStore, job: SegmentJob, progress: Progress, on_rows: RowSink) -> SegmentResult:
    """Check one segment. Raises `ObjectNotFound` where it has gone, and other store errors."""
    check = SegmentCheck(store, job.place, job.entry, job.sync_marker, job.size_bytes, progress, on_rows)
    check.run()
    if check.checksum == job.entry.checksum or check.checksum not in job.checksums:
        blame(check)
    return check.result()


class Round:
    """See the module. `findings` are known before anything is read."""

    def __init__(self, log: PartitionLog, manifest: Manifest, folder: Folder) -> None:
        self.place = log.place
        self.manifest = manifest
        self._log = log
        self._folder = folder
        self._findings = Findings()
        self._findings.extend(_contradictions(self.place, manifest, folder))
        present = [entry for entry in manifest.segments if self._is_present(entry)]
        checksums = frozenset(e.checksum for e in manifest.segments)
        self.jobs = [
            SegmentJob(self.place, entry, manifest.sync_marker, folder.sizes[entry.name], checksums)
            for entry in present
        ]
        self.replaced = [name for name in replaced_indexes(manifest) if name in folder.sizes]
        self.promises = Promises(manifest.first_dirty_offset, manifest.purged_to)
        claimed = manifest.record_count * (2 if self.replaced else 1)
        self.expected_rows = min(claimed, ROWS_PER_BYTE * sum(job.size_bytes for job in self.jobs))

    @staticmethod
    def begin(log: PartitionLog) -> Round | VerifyReport:
        """Begin with the newest version; the report where no manifest can be read.

        Raises `VerifiedVersionGone`, `LogNotFound`, `FormatTooNew`, `StoreError`.
        """
        folder = Folder.look(log.store, log.place)
        try:
            manifest = log.load().manifest
        except (Corrupt, FirstCopyUnfinished, ManifestLost) as error:
            return VerifyReport(log.place, -1, 0, 0, (_unreadable(log.place, error),))
        return Round(log, manifest, folder)

    def report(self, results: Sequence[SegmentResult], suspected: Suspected) -> VerifyReport:
        """What it all adds up to. Raises `VerifiedVersionGone`, `ObjectNotFound`."""
        manifest, findings = self.manifest, self._findings
        for result in results:
            if not result.has_index and self._is_newer_without(result.entry.index_name):
                raise VerifiedVersionGone
        knows_all = len(results) == len(manifest.segments) and all(r.knows_keys for r in results)
        findings.extend(tell(self._log.store, self.place, manifest, suspected, knows_all=knows_all))
        for result in results:
            findings.extend(result.findings)
        findings.extend(impostors(self.place, results, {e.checksum: e.name for e in manifest.segments}))
        findings.extend(_notes(self.place, manifest, self._folder))
        records = sum(result.record_count for result in results)
        found = tuple(findings)
        return VerifyReport(self.place, manifest.version, len(manifest.segments), records, found, manifest.size_bytes)

    def _is_present(self, entry: SegmentEntry) -> bool:
        """Whether the segment is there; a finding where it is not, and about its index where that is not either."""
        missing = [name for name in (entry.name, entry.index_name) if not self._find(name)]
        for name in missing:
            if self._is_newer_without(name):
                raise VerifiedVersionGone
        if entry.name not in missing:
            return True  # a missing index alone is found when the segment is read
        for name in missing:
            self._findings.add(_missing(self.place, entry, name))
        return False

    def _find(self, name: str) -> bool:
        sizes = self._folder.sizes
        if name not in sizes:  # it may have been uploaded after the listing
            try:
                sizes[name] = self._log.store.head(self.place.key(name)).size_bytes
            except ObjectNotFound:
                return False
        return True

    def _is_newer_without(self, name: str) -> bool:
        return name not in self._log.load().manifest.object_names()


def _unreadable(place: Place, error: Corrupt | FirstCopyUnfinished | ManifestLost) -> Finding:
    """The finding about a manifest that cannot be read."""
    if isinstance(error, FirstCopyUnfinished):
        return Finding(FindingKind.FIRST_COPY, place.folder, str(error))
    repair = place.command("repair")
    if isinstance(error, ManifestLost):
        lost = "no record in the segments; only the list of the log's segments"
        return Finding(FindingKind.MANIFEST_LOST, place.manifest_key, error.message, lost, repair)
    lost = "unknown: nothing else can be verified without the manifest"
    return Finding(FindingKind.MANIFEST_DAMAGED, place.manifest_key, error.message, lost, f"{repair} --replace-damaged")


def _notes(place: Place, manifest: Manifest, folder: Folder) -> Iterator[Finding]:
    """Objects in the folder that are not part of the log."""
    listed = manifest.object_names()
    replaced = {r.name for r in manifest.replaced}
    for name, size_bytes in folder.sizes.items():
        key = place.key(name)
        if name in listed or key == place.manifest_key:
            continue
        if name in replaced:
            yield Finding(FindingKind.REPLACED, key, f"{size_bytes} bytes are waiting to be deleted")
        elif parse_name(name) is not None:
            yield Finding(
                FindingKind.ORPHAN, key, f"{size_bytes} bytes that the manifest does not list; {_taken_by(manifest)}"
            )
        elif name == FIRST_COPY_NAME:
            yield Finding(FindingKind.ORPHAN, key, f"the marker of a complete first copy; {_marker_goes(manifest)}")
        elif is_manifest_copy(name):
            what = f"{size_bytes} bytes of a damaged manifest, saved by `keyfold log repair --replace-damaged`"
            yield Finding(FindingKind.MANIFEST_COPY, key, f"{what}; delete this copy when you no longer need it")
        else:
            yield Finding(FindingKind.UNKNOWN_OBJECT, key, f"{size_bytes} bytes; keyfold does not use such names")
    for upload in folder.uploads:
        yield Finding(
            FindingKind.UNFINISHED_UPLOAD, upload.key, f"multipart upload {upload.upload_id} was not finished"
        )


def _marker_goes(manifest: Manifest) -> str:
    return "the replicator deletes it" if manifest.is_replica else "you can delete it"


def _taken_by(manifest: Manifest) -> str:
    if manifest.is_replica:
        return "a running round needs it, or the replicator deletes it"
    return "the compactor deletes it when its writer's epoch has ended"


def _contradictions(place: Place, manifest: Manifest, folder: Folder) -> Iterator[Finding]:
    """What a manifest that can be read says and cannot be.

    A writer claims its epoch in the manifest before it uploads anything, and the folder was listed before the manifest
    was read: so a name with an epoch that the manifest does not know proves that a newer manifest was there. A sink
    uploads a segment only when the one before it is committed: so does a segment of its that begins behind the
    manifest's end. Not so in a replica: there epochs are the source's, and objects come before the manifest that knows
    them.
    """
    uploads = (u.key.removeprefix(place.folder) for u in folder.uploads)
    names = [parsed for name in (*folder.sizes, *uploads) if (parsed := parse_name(name)) is not None]
    newer = [n for n in names if n.epoch > manifest.last_epoch and str(n) not in manifest.object_names()]
    if newer and not manifest.is_replica:
        what = (
            f"its last epoch is {manifest.last_epoch}, but {newer[0]} ({len(newer)} such objects) was written "
            f"by epoch {max(n.epoch for n in newer)}: an older version of the manifest was put back"
        )
        yield _outdated(place, what)
    elif not manifest.is_replica and (behind := _behind_the_end(manifest, folder)):
        what = (
            f"it ends at offset {manifest.next_offset}, but {behind[0]} ({len(behind)} such objects), written by its "
            "sink, starts after that offset: an older version of the manifest was put back"
        )
        yield _outdated(place, what)
    for what in _impossible(manifest):
        yield Finding(FindingKind.MANIFEST_DAMAGED, place.manifest_key, what, "unknown", REPORT)


def _outdated(place: Place, what: str) -> Finding:
    lost = "everything that was committed since that version"
    to_do = (
        "stop the sink and the compactor; restore the newest version of the manifest, or move this one away and repair"
    )
    return Finding(FindingKind.MANIFEST_OUTDATED, place.manifest_key, what, lost, to_do)


def _behind_the_end(manifest: Manifest, folder: Folder) -> list[ObjectName]:
    """What the sink that writes now has uploaded behind the log's end."""
    epoch = manifest.sink.epoch
    if manifest.lineage and epoch <= manifest.lineage[-1].last_epoch:
        return []  # no sink has come since the promotion, and a round may have brought what it did not commit
    names = [parsed for name in folder.sizes if (parsed := parse_name(name)) is not None]
    return [n for n in names if (n.role, n.epoch) == (Role.SINK, epoch) and n.base_offset > manifest.next_offset]


def _impossible(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.segments:
        for name in (entry.name, entry.index_name):
            parsed = parse_name(name)
            if parsed is None or parsed.is_index != (name == entry.index_name):
                yield f"{name} is not the name of a segment or an index"
            elif parsed.epoch > manifest.last_epoch:
                yield f"{name} has an epoch above last_epoch {manifest.last_epoch}"
    if manifest.purged_to >= manifest.next_offset > 0:
        yield f"purged_to is {manifest.purged_to}, but next_offset is {manifest.next_offset}"
    newest_pass = max(manifest.last_pass_epoch, manifest.purged_epoch, *(p.epoch for p in manifest.passes), 0)
    if newest_pass > manifest.last_epoch:
        yield f"a pass has epoch {newest_pass}, but last_epoch is {manifest.last_epoch}"


def _missing(place: Place, entry: SegmentEntry, name: str) -> Finding:
    if name == entry.name:
        lost = f"{entry.record_count} records, offsets {entry.base_offset} to {entry.last_offset}"
        return Finding(
            FindingKind.SEGMENT_MISSING, place.key(name), "the manifest lists it, but it is not in the bucket", lost
        )
    what = f"the manifest lists it for {entry.name}, but it is not in the bucket"
    return Finding(FindingKind.INDEX_MISSING, place.key(name), what, to_do=RESTORE)
