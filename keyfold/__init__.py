"""keyfold keeps Kafka topics in object storage as a compacted log.

    import keyfold
    log = keyfold.open_log("s3://bucket/topics", "users")
    for record in log.read(partition=0, from_offset=36): ...
    state = {record.key: record.value for record in log.latest(partition=0)}

Names are loaded when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyfold.errors import (
        AccessDenied,
        BucketMissing,
        ConfigError,
        Corrupt,
        FirstCopyUnfinished,
        FormatTooNew,
        KeyfoldError,
        LogError,
        LogNotFound,
        ManifestLost,
        OffsetOutOfRange,
        SnapshotLost,
        StoreError,
        TopicNotFound,
    )
    from keyfold.log.manifest import Manifest
    from keyfold.log.record import Record
    from keyfold.read.follow import Position
    from keyfold.read.log import Log, open_log
    from keyfold.read.selection import Selection

__all__ = [
    "AccessDenied",
    "BucketMissing",
    "ConfigError",
    "Corrupt",
    "FirstCopyUnfinished",
    "FormatTooNew",
    "KeyfoldError",
    "Log",
    "LogError",
    "LogNotFound",
    "Manifest",
    "ManifestLost",
    "OffsetOutOfRange",
    "Position",
    "Record",
    "Selection",
    "SnapshotLost",
    "StoreError",
    "TopicNotFound",
    "open_log",
]

_ELSEWHERE = {
    "Log": "keyfold.read.log",
    "Manifest": "keyfold.log.manifest",
    "Position": "keyfold.read.follow",
    "Record": "keyfold.log.record",
    "Selection": "keyfold.read.selection",
    "open_log": "keyfold.read.log",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'keyfold' has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "keyfold.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
