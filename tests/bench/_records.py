"""Records of 1 KB and logs full of them, for several benchmarks. A log is written by two processes at once.

Keys are drawn evenly, each about as often, in random order. Values begin with their offset, so that no two are the
same; the rest comes from a pool of texts far larger than a block or a batch: nothing in the pool can be compressed by
what came before it, half of each text is words and half digits, and zstd makes about half of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from typing import Any, Final

import numpy as np

from keyfold.log.manifest import Manifest, SegmentEntry
from keyfold.log.names import ObjectName, Place
from keyfold.log.objects import create_object
from keyfold.log.partition_log import PartitionLog
from keyfold.log.record import RecordColumns
from keyfold.log.segment import SegmentWriter
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import ObjectStore
from keyfold_compactor.spark.tasks import StoreSource

KEY_BYTES: Final = 17
_KEY_DIGITS: Final = 12
VALUE_BYTES: Final = 1000
RECORD_BYTES: Final = KEY_BYTES + VALUE_BYTES
SEGMENT_RECORDS: Final = 250_000
BASE_MS: Final = 1_700_000_000_000
_BATCH: Final = 10_000
_POOL: Final = 20_000
_NUMBER_BYTES: Final = 16
_WORD_BYTES: Final = 7
_WORDS: Final = 98
_HEX_BYTES: Final = VALUE_BYTES - _NUMBER_BYTES - _WORDS * _WORD_BYTES


@dataclass(frozen=True, slots=True)
class Recipe:
    """A log of `count` records of which `garbage` percent are superseded. Longer keys all begin alike.

    A key has at least as many bytes as `count` has digits.
    """

    count: int
    garbage: int
    seed: int = 0
    key_bytes: int = KEY_BYTES

    @property
    def key_count(self) -> int:
        """Records that a pass must leave."""
        return max(1, self.count * (100 - self.garbage) // 100)

    @property
    def raw_bytes(self) -> int:
        """Keys and values, before compression."""
        return self.count * (self.key_bytes + VALUE_BYTES)

    def columns(self, start: int, end: int) -> RecordColumns:
        """The records with offsets `[start, end)`."""
        numbers = _key_numbers(self)[start:end].tolist()
        pool, step = texts(), 7919 + self.seed
        size = end - start
        front = b"user-".ljust(self.key_bytes - _KEY_DIGITS, b"/")
        return RecordColumns(
            range(start, end),
            [BASE_MS + i // 3 for i in range(start, end)],
            [1] * size,
            [(front + b"%012d" % number)[-self.key_bytes :] for number in numbers],
            [b"%016d" % i + pool[i * step % _POOL] for i in range(start, end)],
            [None] * size,
            [0] * size,
        )

    def rows(self) -> Iterator[tuple[bytes, bytes, int, int]]:
        """All records as `produce_all` wants them, for partition 0."""
        for start in range(0, self.count, _BATCH):
            found = self.columns(start, min(start + _BATCH, self.count))
            for key, value, timestamp in zip(found.keys, found.values, found.timestamps, strict=True):
                assert key is not None
                assert value is not None
                yield key, value, timestamp, 0


@functools.lru_cache(maxsize=1)
def _key_numbers(recipe: Recipe) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(recipe.seed).permutation(np.arange(recipe.count) % recipe.key_count)


@functools.lru_cache(maxsize=1)
def texts() -> list[bytes]:
    """The pool: texts that make a value of `VALUE_BYTES` with a number of 16 digits before them."""
    random, noise = Random(0), np.random.default_rng(0)
    words = np.array([bytes(random.choices(b"etaoinshrdlu", k=_WORD_BYTES - 1)) + b" " for _ in range(1024)])
    prose = words[noise.integers(0, len(words), (_POOL, _WORDS))].tobytes()
    digits = noise.bytes(_POOL * _HEX_BYTES // 2).hex().encode()
    wide = _WORDS * _WORD_BYTES
    return [prose[i * wide : (i + 1) * wide] + digits[i * _HEX_BYTES : (i + 1) * _HEX_BYTES] for i in range(_POOL)]


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """One segment to be written by another process."""

    source: StoreSource
    place: Place
    name: ObjectName
    recipe: Recipe
    base: int
    end: int
    sync_marker: bytes
    codec: str

    def write(self) -> SegmentEntry:
        """Encode and upload it and its index."""
        return self.write_to(self.source.open())

    def write_to(self, store: ObjectStore) -> SegmentEntry:
        """The same, to a store that is open."""
        writer = SegmentWriter(sync_marker=self.sync_marker, codec=self.codec)
        for start in range(self.base, self.end, _BATCH):
            writer.append(self.recipe.columns(start, min(start + _BATCH, self.end)))
        finished = writer.finish()
        retry = RetryPolicy(SystemClock(), Random())
        create_object(store, self.place.key(str(self.name)), b"".join(finished.data), retry)
        create_object(store, self.place.key(str(self.name.index)), finished.index_data, retry)
        return finished.entry(str(self.name), str(self.name.index), base_offset=self.base, next_offset=self.end)


def fill(
    source: StoreSource, logs: Iterable[tuple[Place, Recipe]], *, codec: str = "zstandard", processes: int = 2
) -> list[Manifest]:
    """Write a log for each place, two segments at a time."""
    context, store = get_context("spawn"), source.open()
    manifests = []
    with ProcessPoolExecutor(processes, context) as pool:
        for place, recipe in logs:
            log = PartitionLog(store, place, clock=SystemClock(), random=Random())
            log.create(settings={"cleanup.policy": "compact"})
            sink = log.claim_sink()
            jobs = [
                SegmentJob(
                    source,
                    place,
                    sink.new_name(base),
                    recipe,
                    base,
                    min(base + SEGMENT_RECORDS, recipe.count),
                    sink.manifest.sync_marker,
                    codec,
                )
                for base in range(0, recipe.count, SEGMENT_RECORDS)
            ]
            for entry in pool.map(SegmentJob.write, jobs):
                sink.append(entry)
            manifests.append(sink.manifest)
    return manifests
