"""What a pass moves, in stored bytes, segments and indexes apart: logs whose garbage is known, and stores that count.

Values are digits that say nothing: zstd makes half of them, whatever stands beside them. So sizes follow counts, and
what a pass moves can be asserted to the percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, cast

import numpy as np

from keyfold.log.manifest import Manifest
from keyfold.log.names import MANIFEST_NAME, Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog, SinkSession
from keyfold.log.record import RecordColumns
from keyfold.log.segment import DEFAULT_BLOCK_BYTES, SegmentWriter
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import RunReport
from tests.support.cleaning import retry_policy

VALUE_BYTES: Final = 1000
KINDS: Final = ("data", "index", "manifest")
PLACE: Final = Place("topics", "cost", 0)


def kind_of(key: str) -> str:
    """What an object is, by its key: one of `KINDS`."""
    if key.endswith(MANIFEST_NAME):
        return "manifest"
    return "index" if "/_index/" in key else "data"


class KindStore:
    """An `ObjectStore` that passes every call on through one `CountedStore` for each of `KINDS`."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self.of = {kind: CountedStore(inner) for kind in KINDS}

    def __getattr__(self, name: str) -> Any:
        return lambda key, *rest, **named: getattr(self.of[kind_of(key)], name)(key, *rest, **named)


@dataclass(frozen=True, slots=True)
class Moved:
    """Stored bytes that a pass read and wrote, and what the log has become smaller by."""

    data_read: int
    data_written: int
    index_read: int
    index_written: int
    data_freed: int
    index_freed: int
    requests: int

    @property
    def data(self) -> int:
        """Segments' bytes, both ways."""
        return self.data_read + self.data_written

    @property
    def index(self) -> int:
        """Indexes' bytes, both ways."""
        return self.index_read + self.index_written

    @property
    def data_ratio(self) -> float:
        """Segments' bytes moved for each that was freed."""
        return self.data / self.data_freed

    @property
    def ratio(self) -> float:
        """The same with the indexes."""
        return (self.data + self.index) / (self.data_freed + self.index_freed)


def bound(garbage: float) -> float:
    """Bytes moved for each byte freed, where everything is read and what is not garbage is written."""
    return (2 - garbage) / garbage


@dataclass(slots=True)
class CostLog:
    """One partition's log, appended in segments of a given number of records."""

    store: ObjectStore
    segment_records: int
    value_bytes: int = VALUE_BYTES
    place: Place = PLACE
    block_bytes: int = DEFAULT_BLOCK_BYTES
    seed: int = 0
    _sink: SinkSession | None = None

    def log(self) -> PartitionLog:
        """The partition."""
        return PartitionLog(self.store, self.place, clock=ManualClock(), random=Random(self.seed))

    @property
    def is_there(self) -> bool:
        """Whether something was appended."""
        return self._sink is not None

    @property
    def manifest(self) -> Manifest:
        """The newest version."""
        return self.log().load().manifest

    def append(self, keys: Sequence[int]) -> None:
        """A record for each key, at the next offsets."""
        noise = np.random.default_rng([self.seed, len(keys), int(keys[0])])
        for start in range(0, len(keys), self.segment_records):
            self._append_segment(noise, keys[start : start + self.segment_records])

    def _append_segment(self, noise: np.random.Generator, keys: Sequence[int]) -> None:
        if self._sink is None:
            self.log().create(settings={"cleanup.policy": "compact"})
            self._sink = self.log().claim_sink()
        sink = self._sink
        base = sink.refresh().next_offset
        writer = SegmentWriter(sync_marker=sink.manifest.sync_marker, block_bytes=self.block_bytes)
        count, wide = len(keys), self.value_bytes
        digits = noise.bytes(count * wide // 2).hex().encode()
        writer.append(
            RecordColumns(
                range(base, base + count),
                [1_700_000_000_000 + i for i in range(base, base + count)],
                [1] * count,
                [b"user-%012d" % key for key in keys],
                [digits[i * wide : (i + 1) * wide] for i in range(count)],
                [None] * count,
                [0] * count,
            )
        )
        finished = writer.finish()
        name = sink.new_name(base)
        waiting = retry_policy(ManualClock(), Random(self.seed))
        create_object(self.store, self.place.key(str(name)), b"".join(finished.data), waiting)
        create_object(self.store, self.place.key(str(name.index)), finished.index_data, waiting)
        sink.append(finished.entry(str(name), str(name.index), base_offset=base, next_offset=base + count))

    def clean(self, settings: TopicSettings, **changes: Any) -> tuple[Moved, RunReport]:
        """One run, in this process, over a store that counts."""
        before = self.manifest
        counted = KindStore(self.store)
        store = cast("ObjectStore", counted)
        clock, random = ManualClock(), Random(self.seed + before.version)
        run = Run(
            store,
            RunSettings(settings_of=lambda *_: settings, threads=1, **changes),
            lambda _: LocalExecutor(store, retry_policy(clock, random)),
            clock=clock,
            random=random,
        )
        report = run.clean([self.place])
        assert report.exit_code == 0, report.document()
        after = self.manifest
        data, index = counted.of["data"], counted.of["index"]
        return Moved(
            data.bytes_read,
            data.bytes_written,
            index.bytes_read,
            index.bytes_written,
            before.size_bytes - after.size_bytes,
            sum(s.index_size_bytes for s in before.segments) - sum(s.index_size_bytes for s in after.segments),
            sum(sum(store.calls.values()) for store in counted.of.values()),
        ), report


def even(count: int, garbage: float, *, seed: int = 0, first_key: int = 0) -> list[int]:
    """Keys of which a share is superseded, spread evenly: no block is without garbage, none without survivors."""
    kept = max(1, round(count * (1 - garbage)))
    found: list[int] = (np.random.default_rng(seed).permutation(np.arange(count) % kept) + first_key).tolist()
    return found


def in_turn(count: int, garbage: float, *, first_key: int = 0) -> list[int]:
    """The same share, but keys come in turns: what is superseded lies together, at the log's start."""
    kept = max(1, round(count * (1 - garbage)))
    return [number % kept + first_key for number in range(count)]
