"""The report of a run, partition by partition, as values and as one JSON document. `report_text` has it as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Protocol, cast

from keyfold.log.gc import CollectedGarbage
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.replicas.after_run import AfterRunResult
from keyfold.runtime.json_types import JsonObject
from keyfold_compactor.decide.work import Traffic
from keyfold_compactor.report.log_state import LogState


class PartitionOutcome(Enum):
    """How a run ended for a partition."""

    CLEANED = "cleaned"
    EXPIRED = "expired"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"
    LOST = "lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LogSize:
    """Size of one version of a log. `bytes` are stored bytes of segments, without indexes."""

    records: int = 0
    tombstones: int = 0
    segments: int = 0
    bytes: int = 0
    index_bytes: int = 0
    first_dirty_offset: int = 0
    log_start_offset: int = 0
    next_offset: int = 0


def log_size(manifest: Manifest) -> LogSize:
    """Return the size of the segments that a manifest lists."""
    return LogSize(
        records=manifest.record_count,
        tombstones=sum(s.tombstone_count for s in manifest.segments),
        segments=len(manifest.segments),
        bytes=manifest.size_bytes,
        index_bytes=sum(s.index_size_bytes for s in manifest.segments),
        first_dirty_offset=manifest.first_dirty_offset,
        log_start_offset=manifest.log_start_offset,
        next_offset=manifest.next_offset,
    )


@dataclass(frozen=True, slots=True)
class Expired:
    """Segments, records and stored bytes (without indexes) that retention removed from a log's start; or the error."""

    segments: int = 0
    records: int = 0
    bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A run's report of one partition. Cleaning removed `superseded + purged + keyless` records, retention `expired`.

    `before` and `after` are the log's sizes before and after both. `held_tombstones` are past their delete horizon and
    are kept only for replicas. `segments_left` were not rewritten, because their garbage was below
    `segment.min.garbage.ratio`. The pass was cut into `parts` commits, and `parts_committed` of them were made. `kept`
    are records that cleaning looked at and kept. The replaced segments had `replaced_bytes`, the new ones have
    `made_bytes`. `seconds` is the duration of the pass, from the start of its batch's map to its last commit.
    """

    place: Place
    outcome: PartitionOutcome
    reasons: tuple[str, ...] = ()
    why: str = ""
    before: LogSize = LogSize()
    after: LogSize = LogSize()
    superseded: int = 0
    purged_tombstones: int = 0
    held_tombstones: int = 0
    keyless_removed: int = 0
    marked_tombstones: int = 0
    segments_written: int = 0
    indexes_written: int = 0
    segments_unlinked: int = 0
    segments_left: int = 0
    parts: int = 0
    parts_committed: int = 0
    kept: int = 0
    replaced_bytes: int = 0
    made_bytes: int = 0
    seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    expired: Expired = Expired()
    garbage: CollectedGarbage = field(default_factory=CollectedGarbage)
    gc_error: str = ""

    @property
    def removed(self) -> int:
        """Records that cleaning removed."""
        return self.superseded + self.purged_tombstones + self.keyless_removed

    @property
    def is_failure(self) -> bool:
        """Whether the run must end with exit code 1."""
        return self.outcome is PartitionOutcome.FAILED or bool(self.gc_error or self.expired.error)

    def document(self) -> JsonObject:
        """Return the partition's object in the JSON report."""
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "outcome": self.outcome.value,
            "reasons": list(self.reasons),
            "why": self.why,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "records_kept": self.kept,
            "records_removed": self.removed,
            "superseded": self.superseded,
            "tombstones_purged": self.purged_tombstones,
            "tombstones_held": self.held_tombstones,
            "tombstones_marked": self.marked_tombstones,
            "keyless_removed": self.keyless_removed,
            "segments_expired": self.expired.segments,
            "records_expired": self.expired.records,
            "bytes_expired": self.expired.bytes,
            "retention_error": self.expired.error,
            "segments_written": self.segments_written,
            "indexes_written": self.indexes_written,
            "segments_unlinked": self.segments_unlinked,
            "segments_left": self.segments_left,
            "parts": self.parts,
            "parts_committed": self.parts_committed,
            "seconds": round(self.seconds, 3),
            "bytes_read": self.traffic.read_bytes,
            "bytes_written": self.traffic.written_bytes,
            "bytes_freed": self.before.bytes - self.after.bytes,
            "throttle_wait_s": round(self.traffic.wait_s, 3),
            "objects_deleted": len(self.garbage.replaced),
            "orphans_deleted": len(self.garbage.orphans) + len(self.garbage.uploads),
            "sweep_error": self.gc_error,
        }


