"""The directory of keys as an object: right with any of them, and never believed when it is damaged."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from isal.isal_zlib import crc32

from keyfold.errors import Corrupt
from keyfold.log.record import Record
from keyfold.read.key_hash import key_hashes
from keyfold.read.log import Log
from keyfold.read.stored_directory import _TAIL, StoredDirectory, Written, directories, write
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.counting import CountedStore
from tests.support.logs import MadeLog, record, records


def log_of(made: MadeLog, store: CountedStore | None = None) -> Log:
    return Log(store or made.store, made.place.topics_dir, made.place.topic, clock=made.clock, random=Random(1))


def keep(made: MadeLog, *, round_records: int = 1000, seed: int = 1) -> Written:
    """Write the directory of the log's newest version, after the one that there is."""
    known = StoredDirectory.newest(made.store, made.place, made.manifest.log_id)
    retries = RetryPolicy(made.clock, Random(seed))
    random = Random(made.manifest.version * 100 + seed)
    return write(
        made.store, made.place, made.manifest, known, retries=retries, random=random, round_records=round_records
    )


def some_records(random: Random, start: int, count: int) -> list[Record]:
    return [
        record(
            start + number,
            None if random.random() < 0.02 else f"k{random.randrange(400)}",
            None if random.random() < 0.1 else f"v{start + number}",
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_lookups_are_right_with_any_directory(seed: int) -> None:
    made, random, batch = MadeLog(block_bytes=700), Random(seed), list[Record]()
    lookup = log_of(made).lookup
    held = None
    for turn in range(10):
        more = some_records(random, len(batch), random.randrange(1, 900))
        made.append(more)
        batch += more
        if random.random() < 0.4:
            made.compact(merge=random.random() < 0.5)
        if random.random() < 0.5:
            keep(made, round_records=random.choice((50, 10_000)), seed=turn)
        wanted = {each.key: each for each in batch if each.key is not None}
        keys = [f"k{number}".encode() for number in range(0, 410, 3)]
        held = held or lookup()
        held.refresh()
        for each in (held, lookup()):
            found = each.get_many(keys)
            assert {key: found[key].record for key in keys} == {key: wanted.get(key) for key in keys}
            key = random.choice(keys)
            assert each.get(key).record == wanted.get(key)
            assert [record for _, record in each.history(key)][-1:] == ([wanted[key]] if key in wanted else [])


def test_a_new_process_reads_a_few_small_parts() -> None:
    made = MadeLog(block_bytes=2000)
    for start in range(0, 30_000, 3000):
        made.append([record(n, f"key-{n:09d}", "x" * 50) for n in range(start, start + 3000)])
    store = CountedStore(made.store)
    lookup = log_of(made, store).lookup()
    keep(made)
    store.reset()
    found = lookup.get(b"key-000000007")
    assert found.record == record(7, "key-000000007", "x" * 50)
    # A listing, the footer, a chunk, a block table and the block.
    assert (store.calls.total(), store.calls["list"]) == (5, 1)
    store.reset()
    assert lookup.get(b"key-000000007").record == found.record
    assert store.calls.total() == 1
    store.reset()
    assert lookup.get(b"nosuch").record is None
    assert store.calls.total() <= 1
    lookup.load()
    store.reset()
    for number in range(0, 30_000, 5000):
        assert lookup.get(b"key-%09d" % number).record is not None
    assert store.calls.total() == 6
    assert lookup.memory_bytes > 14 * 30_000


def test_entries_of_known_segments_are_not_read_again() -> None:
    made = MadeLog()
    for start in range(0, 300, 100):
        made.append([record(n, f"k{n}", "v") for n in range(start, start + 100)])
    first = keep(made)
    made.append([record(n, f"k{n}", "w") for n in range(300, 320)])
    second = keep(made)
    assert (first.read_count, second.read_count) == (3, 1)
    assert (second.segment_count, second.record_count) == (4, 320)
    # The same log without a predecessor has the same directory, but for its name.
    for info in directories(made.store, made.place):
        data = made.store.get(info.key).data
        if info.key != second.key:
            made.store.delete(info.key)
    known = made.store.get(second.key).data
    made.store.delete(second.key)
    data = made.store.get(keep(made, seed=9).key).data
    assert data == known


def test_a_directory_of_another_log_is_not_used() -> None:
    made, other = MadeLog(), MadeLog(random=Random(9))
    made.append(records("a=1"))
    other.append(records("b=1"))
    written = keep(other)
    data = other.store.get(written.key).data
    made.store.put(written.key, data, Create())
    assert StoredDirectory.newest(made.store, made.place, made.manifest.log_id) is None
    assert log_of(made).get(b"a").value == b"1"


def test_a_directory_of_a_later_format_is_passed_over() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2"))
    first = keep(made).key
    data = made.store.get(first).data
    length, _, magic = _TAIL.unpack(data[-_TAIL.size :])
    footer = data[-_TAIL.size - length : -_TAIL.size].replace(b'"format": 1', b'"format": 2')
    later = first.replace("/0", "/9")
    body = data[: -_TAIL.size - length]
    made.store.put(later, body + footer + _TAIL.pack(length, crc32(footer), magic), Create())
    directory = StoredDirectory.newest(made.store, made.place, made.manifest.log_id)
    assert directory is not None
    assert directory.key == first
    assert log_of(made).get(b"a").value == b"1"


def test_a_directory_is_looked_for_once_after_each_pass() -> None:
    store = CountedStore(MemoryStore())
    made = MadeLog(store=store)
    made.append(records("a=1 b=2 a=3"))
    lookup = log_of(made).lookup()
    listed = []
    for turn in range(6):
        if turn == 3:
            made.compact()
        made.append(records(f"c={turn}", 3 + turn))
        lookup.refresh()
        store.reset()
        for _ in range(3):
            assert lookup.get(b"a").value == b"3"
        listed.append(store.calls["list"])
    assert listed == [1, 0, 0, 1, 0, 0]


def test_a_directory_that_is_deleted_meanwhile_is_not_missed() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2"))
    keep(made)
    lookup = log_of(made).lookup()
    assert lookup.get(b"a").value == b"1"
    made.append(records("c=3", 2))
    first, *_ = directories(made.store, made.place)
    keep(made)
    made.store.delete(first.key)
    assert [lookup.get(key).value for key in (b"b", b"nosuch")] == [b"2", None]
    for info in directories(made.store, made.place):
        made.store.delete(info.key)
    for key, value in ((b"a", b"1"), (b"b", b"2")):
        assert log_of(made).get(key).value == value
        assert lookup.get(key).value == value


def answered(made: MadeLog, key: bytes) -> bytes | Corrupt | None:
    try:
        return log_of(made).get(key).value
    except Corrupt as error:
        return error


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_an_error_and_never_a_wrong_answer(seed: int) -> None:
    random = Random(seed)
    made = MadeLog(block_bytes=400)
    made.append([record(n, f"k{n}", f"v{n}") for n in range(500)])
    written = keep(made)
    data = bytearray(made.store.get(written.key).data)
    for _ in range(random.randrange(1, 3)):
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
    if seed % 4 == 0:
        del data[random.randrange(len(data)) :]
    made.store.delete(written.key)
    made.store.put(written.key, bytes(data), Create())
    wrong = 0
    for number in range(0, 520, 7):
        answer = answered(made, f"k{number}".encode())
        if isinstance(answer, Corrupt):
            assert written.key in str(answer)
            assert "delete the object" in (answer.hint or "")
            wrong += 1
        else:
            assert answer == (f"v{number}".encode() if number < 500 else None)
    assert wrong


def test_a_place_that_has_another_key_is_an_error() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2"))
    keep(made)
    directory = StoredDirectory.newest(made.store, made.place, made.manifest.log_id)
    assert directory is not None
    hashes = key_hashes(pa.array([b"a", b"b"], pa.binary()))
    found = directory.find(hashes)
    (entry,) = made.manifest.segments
    swapped = replace(found, places=found.places[::-1].copy())
    lookup = log_of(made).lookup()
    keys = directory.segment_keys(entry, swapped)
    assert keys is not None
    lookup._versions[0].directories[entry.name] = keys
    with pytest.raises(Corrupt, match=re.escape(directory.key)):
        lookup.get(b"a")
    beyond = replace(found, places=found.places + np.uint64(2**63))
    with pytest.raises(Corrupt, match="after the end of the segment"):
        directory.segment_keys(entry, beyond)


def test_the_hash_of_a_key_is_part_of_the_format() -> None:
    keys = [b"", b"a", b"user-7", b"12345678", b"123456789", b"x" * 128, b"x" * 129, b"\xff" * 1000]
    found = key_hashes(pa.array(keys, pa.binary())).tolist()
    known = (0, 0xD4442D22, 0x1B77DFA4, 0xA70B49E5, 0xC3C3CBCC, 0x1E79CEBB, 0x34CD5306, 0xE0533230)
    assert found == [*known]


def test_names_are_beside_the_topics() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    written = keep(made)
    folder = made.place.key_directories
    assert folder == f"{made.place.topics_dir}/_keys/{made.place.topic}/partition=0/"
    assert re.fullmatch(re.escape(folder) + r"\d{20}-[0-9a-f]{16}\.keys", written.key)
