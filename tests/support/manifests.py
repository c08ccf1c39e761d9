"""Small manifests and entries for tests of the protocol."""

from __future__ import annotations

from random import Random

from keyfold.log.manifest import Gap, Hold, Manifest, Pass, Replaced, RoleState, SegmentEntry
from keyfold.log.names import ObjectName, Role


def entry(  # one segment with a record at each offset, unless told otherwise
    name: ObjectName, base: int, end: int, *, tombstones: int = 0, unmarked: int | None = None, **changes: object
) -> SegmentEntry:
    values: dict[str, object] = {
        "name": str(name),
        "index_name": str(name.index),
        "base_offset": base,
        "last_offset": end - 1,
        "next_offset": end,
        "record_count": end - base,
        "tombstone_count": tombstones,
        "unmarked_tombstone_count": tombstones if unmarked is None else unmarked,
        "keyless_count": 0,
        "size_bytes": 100,
        "index_size_bytes": 50,
        "min_timestamp": 1,
        "max_timestamp": 2,
        "appended_at_ms": -1,
        "checksum": b"\x01" * 32,
        "index_checksum": b"\x02" * 32,
    }
    values.update(changes)
    return SegmentEntry(**values)  # type: ignore[arg-type]  # fields by name, of any type


def sink_name(base: int, epoch: int = 1, attempt: int = 0) -> ObjectName:
    return ObjectName(base, epoch, Role.SINK, f"{attempt:016x}")


def compactor_name(base: int, epoch: int, attempt: int = 0) -> ObjectName:
    return ObjectName(base, epoch, Role.COMPACTOR, f"{attempt:016x}")


def empty_manifest(seed: int = 0, **changes: object) -> Manifest:
    values: dict[str, object] = {
        "topic": "users",
        "partition": 0,
        "log_id": f"{seed:032x}",
        "sync_marker": Random(seed).randbytes(16),
    }
    values.update(changes)
    return Manifest(**values)  # type: ignore[arg-type]  # fields by name, of any type


def full_manifest() -> Manifest:
    """Return a manifest with a segment of each role and one of everything that a log's own manifest can list."""
    return empty_manifest(
        topic_id="kZx1",
        cluster_id="c-1",
        version=41,
        last_epoch=9,
        sink=RoleState(8, "a" * 32),
        compactor=RoleState(9, "b" * 32, 1_700_000_000_000, "worker-1"),
        log_start_offset=3,
        next_offset=30,
        first_dirty_offset=20,
        purged_to=17,
        purged_epoch=5,
        last_pass_epoch=7,
        mapped_to=25,
        last_leader_epoch=4,
        passes=(Pass(7, 1_700_000_000_000), Pass(9, -1)),
        settings={"cleanup.policy": "compact"},
        gaps=(Gap(11, 13, "not at the source"),),
        holds=(Hold("eu", 40, 1_700_000_100_000),),
        segments=(
            entry(compactor_name(3, 9), 3, 20, tombstones=2, unmarked=0, cleaned_epochs=(7, 9), record_count=5),
            entry(sink_name(20, 8), 20, 30, schema_ids=(1, 2), appended_at_ms=1_700_000_000_123),
        ),
        replaced=(Replaced("00000000000000000003-00000002-s0000000000000000.avro", 40, -1),),
    )
