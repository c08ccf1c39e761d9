"""What replication sends against the least that it could, its requests, and what it costs to find nothing to do.

    python -m tests.bench.bench_replica [--segments 1000] [--idle-segments 10000] [--quick]

Stores are in memory, so times are CPU and say what keyfold itself costs; S3's latency comes on top, many requests at
once. The least that can be sent is each object once that any version of the source named which the replica came to
have. Objects are random bytes under real manifests: replication never looks into them. Everything but the first figure
of each row is a ratio or a count, and holds on any machine.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Final

from keyfold.errors import ObjectNotFound, StoreUnavailable
from keyfold.log.edits import Replacement, Swap
from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.manifest_codec import decode_manifest, encode_manifest
from keyfold.log.names import MANIFEST_NAME, Place, Role, new_name
from keyfold.log.partition_log import CompactorSession, PartitionLog, SinkSession
from keyfold.replicas.documents import ALL_TOPICS, CompactionEntry, Enablement, Registration
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.runtime.event_log import configure
from keyfold.runtime.retry import Backoff
from keyfold.store.api import Blob, Create, ObjectStore, PutMode, PutResult, Update
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_replicator.registry.replica_pair import DesiredReplication, LogDirectory, ReplicaPair, ReplicaSettings
from keyfold_replicator.rounds.runner import Runner
from keyfold_replicator.state.states import SyncState
from keyfold_replicator.status.status import gather_status

PLACE: Final = Place("topics", "bench", 0)
ENABLED: Final = Enablement({ALL_TOPICS: CompactionEntry(enabled=True, format=1)})
REGISTRATION: Final = Registration("bench", {"s3.bucket.name": "second", "topics.dir": "replica"}, cursor_id="1")
SETTINGS: Final = ReplicaSettings(threads=4, poll_ms=0, discover_ms=0, retry_timeout_s=0.0, collect_ms=1 << 40)


class FixedDocuments:
    """Compaction is enabled, nothing is paused."""

    def load_desired(self) -> DesiredReplication | None:
        """See `ReplicaDocuments`."""
        return DesiredReplication()

    def load_enablement(self) -> Enablement:
        """See `ReplicaDocuments`."""
        return ENABLED


class Source:
    """A log whose segments are random bytes of one size, with an index of a tenth of it."""

    def __init__(self, size_bytes: int, clock: ManualClock) -> None:
        self.store = MemoryStore("first", clock)
        self._clock = clock
        self._random = Random(1)
        self._size_bytes = size_bytes
        self._log = PartitionLog(self.store, PLACE, clock=clock, random=self._random, backoff=Backoff(1, 1))
        self._log.create(settings={"cleanup.policy": "compact"})
        self._sink: SinkSession = self._log.claim_sink()

    @property
    def manifest(self) -> Manifest:
        """The newest."""
        return self._log.load().manifest

    def append(self, segments: int) -> None:
        """Segments of a hundred records each."""
        for _ in range(segments):
            base = self._sink.manifest.next_offset
            name = self._sink.new_name(base)
            self._sink.append(self._made(str(name), str(name.index), base, base + 100, self._size_bytes))

    def clean(self, segments: int) -> None:
        """A pass: the oldest segments become half as many of half the size."""
        session: CompactorSession = self._log.claim_compactor(lease_ms=60_000, holder="bench")
        olds = session.manifest.segments[:segments]
        swaps = []
        for pair in zip(olds[::2], olds[1::2], strict=True):
            name = session.new_name(pair[0].base_offset)
            new = self._made(
                str(name), str(name.index), pair[0].base_offset, pair[1].next_offset, self._size_bytes // 2
            )
            swaps.append(Swap(pair, (replace(new, record_count=50, appended_at_ms=pair[1].appended_at_ms),)))
        session.replace(Replacement(tuple(swaps), first_dirty_offset=olds[-1].next_offset))
        self._sink = self._log.claim_sink()

    def grow(self, segments: int) -> None:
        """Many at once: the manifest is put in place as that many appends would have left it."""
        blob = self.store.get(PLACE.manifest_key)
        manifest = decode_manifest(blob.data, PLACE)
        end = manifest.next_offset
        names = [new_name(end + 100 * i, self._sink.epoch, Role.SINK, self._random) for i in range(segments)]
        made = [self._made(str(n), str(n.index), n.base_offset, n.base_offset + 100, self._size_bytes) for n in names]
        listed = (*manifest.segments, *(replace(entry, appended_at_ms=self._clock.now_ms()) for entry in made))
        grown = replace(manifest, segments=listed, next_offset=end + 100 * segments)
        self.store.put(PLACE.manifest_key, encode_manifest(grown), Update(blob.etag))

    def _made(self, name: str, index_name: str, base: int, end: int, size_bytes: int) -> SegmentEntry:
        data, index = self._random.randbytes(size_bytes), self._random.randbytes(size_bytes // 10)
        self.store.put(PLACE.key(name), data, Create())
        self.store.put(PLACE.key(index_name), index, Create())
        return SegmentEntry(
            name=name,
            index_name=index_name,
            base_offset=base,
            last_offset=end - 1,
            next_offset=end,
            record_count=end - base,
            tombstone_count=0,
            unmarked_tombstone_count=0,
            keyless_count=0,
            size_bytes=len(data),
            index_size_bytes=len(index),
            min_timestamp=1_000,
            max_timestamp=2_000,
            appended_at_ms=-1,
            checksum=hashlib.sha256(data).digest(),
            index_checksum=hashlib.sha256(index).digest(),
        )


class Line(CountedStore):
    """Counts, bytes of manifests apart, and is cut after a number of writes on request.

    It knows the folders: to find them among all its keys costs a store in memory more than anything here.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.manifest_bytes = 0
        self.manifest_bytes_read = 0
        self.writes_left = 1 << 60

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore.list_folders`."""
        self.count("list_folders")
        return iter((f"partition={PLACE.partition}",) if prefix.endswith(f"{PLACE.topic}/") else (PLACE.topic,))

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        """See `ObjectStore.get`."""
        found = super().get(key, max_bytes)
        if key.endswith(MANIFEST_NAME):
            self.manifest_bytes_read += len(found.data)
        return found

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        """See `ObjectStore.put`."""
        if self.writes_left <= 0:
            raise StoreUnavailable(key, "the line is cut")
        self.writes_left -= 1
        if key.endswith(MANIFEST_NAME):
            self.manifest_bytes += len(data)
        return super().put(key, data, mode)


class Bench:
    """A source, its replica, and what went over the line."""

    def __init__(self, size_bytes: int) -> None:
        self.clock = ManualClock()
        self.source = Source(size_bytes, self.clock)
        self.target = MemoryStore("second", self.clock)
        self.near, self.far = Line(self.source.store), Line(self.target)
        self.wanted: dict[str, int] = {}
        self._runner = self._new_runner()

    def _new_runner(self) -> Runner:
        pair = ReplicaPair("bench", REGISTRATION.hold_name, self.near_side, self.far_side)
        return Runner(pair, FixedDocuments(), SETTINGS, clock=SystemClock(), random=Random(2))

    @property
    def near_side(self) -> LogDirectory:
        """The source's end."""
        return LogDirectory(self.near, "topics", "s3://first/topics", "first")

    @property
    def far_side(self) -> LogDirectory:
        """The replica's end."""
        return LogDirectory(self.far, "replica", "s3://second/replica", "second")

    def once(self) -> bool:
        """A round by a running process; whether nothing is left to do."""
        found = self._runner.once()
        assert not found.error, found
        return found.is_in_sync

    def restart(self) -> None:
        """Another process takes over."""
        self._runner.close()
        self._runner = self._new_runner()

    def close(self) -> None:
        """End the threads."""
        self._runner.close()

    def want(self) -> None:
        """Note what the replica has by now."""
        try:
            blob = self.target.get(Place("replica", PLACE.topic, 0).manifest_key)
        except ObjectNotFound:
            return
        for entry in decode_manifest(blob.data, Place("replica", PLACE.topic, 0)).segments:
            self.wanted[entry.name] = entry.size_bytes
            self.wanted[entry.index_name] = entry.index_size_bytes

    def reset(self) -> None:
        """Count from zero."""
        self.near.reset()
        self.far.reset()
        for line in (self.near, self.far):
            line.manifest_bytes = line.manifest_bytes_read = 0

    def print_bytes(self, what: str) -> None:
        """What was sent against the least."""
        least = sum(self.wanted.values())
        objects = self.far.bytes_written - self.far.manifest_bytes
        manifests = sum(line.manifest_bytes + line.manifest_bytes_read for line in (self.near, self.far))
        read = self.near.bytes_read - self.near.manifest_bytes_read
        print(
            f"{what}: {least / 1e6:.1f} MB at least; sent {objects / least:.3f} of it, read {read / least:.3f}; "
            f"manifests, both ways on both sides, {manifests / least:.3f}",
            flush=True,
        )

    def requests(self) -> Counter[str]:
        """By side and operation."""
        found = Counter({f"source {k}": n for k, n in self.near.calls.items()})
        return found + Counter({f"replica {k}": n for k, n in self.far.calls.items()})


def bytes_sent(segments: int, size_bytes: int) -> None:
    """Appends and passes, replicated often; then with a line that is cut now and then."""
    for what, cut in (("appends and passes", False), ("the same, cut off 1 in 20 writes, by new processes", True)):
        bench, random = Bench(size_bytes), Random(3)
        for step in range(10):
            bench.source.append(segments // 10)
            if step % 3 == 2:
                bench.source.clean(2 * (len(bench.source.manifest.segments) // 4))
            while True:
                bench.far.writes_left = random.randint(1, 40) if cut else 1 << 60
                is_done = bench.once()
                bench.want()
                if is_done:
                    break
                bench.restart()
        bench.print_bytes(f"{what} ({segments:,} segments)")
        bench.close()


def requests_per_segment(segments: int, size_bytes: int) -> None:
    """A first copy, one new segment at a time, and many at a time."""
    bench = Bench(size_bytes)
    bench.source.append(segments)
    print(
        f"requests a segment, of which 4 at least: GET and PUT of the segment and of its index ({segments:,} segments)"
    )
    for what, count, rounds in (("first copy", 0, 1), ("one a round", 1, 50), ("ten a round", 10, 10)):
        made = segments if not count else count * rounds
        total: Counter[str] = Counter()
        for _ in range(rounds):
            bench.source.append(count)
            bench.reset()
            assert bench.once()
            total += bench.requests()
        shown = ", ".join(f"{name} {n / made:.2f}" for name, n in sorted(total.items()))
        print(f"  {what}: {sum(total.values()) / made:.2f} ({shown})", flush=True)
    bench.close()


def timed(call: Callable[[], object], repeats: int) -> Iterator[float]:
    """CPU seconds of each call; not of those before."""
    for _ in range(repeats):
        begun_s = time.process_time()
        call()
        yield time.process_time() - begun_s


def idle(segments: int) -> None:
    """A log with many segments of which the replica has all."""
    bench = Bench(100)
    bench.source.grow(segments)
    assert bench.once()
    data = bench.source.store.get(PLACE.manifest_key).data
    decoded_s = min(timed(lambda: decode_manifest(data, PLACE), 5))
    print(
        f"nothing to do, {segments:,} segments; its manifest has {len(data) / 1e6:.2f} MB, decoded in {decoded_s:.3f} s"
    )

    def restarted() -> None:
        bench.restart()
        assert bench.once()

    def shown() -> None:
        found = gather_status(REGISTRATION, bench.near_side, bench.far_side, now_ms=bench.clock.now_ms())
        assert found.summary.state is SyncState.IN_SYNC, found.summary

    assert bench.once()
    for what, call in (("a process's next look", bench.once), ("its first look", restarted), ("status", shown)):
        bench.reset()
        took_s = min(timed(call, 5))
        requests = {name: n / 5 for name, n in sorted(bench.requests().items())}
        print(
            f"  {what}: {took_s:.4f} s CPU, {took_s / decoded_s:.2f} of decoding once; requests {requests}", flush=True
        )
    written = bench.near.calls["put"] + bench.far.calls["put"]
    assert written == 0, "who finds nothing to do writes nothing"
    bench.close()


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=1_000)
    parser.add_argument("--idle-segments", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    configure(json=False, level="error")
    segments = 100 if given.quick else given.segments
    bytes_sent(segments, 50_000)
    requests_per_segment(segments, 5_000)
    idle(1_000 if given.quick else given.idle_segments)


if __name__ == "__main__":
    main()
