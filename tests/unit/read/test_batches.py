"""Arrow batches of a log: the records of an ordered read, by as few bytes as selection and columns allow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from keyfold.errors import Corrupt, OffsetOutOfRange
from keyfold.log.arrow import RECORDS
from keyfold.log.assembly import SEGMENT_LIMITS, SegmentLimits
from keyfold.log.index import Index
from keyfold.log.record import CREATE_TIME, NO_TIMESTAMP, Record
from keyfold.read.batches import read_entry_batches
from keyfold.read.blocks import ReadLimits
from keyfold.read.log import Log
from keyfold.read.records import records_of
from keyfold.read.selection import Selection
from keyfold.store.api import Update
from keyfold.store.wrappers.counting import CountedStore
from tests.support.logs import MadeLog, latest_of, record, records
from tests.support.meddling import MeddlingStore


def log_of(made: MadeLog) -> Log:
    return Log(made.store, "topics", "users")


def taken(batches: Iterable[pa.RecordBatch]) -> list[Record]:
    found: list[Record] = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        found += records_of(batch)
    return found


def random_log(random: Random, segments: int = 8, limits: SegmentLimits = SEGMENT_LIMITS) -> MadeLog:
    codec = random.choice(("zstandard", "snappy", "deflate", "null"))
    made = MadeLog(codec=codec, block_bytes=random.choice((1, 400)), limits=limits)
    offset = 0
    for _ in range(segments):
        batch = []
        for _ in range(random.randrange(1, 40)):
            offset += random.choice((1, 1, 1, 5))
            key = random.choice((None, b"", *(b"k%d" % n for n in range(9))))
            value = random.choice((None, b"", b"v%d" % offset * 9))
            headers = random.choice(((), (), (("h", None), ("h", b"x"))))
            kind, at = random.choice(((CREATE_TIME, random.randrange(5000)), (NO_TIMESTAMP, -1)))
            batch.append(Record(offset, at, kind, key, value, headers, random.choice((-1, 3))))
        made.append(batch)
        offset += 1
        if random.random() < 0.3:
            made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)
    return made


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(12))
def test_batches_equal_the_records_of_a_read(seed: int) -> None:
    random = Random(seed)
    made = random_log(random)
    log = log_of(made)
    everything = list(log.read())
    assert taken(log.batches(batch_bytes=random.choice((1, 100, 10**7)))) == everything
    end = made.manifest.next_offset
    for _ in range(20):
        start = random.randrange(end + 1)
        stop = random.randrange(end + 5)
        expected = list(log.read(from_offset=start, to_offset=stop))
        assert taken(log.batches(from_offset=start, to_offset=stop)) == expected
        assert taken(log.batches(from_timestamp=start)) == list(log.read(from_timestamp=start))


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(12))
def test_a_selection_returns_exactly_the_matching_records(seed: int) -> None:
    random = Random(100 + seed)
    made = random_log(random)
    log = log_of(made)
    everything = list(log.read())
    for _ in range(40):
        low, high = random.choice((None, -2, -1, 0, 700, 4000)), random.choice((None, -1, 0, 800, 4100, 9000))
        keys = random.choice((None, frozenset[bytes](), frozenset({b"", b"k3"}), frozenset({b"nobody"})))
        expected = [
            r
            for r in everything
            if (low is None or r.timestamp >= low)
            and (high is None or r.timestamp <= high)
            and (keys is None or r.key in keys)
        ]
        assert taken(log.batches(where=Selection(low, high, keys))) == expected


def test_columns_have_the_requested_order() -> None:
    made = MadeLog()
    made.append(records("a=1 b= =3"))
    (batch,) = log_of(made).batches(columns=["value", "offset"])
    assert batch.schema == pa.schema([RECORDS.field("value"), RECORDS.field("offset")])
    assert batch.to_pydict() == {"value": [b"1", None, b"3"], "offset": [0, 1, 2]}
    with pytest.raises(ValueError, match="unknown column 'partition'"):
        log_of(made).batches(columns=["partition"])


def test_offsets_times_and_keys_are_read_from_the_index_alone() -> None:
    made = MadeLog(block_bytes=1)
    made.append(records("a=1 b= =3"))
    counted = CountedStore(made.store)
    batches = Log(counted, "topics", "users").batches(columns=["key", "timestamp"], from_offset=1)
    assert [b.to_pydict()["key"] for b in batches] == [[b"b", None]]
    assert counted.calls["get_range"] == 0
    assert counted.calls["get"] == 2


def test_segments_and_blocks_that_cannot_match_are_not_fetched() -> None:
    made = MadeLog(block_bytes=5000)
    values = [os.urandom(1000).hex() for _ in range(100)]
    made.append([record(o, f"k{o}", v) for o, v in enumerate(values)])
    made.append([record(o, None, "v") for o in range(100, 110)])
    made.append([record(o, "late", "v") for o in range(110, 120)])
    first, keyless, late = made.manifest.segments
    counted = CountedStore(made.store)
    log = Log(counted, "topics", "users")
    for entry in (keyless, late):
        made.store.delete(made.place.key(entry.name))
        made.store.delete(made.place.key(entry.index_name))
    where = Selection(0, 90_000, keys=frozenset({b"k7"}))
    assert [r.offset for r in taken(log.batches(where=where))] == [7]
    assert counted.calls["get_range"] == 1
    assert counted.bytes_moved["get_range"] < first.size_bytes / 10


def test_memory_is_about_one_batch_and_a_large_record_gets_its_own_batch() -> None:
    made = MadeLog(block_bytes=1000)
    long = os.urandom(20 << 20)
    batch = [Record(o, o, CREATE_TIME, b"k", long if o == 50 else os.urandom(200)) for o in range(100)]
    made.append(batch)
    batches = list(log_of(made).batches(batch_bytes=5000))
    assert taken(batches) == batch
    assert sorted(b.nbytes for b in batches)[-2] < 10_000
    assert max(b.nbytes for b in batches) > 20 << 20


def test_blocks_of_one_record_and_ranges_of_one_block_are_read() -> None:
    made = MadeLog(block_bytes=1)
    batch = [record(o, f"k{o}", "v") for o in range(50)]
    made.append(batch)
    counted = CountedStore(made.store)
    log = Log(counted, "topics", "users", limits=ReadLimits(read_ahead_bytes=10))
    assert taken(log.batches()) == batch
    assert counted.calls["get_range"] == 50
    assert [b.num_rows for b in log.batches(batch_bytes=1)] == [1] * 50


def test_a_nearly_emptied_segment_is_read() -> None:
    made = MadeLog(block_bytes=300)
    made.append([record(o, f"k{o % 300}", "v" * 30) for o in range(600)])
    made.append([record(o, f"k{o % 299}", "v" * 30) for o in range(600, 1200)])
    made.compact()
    log = log_of(made)
    assert taken(log.batches()) == list(log.read())
    assert taken(log.batches(from_offset=1)) == list(log.read(from_offset=1))


@pytest.mark.parametrize("codec", ["zstandard", "null"])
@pytest.mark.parametrize("what", ["segment", "index"])
def test_damage_is_named_and_no_wrong_record_is_returned(codec: str, what: str) -> None:
    random = Random(3)
    for _ in range(25):
        made = MadeLog(codec=codec)
        batch = [record(o, f"k{o}", f"value {o}" * 3) for o in range(40)]
        entry = made.append(batch)
        key = made.place.key(entry.name if what == "segment" else entry.index_name)
        blob = made.store.get(key)
        data = bytearray(blob.data)
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
        made.store.put(key, bytes(data), Update(blob.etag))
        found: list[Record] = []
        refusal = ""
        try:
            for one in read_entry_batches(made.store, made.place, entry, 0, 40, batch_bytes=100):
                found += records_of(one)
        except Corrupt as error:
            refusal = str(error)
        if refusal:
            assert entry.name.removesuffix(".avro") in refusal
            assert what == "index" or "block " in refusal
            assert found == batch[: len(found)]
        else:
            # The header is not needed to read blocks through the index.
            assert what == "segment"
            assert at < int(Index.parse(made.store.get(made.place.key(entry.index_name)).data).blocks.position[0])
            assert found == batch


def test_an_index_of_another_segment_is_refused() -> None:
    made = MadeLog()
    entry = made.append(records("a=1 b=1 c=1"))
    other = made.append(records("d=1 e=1", 3))
    for swapped in (
        replace(entry, index_name=other.index_name, index_checksum=other.index_checksum),
        replace(entry, record_count=4),
        replace(entry, size_bytes=entry.size_bytes + 1),
        replace(entry, base_offset=1),
        replace(entry, last_offset=1),
    ):
        with pytest.raises(Corrupt):
            taken(read_entry_batches(made.store, made.place, swapped, 0, 10))


def test_a_truncated_segment_is_damage() -> None:
    made = MadeLog()
    entry = made.append([record(o, f"k{o}", f"value {o}" * 3) for o in range(40)])
    key = made.place.key(entry.name)
    blob = made.store.get(key)
    made.store.put(key, blob.data[:-30], Update(blob.etag))
    with pytest.raises(Corrupt, match=r"cut off: it has \d+ bytes"):
        taken(log_of(made).batches())


def test_a_missing_listed_object_is_damage_and_not_a_race() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    entry = made.append(records("b=1", 1))
    made.store.delete(made.place.key(entry.name))
    found = log_of(made).batches()
    assert next(found).num_rows == 1
    with pytest.raises(Corrupt, match=f"{entry.name}` is missing"):
        next(found)


def test_an_ordered_read_continues_in_the_newest_version_if_objects_were_deleted() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 c=1"))
    made.append(records("d=1 a=2 e=1", 3))
    found = log_of(made).batches()
    assert next(found).column("offset").to_pylist() == [0, 1, 2]
    made.append(records("d=2 f=1", 6))
    made.compact(merge=True)
    made.delete_replaced()
    assert [r.offset for r in taken(found)] == [4, 5, 6, 7]


def test_a_reader_that_still_needed_a_purged_tombstone_gets_an_error() -> None:
    made = MadeLog(block_bytes=1)
    made.append(records("k=old x=1"))
    made.append(records("k= y=1", 2))
    found = log_of(made).batches(batch_bytes=1, columns=["value"])
    assert next(found).column("value").to_pylist() == [b"old"]
    made.compact()
    made.compact(purge=True)
    made.delete_replaced()
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 2 were removed"):
        list(found)


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(25))
def test_batches_are_a_state_that_existed_whatever_happens_between_store_calls(seed: int) -> None:
    random = Random(seed)
    store = MeddlingStore()
    made = MadeLog(store=store, random=Random(seed))
    history: list[Record] = []
    states: list[dict[bytes, Record]] = [{}]

    def append() -> None:
        batch = []
        for _ in range(random.randrange(1, 6)):
            offset = len(history)
            batch.append(record(offset, f"k{random.randrange(6)}", random.choice((None, f"v{offset}"))))
            history.append(batch[-1])
            states.append(latest_of(history))
        made.append(batch)

    def meddle() -> None:
        compact = lambda: made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)  # noqa: E731 - short, and used twice
        random.choices((append, compact, made.delete_replaced, lambda: None), (15, 15, 20, 50))[0]()

    for _ in range(4):
        append()
    store.meddle = meddle
    log = Log(store, "topics", "users", limits=ReadLimits(read_ahead_bytes=100))
    outcomes = 0
    for _ in range(10):
        try:
            state = latest_of(taken(log.batches(batch_bytes=random.choice((1, 1000)))))
        except OffsetOutOfRange:
            continue
        outcomes += 1
        assert state in states
    assert outcomes
