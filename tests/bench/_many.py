"""Many small partitions of equal content for next to nothing: one is written, the others are links to its objects.

An object is never changed, so a link is as good as a copy; each partition has a manifest of its own. Requests are
counted over all processes: each appends a byte to a file per operation.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from keyfold.log.manifest import Manifest
from keyfold.log.manifest_codec import encode_manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create
from keyfold.store.pacing import Pacer
from keyfold.store.wrappers.counting import CountedStore
from tests.bench._folder_store import FolderStore
from tests.support.costs import CostLog, even

TOPIC: Final = "many"
TEMPLATE: Final = Place("template", TOPIC, 0)


def places(count: int) -> list[Place]:
    """The first `count` partitions."""
    return [Place("topics", TOPIC, partition) for partition in range(count)]


def make(root: Path, count: int, *, records: int, segments: int, garbage: float) -> Manifest:
    """Create equal partitions below `root`; return the manifest of one."""
    store = FolderStore(str(root))
    log = CostLog(store, -(-records // segments), place=TEMPLATE)
    log.append(even(records, garbage))
    template = log.manifest
    for place in places(count):
        link(store, template, place)
    return template


def link(store: FolderStore, template: Manifest, place: Place) -> None:
    """Make a partition of what the template has."""
    for name in sorted(template.object_names()):
        path = store.path(place.key(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(store.path(TEMPLATE.key(name)), path)
    manifest = replace(template, topic=place.topic, partition=place.partition, log_id=f"log-{place.partition}")
    store.put(place.manifest_key, encode_manifest(manifest), Create())


def load(store: FolderStore, place: Place) -> Manifest:
    """A partition's newest manifest."""
    return PartitionLog(store, place, clock=SystemClock(), random=Random()).load().manifest


@dataclass(frozen=True, slots=True)
class TalliedFolder:
    """A folder that counts requests of all processes in files below `tally`. For Spark's tasks too."""

    root: str
    tally: str

    def open(self, pacer: Pacer | None = None) -> CountedStore:
        """The store of one process."""
        assert pacer is None
        return _Tallied(FolderStore(self.root), self.tally)

    def requests(self) -> Counter[str]:
        """Requests by operation, up to now."""
        return Counter({path.name: path.stat().st_size for path in Path(self.tally).iterdir()})


class _Tallied(CountedStore):
    def __init__(self, inner: FolderStore, folder: str) -> None:
        super().__init__(inner)
        self._folder = folder

    def count(self, operation: str) -> None:
        super().count(operation)
        os.write(_file(self._folder, operation), b".")


@functools.cache
def _file(folder: str, operation: str) -> int:
    """A file for appending, which stays open as long as the process lives."""
    return os.open(Path(folder, operation), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
