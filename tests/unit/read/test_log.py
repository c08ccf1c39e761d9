"""The reader: positions, times, latest state, and how much it fetches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from random import Random

import pytest

from keyfold.errors import Corrupt, LogNotFound, ManifestLost, OffsetOutOfRange, TopicNotFound
from keyfold.log.record import CREATE_TIME, Record
from keyfold.read.blocks import ReadLimits
from keyfold.read.log import Log
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from tests.support.logs import MadeLog, latest_of, record, records


def offsets(found: Iterable[Record]) -> list[int]:
    return [r.offset for r in found]


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2 c=1"))
    made.append(records("_ _ b=2 a=3", 4))
    made.append(records("d=1 b= =x", 8), next_offset=15)
    return made


def test_a_read_returns_every_record_unchanged_and_in_order(made: MadeLog) -> None:
    log = Log(made.store, "topics", "users")
    everything = [*records("a=1 b=1 a=2 c=1"), *records("_ _ b=2 a=3", 4), *records("d=1 b= =x", 8)]
    assert list(log.read()) == everything
    assert list(log.read(0, to_offset=9)) == everything[:7]
    assert log.partitions() == [0]


def test_headers_nulls_empty_keys_and_large_values_round_trip(made: MadeLog) -> None:
    batch = [
        Record(15, -1, CREATE_TIME, b"", b"", (("h", None), ("h", b""), ("", b"\xff")), 3),
        Record(16, 5, CREATE_TIME, b"\x00\xff", os.urandom(100_000)),
        Record(17, 5, CREATE_TIME, None, None),
    ]
    made.append(batch)
    log = Log(made.store, "topics", "users")
    assert list(log.read(from_offset=15)) == batch
    assert list(log.read(from_offset=16, to_offset=17)) == batch[1:2]


@pytest.mark.parametrize("start", range(16))
def test_every_offset_is_a_position(made: MadeLog, start: int) -> None:
    log = Log(made.store, "topics", "users")
    everything = offsets(log.read())
    assert offsets(log.read(from_offset=start)) == [o for o in everything if o >= start]
    assert offsets(log.read(from_offset=start, to_offset=start + 3)) == [
        o for o in everything if start <= o < start + 3
    ]


def test_a_position_outside_the_log_is_refused_before_anything_is_read(made: MadeLog) -> None:
    log = Log(made.store, "topics", "users")
    with pytest.raises(OffsetOutOfRange, match="offset 16 is outside"):
        log.read(from_offset=16)
    assert list(log.read(from_offset=15)) == []


def test_a_removed_offset_positions_at_the_next_existing_record() -> None:
    made = MadeLog()
    made.append([record(o, "k" if o < 38 else f"k{o}", "v") for o in range(36, 38)])
    made.append([record(38, "k", "v2"), record(39, "z", "v")])
    made.compact()
    log = Log(made.store, "topics", "users")
    for start in (36, 37, 38):
        assert offsets(log.read(from_offset=start)) == [38, 39]


def test_a_timestamp_finds_the_first_record_at_or_after_it_in_offset_order() -> None:
    made = MadeLog()
    times = [100, 500, 300, 50, 400, 900, 20]
    made.append([record(o, "k", "v", timestamp=t) for o, t in enumerate(times[:4])])
    made.append([record(o, "k", "v", timestamp=t) for o, t in enumerate(times[4:], 4)])
    log = Log(made.store, "topics", "users")
    for asked in range(0, 1000, 10):
        first = next((o for o, t in enumerate(times) if t >= asked), None)
        assert log.offset_for_time(asked) == first
        expected = [] if first is None else list(range(first, 7))
        assert offsets(log.read(from_timestamp=asked)) == expected


def test_offset_and_timestamp_exclude_each_other(made: MadeLog) -> None:
    with pytest.raises(ValueError, match="from_offset and from_timestamp cannot be combined"):
        Log(made.store, "topics", "users").read(from_offset=0, from_timestamp=0)


def test_latest_leaves_out_deleted_and_keyless_records_and_keeps_offset_order(made: MadeLog) -> None:
    log = Log(made.store, "topics", "users")
    assert [(r.key, r.value, r.offset) for r in log.latest()] == [(b"c", b"1", 3), (b"a", b"3", 7), (b"d", b"1", 8)]


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(6))
def test_the_latest_state_of_a_dirty_log_is_the_fold_of_a_read(seed: int) -> None:
    random = Random(seed)
    made = MadeLog(codec=("zstandard", "snappy", "deflate", "null")[seed % 4])
    log = Log(made.store, "topics", "users")
    offset = 0
    for _ in range(12):
        batch = []
        for _ in range(random.randrange(1, 40)):
            offset += random.choice((1, 1, 1, 5))
            key = random.choice((None, *(f"k{n}" for n in range(9))))
            batch.append(record(offset, key, random.choice((None, f"v{offset}" * 9))))
        made.append(batch)
        offset += 1
        if random.random() < 0.3:
            made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)
        fold = latest_of(log.read())
        assert list(log.latest()) == sorted(fold.values(), key=lambda r: r.offset)


def test_segments_that_cannot_match_are_not_opened(made: MadeLog) -> None:
    first, second, third = made.manifest.segments
    counted = CountedStore(made.store)
    log = Log(counted, "topics", "users")
    made.store.delete(made.place.key(first.name))
    made.store.delete(made.place.key(third.name))
    assert offsets(log.read(from_offset=4, to_offset=8)) == [6, 7]
    assert second.last_offset == 7


def test_a_part_of_a_segment_fetches_only_its_blocks() -> None:
    made = MadeLog(block_bytes=10_000)
    values = [os.urandom(1000).hex() for _ in range(200)]
    made.append([record(o, f"k{o}", v) for o, v in enumerate(values)])
    counted = CountedStore(made.store)
    assert offsets(Log(counted, "topics", "users").read(from_offset=100, to_offset=102)) == [100, 101]
    assert counted.bytes_moved["get_range"] < made.manifest.size_bytes / 10
    assert counted.calls["get_range"] == 1


@pytest.mark.parametrize("codec", ["zstandard", "null"])
def test_a_large_segment_is_streamed_in_ranges(codec: str) -> None:
    made = MadeLog(block_bytes=500, codec=codec)
    batch = [record(o, f"k{o}", os.urandom(100).hex()) for o in range(200)]
    made.append(batch)
    log = Log(made.store, "topics", "users", limits=ReadLimits(read_ahead_bytes=3000, whole_bytes=1000))
    assert list(log.read()) == batch
    assert list(log.read(from_offset=77)) == batch[77:]
    assert list(log.latest()) == batch


def test_a_missing_log_and_a_lost_manifest_are_reported(made: MadeLog) -> None:
    log = Log(made.store, "topics", "nobody")
    with pytest.raises(TopicNotFound, match="topic `nobody` not found under"):
        log.partitions()
    with pytest.raises(LogNotFound):
        log.read(3)
    with pytest.raises(TopicNotFound, match="`a/b` is not a valid topic name"):
        Log(MemoryStore(), "topics", "a/b")
    made.store.delete(made.place.manifest_key)
    with pytest.raises(ManifestLost, match="keyfold log repair"):
        Log(made.store, "topics", "users").read()


def test_a_missing_listed_object_is_damage_and_not_a_race(made: MadeLog) -> None:
    entry = made.manifest.segments[1]
    made.store.delete(made.place.key(entry.name))
    found = Log(made.store, "topics", "users").read()
    assert offsets(next(found) for _ in range(4)) == [0, 1, 2, 3]
    with pytest.raises(Corrupt, match=f"{entry.name}` is missing"):
        next(found)
