"""Lookup by key: right for the version that it names, whatever happens to the log meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from keyfold.errors import Corrupt, LogNotFound
from keyfold.log.index import read_index
from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.read.key_directory import SegmentKeys, matches
from keyfold.read.key_hash import key_hashes
from keyfold.read.log import Log
from keyfold.read.lookup import KeyInSeveralPartitions, LogRecreated
from keyfold.runtime.arrow_types import column_of
from keyfold.store.api import Update
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from tests.support.logs import MadeLog, record, records


@pytest.fixture
def made() -> MadeLog:
    return MadeLog()


def log_of(made: MadeLog) -> Log:
    return Log(made.store, made.place.topics_dir, made.place.topic, clock=made.clock, random=Random(1))


def folded(batch: Sequence[Record]) -> dict[bytes, Record]:
    """The specification: the last record of each key, tombstones too."""
    return {each.key: each for each in batch if each.key is not None}


def test_a_key_has_its_last_record(made: MadeLog) -> None:
    made.append(records("a=1 b=2 a=3 =4 c=5 c="))
    lookup = log_of(made).lookup()
    found = lookup.get(b"a")
    assert (found.value, found.partition, found.version) == (b"3", 0, made.manifest.version)
    assert found.record == record(2, "a", "3")
    deleted = lookup.get(b"c")
    assert (deleted.value, deleted.record) == (None, record(5, "c", None))
    absent = lookup.get(b"nosuch")
    assert (absent.record, absent.value, absent.next_offsets) == (None, None, {0: 6})
    assert [each.offset for _, each in lookup.history(b"a")] == [0, 2]
    assert lookup.history(b"nosuch") == []
    assert [each.offset for _, each in lookup.history(b"a", limit=1)] == [2]
    assert lookup.get_many([]) == {}


def test_random_keys_against_a_dict(made: MadeLog) -> None:
    random, batch = Random(3), list[Record]()
    log = log_of(made)
    lookup = None
    for turn in range(12):
        more = [_random_record(random, len(batch) + number) for number in range(random.randrange(1, 60))]
        made.append(more)
        batch += more
        if turn % 3 == 2:
            made.compact(merge=turn % 2 == 0)
        lookup = lookup or log.lookup()
        lookup.refresh()
        wanted = folded(batch)
        keys = [b"", *(b"k%d" % number for number in range(30)), b"x" * 5000, b"nosuch"]
        assert {key: found.record for key, found in lookup.get_many(keys).items()} == {
            key: wanted.get(key) for key in keys
        }
        for key in random.sample(keys, 8):
            assert lookup.get(key, 0).record == wanted.get(key)
            there = [each for _, each in lookup.history(key)]
            limit = random.randrange(1, 5)
            assert [each for _, each in lookup.history(key, limit=limit)] == there[-limit:]
            assert [each for each in batch if each in there] == there
            assert there[-1:] == ([wanted[key]] if key in wanted else [])


def _random_record(random: Random, offset: int) -> Record:
    key = random.choice([None, "", "x" * 5000, *(f"k{number}" for number in range(25))])
    return record(offset, key, None if key is not None and random.random() < 0.2 else f"v{offset}")


def test_keys_of_one_hash_are_never_taken_for_each_other(made: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lookup", "key_directory"):
        monkeypatch.setattr(f"keyfold.read.{module}.key_hashes", lambda keys: np.full(len(keys), 7))
    made.append(records("a=1 b=2 c=3"))
    made.append(records("b=4", 3))
    lookup = log_of(made).lookup()
    assert [lookup.get(key).value for key in (b"a", b"b", b"c", b"d")] == [b"1", b"4", b"3", None]


def test_a_lookup_stays_at_its_moment_until_it_is_refreshed(made: MadeLog) -> None:
    made.append(records("a=1"))
    log = log_of(made)
    lookup = log.lookup()
    made.append(records("a=2", 1))
    assert (lookup.get(b"a").value, log.get(b"a").value) == (b"1", b"2")
    asyncio.run(lookup.arefresh())
    assert asyncio.run(lookup.aget(b"a")).value == b"2"
    assert asyncio.run(lookup.aget_many([b"a"]))[b"a"].value == b"2"
    assert len(asyncio.run(lookup.ahistory(b"a"))) == 2
    made.append(records("a=3", 2))
    assert log.get(b"a").value == b"3"
    assert log.get_many([b"a"])[b"a"].value == b"3"
    assert len(log.history(b"a")) == 3


def test_only_indexes_of_new_segments_are_read(made: MadeLog) -> None:
    store = CountedStore(MemoryStore())
    made = MadeLog(store=store)
    for start in range(4):
        made.append(records(f"k{start}=1", start))
    lookup = log_of(made).lookup()
    store.reset()
    assert lookup.get(b"k3").value == b"1"
    assert store.calls.total() == 3, "a listing of directories, the index and the block of the newest segment"
    lookup.load()
    assert lookup.memory_bytes > 4 * 8
    store.reset()
    assert lookup.get(b"k0").value == b"1"
    assert store.calls.total() == 1
    made.append(records("k0=2", 4))
    lookup.refresh()
    store.reset()
    assert lookup.get(b"k0").value == b"2"
    assert store.calls.total() == 2


def test_a_version_that_was_deleted_is_left_for_the_newest(made: MadeLog) -> None:
    made.append(records("a=1 b=2 a=3"))
    made.append(records("b=4 c=5", 3))
    lookup = log_of(made).lookup()
    old = set(made.manifest.object_names())
    made.compact(merge=True)
    for name in old - set(made.manifest.object_names()):
        made.store.delete(made.place.key(name))
    found = lookup.get(b"b")
    assert (found.value, found.version) == (b"4", made.manifest.version)
    assert [each.offset for _, each in lookup.history(b"a")] == [2]


def test_a_missing_object_of_the_newest_version_is_damage(made: MadeLog) -> None:
    made.append(records("a=1"))
    lookup = log_of(made).lookup()
    made.store.delete(made.place.key(made.manifest.segments[0].name))
    with pytest.raises(Corrupt, match="is missing, but version"):
        lookup.get(b"a")


@pytest.mark.parametrize("which", ["name", "index_name"])
def test_damaged_objects_are_an_error_and_no_answer(made: MadeLog, which: str) -> None:
    made.append(records("a=1 b=2"))
    key = made.place.key(getattr(made.manifest.segments[0], which))
    blob = made.store.get(key)
    damaged = blob.data[:-20] + bytes([blob.data[-20] ^ 1]) + blob.data[-19:]
    made.store.put(key, damaged, Update(blob.etag))
    with pytest.raises(Corrupt):
        log_of(made).get(b"a")


def test_a_log_that_was_created_again_is_an_error(made: MadeLog) -> None:
    made.append(records("a=1"))
    log = log_of(made)
    lookup = log.lookup()
    for info in list(made.store.list("topics/")):
        made.store.delete(info.key)
    again = MadeLog(store=made.store, random=Random(99))
    again.append(records("a=2"))
    with pytest.raises(LogRecreated, match="the log has another id now"):
        lookup.refresh()


def test_partitions_are_looked_at_together_or_alone(made: MadeLog) -> None:
    other = MadeLog(store=made.store, clock=made.clock, place=Place("topics", "users", 1))
    made.append(records("a=1 both=1"))
    other.append(records("b=2 both=2 x=3"))
    lookup = log_of(made).lookup()
    assert (lookup.get(b"a").partition, lookup.get(b"b").partition) == (0, 1)
    assert (lookup.get(b"b", 0).record, lookup.get(b"b", 0).partition) == (None, 0)
    assert lookup.get(b"nosuch").next_offsets == {0: 2, 1: 3}
    with pytest.raises(KeyInSeveralPartitions, match="in the partitions 0, 1"):
        lookup.get(b"both")
    assert lookup.get(b"both", 1).value == b"2"
    assert [(number, each.value) for number, each in lookup.history(b"both")] == [(0, b"1"), (1, b"2")]
    with pytest.raises(LogNotFound):
        lookup.get(b"a", 7)


@pytest.mark.parametrize("seed", range(60))
def test_an_index_with_wrong_places_is_an_error_and_no_answer(made: MadeLog, seed: int) -> None:
    batch = [record(number, f"k{number % 9}", f"v{number}") for number in range(40)]
    made.append(batch)
    (entry,) = made.manifest.segments
    index = read_index(made.store, made.place, entry)
    random, rows = Random(seed), index.rows
    lengths = rows.column("length").to_numpy().copy()
    for _ in range(random.choice((1, 5, 40))):
        lengths[random.randrange(len(lengths))] = random.choice((0, 1, 7, 60, 2**31 - 1, *lengths.tolist()))
    changed = rows.set_column(rows.schema.get_field_index("length"), rows.schema.field("length"), column_of(lengths))
    data = replace(index, rows=changed).encode()
    made.store.put(
        made.place.key(entry.index_name), data, Update(made.store.head(made.place.key(entry.index_name)).etag)
    )
    entry = replace(entry, index_checksum=sha256(data).digest(), index_size_bytes=len(data))
    wanted = folded(batch)
    names = sorted(wanted)
    try:
        keys = SegmentKeys.read(made.store, made.place, entry)
        found = matches(made.store, made.place, keys, names, key_hashes(pa.array(names)))
    except Corrupt:
        return
    assert {names[number]: each[0] for number, each in found.items()} == wanted
