"""Logs for tests of the compactor: appended through the real protocol, read back without the reader.

`State` is the specification: what a log must hold is computed from the plain list of what was appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from keyfold.log.assembly import SEGMENT_LIMITS, SegmentLimits
from keyfold.log.index import Index, read_index_data
from keyfold.log.manifest import Manifest, SegmentEntry, faults
from keyfold.log.names import Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog, SinkSession
from keyfold.log.record import Record, RecordColumns
from keyfold.log.record_decoder import read_records
from keyfold.log.segment import SegmentWriter
from keyfold.runtime.clock import Clock, ManualClock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.settings import Encoding, TopicSettings
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.report.report import RunReport

PLACE = Place("topics", "users", 0)
SMALL = Encoding("null", 1, 256)
FAST = Backoff(first_ms=1, cap_ms=4)
EAGER = TopicSettings(min_cleanable_dirty_ratio=0.0, delete_retention_ms=0, file_delete_delay_ms=0)
REMEMBERED_BYTES = 1_000_000
"""A larger segment is decoded each time that it is read."""


def record(offset: int, key: str | bytes | None, value: str | bytes | None, timestamp: int = 1_000) -> Record:
    def data(text: str | bytes | None) -> bytes | None:
        return text.encode() if isinstance(text, str) else text

    return Record(offset, timestamp, "CreateTime", data(key), data(value), (), 0)


def columns(records: Sequence[Record]) -> RecordColumns:
    return RecordColumns(
        offsets=[r.offset for r in records],
        timestamps=[r.timestamp for r in records],
        timestamp_types=[1] * len(records),
        keys=[r.key for r in records],
        values=[r.value for r in records],
        headers=[list(r.headers) for r in records],
        leader_epochs=[r.leader_epoch for r in records],
    )


def retry_policy(clock: Clock, random: Random) -> RetryPolicy:
    return RetryPolicy(clock, random, FAST, 2.0)


@dataclass
class Sink:
    """Appends segments to one partition as the sink does."""

    store: ObjectStore
    place: Place
    clock: Clock
    random: Random
    session: SinkSession

    @staticmethod
    def open(
        store: ObjectStore, place: Place = PLACE, *, clock: Clock | None = None, seed: int = 0, start_offset: int = 0
    ) -> Sink:
        clock = clock or ManualClock()
        random = Random(seed)
        log = PartitionLog(store, place, clock=clock, random=random, backoff=FAST, retry_timeout_s=2.0)
        log.create(start_offset=start_offset, settings={"cleanup.policy": "compact"})
        return Sink(store, place, clock, random, log.claim_sink())

    def append(
        self,
        records: Sequence[Record],
        *,
        next_offset: int | None = None,
        block_bytes: int = 256,
        codec: str = "null",
        limits: SegmentLimits = SEGMENT_LIMITS,
    ) -> Manifest:
        writer = SegmentWriter(
            sync_marker=self.session.manifest.sync_marker,
            codec=codec,
            level=1,
            block_bytes=block_bytes,
            limits=limits,
        )
        writer.append(columns(records))
        finished = writer.finish()
        base = self.session.manifest.next_offset
        name = self.session.new_name(base)
        waiting = retry_policy(self.clock, self.random)
        create_object(self.store, self.place.key(str(name)), b"".join(finished.data), waiting)
        create_object(self.store, self.place.key(str(name.index)), finished.index_data, waiting)
        end = finished.last_offset + 1 if next_offset is None else next_offset
        return self.session.append(finished.entry(str(name), str(name.index), base_offset=base, next_offset=end))


def memory_log(
    *batches: Sequence[Record], clock: ManualClock | None = None, limits: SegmentLimits = SEGMENT_LIMITS
) -> tuple[MemoryStore, Sink]:
    """A log in memory with one segment per batch."""
    clock = clock or ManualClock()
    store = MemoryStore("test", clock)
    sink = Sink.open(store, clock=clock)
    for batch in batches:
        sink.append(batch, limits=limits)
    return store, sink


def new_run(
    store: ObjectStore, settings: TopicSettings = EAGER, *, clock: Clock | None = None, seed: int = 1, **changes: object
) -> Run:
    """A run without Spark; with an even seed logs are cleaned in one go, as Spark's tasks do with small ones."""
    clock = clock or ManualClock()
    random = Random(seed)
    values: dict[str, object] = {
        "settings_of": lambda _topic, _manifest: replace(settings, encoding=SMALL),
        "threads": 1,
        "retry_timeout_s": 2.0,
        "holder": f"run-{seed}",
    }
    values.update(changes)
    run_settings = RunSettings(**values)  # type: ignore[arg-type]  # fields by name, of any type

    def executor(_due_bytes: int) -> LocalExecutor:
        return LocalExecutor(store, retry_policy(clock, random), is_single_stage=seed % 2 == 0)

    return Run(store, run_settings, executor, clock=clock, random=random)


