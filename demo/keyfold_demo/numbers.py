"""What the story counts and compares: values only.

Snapshot    one moment of the log: what its manifests name, and what lies in the bucket
Summary     the whole story as `keyfold demo --json` prints it; `holds` is the exit code
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from keyfold.log.manifest import Manifest
from keyfold.log.record import Record
from keyfold.runtime.json_types import JsonObject
from keyfold_demo.treeproof import Facts

Logs = dict[int, list[Record]]
"""All records of each partition, in offset order."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. Bytes are stored bytes; the bucket also holds what was replaced and is not deleted yet."""

    title: str
    records: int
    tombstones: int
    segments: int
    segment_bytes: int
    index_bytes: int
    bucket_objects: int
    bucket_bytes: int
    tree: str

    @classmethod
    def of(cls, title: str, manifests: Iterable[Manifest], bucket_sizes: Iterable[int], tree: str) -> Snapshot:
        """Add up."""
        segments = [entry for manifest in manifests for entry in manifest.segments]
        sizes = list(bucket_sizes)
        return cls(
            title=title,
            records=sum(s.record_count for s in segments),
            tombstones=sum(s.tombstone_count for s in segments),
            segments=len(segments),
            segment_bytes=sum(s.size_bytes for s in segments),
            index_bytes=sum(s.index_size_bytes for s in segments),
            bucket_objects=len(sizes),
            bucket_bytes=sum(sizes),
            tree=tree,
        )


@dataclass(slots=True)
class Summary:
    """What was found. `checks` maps a sentence to whether it is true; the story holds when all are."""

    facts: Facts
    partitions: int
    snapshots: list[Snapshot] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    spark_records: int = 0
    spark_tree: str = ""
    kept: JsonObject | None = None

    @property
    def holds(self) -> bool:
        """Whether every check has passed."""
        return bool(self.checks) and all(self.checks.values())

    def check(self, sentence: str, *, holds: bool) -> bool:
        """Note it, and give it back."""
        self.checks[sentence] = holds
        return holds

    def to_json(self) -> JsonObject:
        """For `--json`."""
        return {
            "holds": self.holds,
            "changelog": asdict(self.facts),
            "partitions": self.partitions,
            "snapshots": [asdict(snapshot) for snapshot in self.snapshots],
            "spark": {"records": self.spark_records, "tree": self.spark_tree},
            "checks": self.checks,
            "seconds": {name: round(seconds, 2) for name, seconds in self.seconds.items()},
            **({} if self.kept is None else {"kept": self.kept}),
        }


def last_of_each_key(logs: Logs) -> Logs:
    """Kafka's contract, by a dict: of each partition the last record of every key, where it was."""
    return {
        partition: sorted({record.key: record for record in records}.values(), key=lambda record: record.offset)
        for partition, records in logs.items()
    }


def without_tombstones(logs: Logs) -> Logs:
    """Return the logs without tombstones."""
    return {partition: [record for record in records if not record.is_tombstone] for partition, records in logs.items()}
