"""Plan what a round copies, from the source's manifest, the replica's, and a listing of the replica's folder. Pure.

An object is missing if the replica's manifest does not name it. A listing adds what an interrupted round has left. A
name stands for one byte string, and objects appear only when complete, so a listed object of the right size is never
sent again. An object of another size stays in the plan, and the copy reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import Place
from keyfold_replicator.copy.jobs import CopyJob

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Jobs in the log's order, an index before its segment. The listing of `listed` objects has `left_out` of them."""

    jobs: tuple[CopyJob, ...]
    left_out: int = 0
    listed: Mapping[str, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes to copy."""
        return sum(job.size_bytes for job in self.jobs)

    @property
    def objects(self) -> frozenset[str]:
        """Names, relative to the partition's folder."""
        return frozenset(job.name for job in self.jobs)


def copy_plan(
    place: Place, source: Manifest, replica: Manifest | None, listed: Mapping[str, int] = _NOTHING
) -> CopyPlan:
    """Return what the replica lacks of this version. `place` is the source's; `listed` has sizes at the replica."""
    there = frozenset[str]() if replica is None else replica.object_names()
    wanted = [job for entry in source.segments for job in _jobs(place, entry) if job.name not in there]
    jobs = tuple(job for job in wanted if listed.get(job.name) != job.size_bytes)
    return CopyPlan(jobs, len(wanted) - len(jobs), listed)


def _jobs(place: Place, entry: SegmentEntry) -> tuple[CopyJob, CopyJob]:
    return (
        CopyJob(place, entry.index_name, entry.index_size_bytes, entry.index_checksum),
        CopyJob(place, entry.name, entry.size_bytes, entry.checksum),
    )
