"""Exports in tests: a bucket and a folder as targets, and their contents."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from keyfold.export.request import ExportRequest
from keyfold.export.run import export
from keyfold.export.target import ExportTarget
from keyfold.export.target_bucket import BucketTarget
from keyfold.export.target_folder import FolderTarget
from keyfold.read.log import Log
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from tests.support.logs import MadeLog


def retry_policy() -> RetryPolicy:
    return RetryPolicy(ManualClock(), Random(1), timeout_s=0)


class Bucket:
    """A target in memory, and its contents."""

    def __init__(self, run: str = "0000abcd", store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore("lake")
        self.target: ExportTarget = BucketTarget(self.store, "out", retry_policy())

    def names(self) -> list[str]:
        return [info.key.removeprefix("out/") for info in self.store.list("out/")]

    def read(self, name: str) -> bytes:
        return self.store.get(f"out/{name}").data

    def add(self, name: str, data: bytes = b"x") -> None:
        self.store.put(f"out/{name}", data, Create())


class Folder:
    """A target on disk, and its contents."""

    def __init__(self, path: Path, run: str = "0000abcd") -> None:
        self.path = path
        self.target: ExportTarget = FolderTarget(path, run)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir()) if self.path.exists() else []

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def add(self, name: str, data: bytes = b"x") -> None:
        self.path.mkdir(exist_ok=True)
        (self.path / name).write_bytes(data)


ExportPlace = Bucket | Folder
MakePlace = Callable[..., ExportPlace]


def log_of(made: MadeLog) -> Log:
    return Log(made.store, "topics", "users", clock=made.clock, random=made.random)


def exported(made: MadeLog, place: ExportPlace, run: str = "0000abcd", **asked: Any) -> Any:
    request = ExportRequest(**{"partitions": (0,), **asked})
    return export(log_of(made), place.target, request, run=run, clock=made.clock)


def tables(place: ExportPlace) -> list[pa.Table]:
    return [pq.read_table(BytesIO(place.read(name))) for name in place.names() if name.endswith(".parquet")]


def rows(place: ExportPlace) -> list[dict[str, Any]]:
    found = tables(place)
    return pa.concat_tables(found).to_pylist() if found else []