def clean(
    store: ObjectStore, settings: TopicSettings = EAGER, *, clock: Clock | None = None, seed: int = 1, **changes: object
) -> RunReport:
    """One run of the compactor over `PLACE`, without Spark."""
    return new_run(store, settings, clock=clock, seed=seed, **changes).clean([PLACE])


def load(store: ObjectStore, place: Place = PLACE) -> Manifest:
    return PartitionLog(store, place, clock=ManualClock(), random=Random(0), retry_timeout_s=2.0).load().manifest


def read_all(store: ObjectStore, manifest: Manifest | None = None, place: Place = PLACE) -> list[Record]:
    """Every record of one version, checked on the way: bytes, index, order, ranges."""
    manifest = manifest or load(store, place)
    assert faults(manifest) == []
    found: list[Record] = []
    for entry in manifest.segments:
        data = store.get(place.key(entry.name)).data
        read = _records_of if len(data) <= REMEMBERED_BYTES else _records_of.__wrapped__
        found.extend(read(entry, data, read_index_data(store, place, entry)))
    assert [r.offset for r in found] == sorted({r.offset for r in found})
    return found


@lru_cache(maxsize=256)
def _records_of(entry: SegmentEntry, data: bytes, index_data: bytes) -> tuple[Record, ...]:
    """A segment's records, checked. Tests of every fault see the same bytes again in thousands of versions."""
    index = Index.parse(index_data, origin=entry.index_name)
    assert len(index) == entry.record_count
    assert len(data) == entry.size_bytes
    records = tuple(read_records(data, origin=entry.name, blocks=index.blocks))
    assert [r.offset for r in records] == index.rows["offset"].to_pylist()
    assert [r.key for r in records] == index.rows["key"].to_pylist()
    assert [r.is_tombstone for r in records] == index.rows["is_tombstone"].to_pylist()
    assert all(entry.base_offset <= r.offset < entry.next_offset for r in records)
    marks = index.rows["cleaned_epoch"].to_pylist()
    tombstone_marks = [m for r, m in zip(records, marks, strict=True) if r.is_tombstone]
    assert tombstone_marks.count(None) == entry.unmarked_tombstone_count
    assert sorted({m for m in tombstone_marks if m is not None}) == list(entry.cleaned_epochs)
    return records


def object_names(store: ObjectStore, place: Place = PLACE) -> set[str]:
    return {info.key.removeprefix(place.folder) for info in store.list(place.folder)} - {"_manifest.avro"}


def latest(records: Iterable[Record]) -> dict[bytes, Record]:
    """The dict that specifies a compacted log: last record of each key, deleted keys left out."""
    found: dict[bytes, Record] = {}
    for r in records:
        if r.key is None:
            continue
        found[r.key] = r
    return {key: r for key, r in found.items() if r.value is not None}


def last_per_key(records: Iterable[Record]) -> list[Record]:
    """What a full pass leaves: the last record of each key, tombstones included, and records without a key."""
    records = list(records)
    last = {r.key: r.offset for r in records if r.key is not None}
    return [r for r in records if r.key is None or last[r.key] == r.offset]