@dataclass(slots=True)
class RunReport:
    """The report of a whole run. `quiet_partitions` had nothing to do at all and are only counted.

    `by_retention` is what retention did before the rest of the run; `partitions` includes it. `executor_error` is why
    Spark failed for a whole batch; the batch's partitions repeat it. `under_way` are passes with committed parts that
    have more parts to come. `log_states` has the state of every log when it was last read. `uncleanable` are partitions
    whose last attempt failed, in this run or an earlier one. `replicas` and `tables` have the results of what follows
    the run, if that is configured.
    """

    by_place: dict[Place, PartitionReport] = field(default_factory=dict)
    by_retention: dict[Place, PartitionReport] = field(default_factory=dict)
    quiet_partitions: int = 0
    seconds: float = 0.0
    executor_error: str = ""
    under_way: dict[Place, PartitionReport] = field(default_factory=dict)
    log_states: dict[Place, LogState] = field(default_factory=dict)
    uncleanable: frozenset[Place] = frozenset()
    replicas: tuple[AfterRunResult, ...] = ()
    key_directories: tuple[AfterRunResult, ...] = ()
    tables: tuple[AfterRunResult, ...] = ()

    @property
    def partitions(self) -> list[PartitionReport]:
        """The reports of all partitions, by topic and partition."""
        found = {**self.by_retention, **{place: self._whole(part) for place, part in self.by_place.items()}}
        return sorted(found.values(), key=lambda p: (p.place.topic, p.place.partition))

    @property
    def reported(self) -> frozenset[Place]:
        """Partitions that have a report."""
        return frozenset(self.by_place) | frozenset(self.by_retention)

    def _whole(self, part: PartitionReport) -> PartitionReport:
        """Combine a partition's report with what retention did before."""
        first = self.by_retention.get(part.place)
        if first is None:
            return part
        after = first.after if part.after == LogSize() else part.after
        outcome = first.outcome if part.outcome is PartitionOutcome.UNCHANGED and not part.why else part.outcome
        return replace(part, outcome=outcome, expired=first.expired, before=first.before, after=after)

    def add(self, partition: PartitionReport) -> None:
        """Add the report of a partition; each partition is added once. May be called by many threads."""
        self.by_place[partition.place] = partition
        self.under_way.pop(partition.place, None)

    def so_far(self) -> RunReport:
        """Return a copy, also during the run. Passes in progress count with their committed parts."""
        # The interpreter copies a dict in one step, but does not iterate over it in one.
        by_place = {**self.under_way, **self.by_place}
        return replace(
            self,
            by_place=by_place,
            by_retention=dict(self.by_retention),
            log_states=dict(self.log_states),
            under_way={},
        )

    def add_expired(self, place: Place, expired: Expired, before: LogSize, after: LogSize) -> None:
        """Report what retention did to a partition. May be called by many threads."""
        outcome = PartitionOutcome.FAILED if expired.error else PartitionOutcome.EXPIRED
        self.by_retention[place] = PartitionReport(place, outcome, expired=expired, before=before, after=after)

    @property
    def failed(self) -> list[PartitionReport]:
        """Partitions that failed."""
        return [p for p in self.partitions if p.is_failure]

    @property
    def exit_code(self) -> int:
        """Return 1 if a partition, or anything that followed the run, failed, else 0."""
        return 1 if self.failed or any(each.is_failure for each in self.after) else 0

    @property
    def after(self) -> tuple[AfterRunResult, ...]:
        """What followed the run: of replicas, of directories of keys, of tables."""
        return (*self.replicas, *self.key_directories, *self.tables)

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to report."""
        return not self.partitions and not any(each.is_news for each in self.after)

    def add_garbage(self, place: Place, garbage: CollectedGarbage, error: str) -> None:
        """Add the objects that were deleted in a partition."""
        known = self.by_place.get(place, PartitionReport(place, PartitionOutcome.UNCHANGED))
        self.by_place[place] = replace(known, garbage=garbage, gc_error=error)

    def document(self) -> JsonObject:
        """Return the JSON report."""
        parts = self.partitions
        documents = [p.document() for p in parts]
        summed = (
            "records_kept",
            "records_removed",
            "segments_expired",
            "records_expired",
            "bytes_expired",
            "tombstones_purged",
            "tombstones_held",
            "tombstones_marked",
            "segments_written",
            "segments_unlinked",
            "bytes_read",
            "bytes_written",
            "bytes_freed",
            "throttle_wait_s",
            "objects_deleted",
            "orphans_deleted",
        )
        return {
            "seconds": round(self.seconds, 3),
            "partitions_looked_at": len(parts) + self.quiet_partitions,
            "partitions_cleaned": sum(p.outcome is PartitionOutcome.CLEANED for p in parts),
            "partitions_failed": len(self.failed),
            "totals": {name: round(sum(cast("float", d[name]) for d in documents), 3) for name in summed},
            "replicas": [dict(r.document) for r in self.replicas],
            "key_directories": [dict(each.document) for each in self.key_directories],
            "tables": [dict(each.document) for each in self.tables],
            "partitions": documents,
        }


class RunObserver(Protocol):
    """An observer of all runs of a process, such as the metrics."""

    def run_started(self, report: RunReport) -> None:
        """A run starts; it fills this report from its own threads."""

    def run_ended(self, report: RunReport) -> None:
        """The run has ended."""

    def run_failed(self) -> None:
        """The run failed as a whole; its report has what it did until then."""


class NoRunObserver:
    """An observer that does nothing."""

    def run_started(self, report: RunReport) -> None:
        """See `RunObserver.run_started`."""

    def run_ended(self, report: RunReport) -> None:
        """See `RunObserver.run_ended`."""

    def run_failed(self) -> None:
        """See `RunObserver.run_failed`."""
