"""Small manifests and entries for tests of the protocol."""

from __future__ import annotations

from random import Random

from keyfold.log.manifest import Manifest, SegmentEntry
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
