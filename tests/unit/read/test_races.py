"""Readers while the log is appended to, compacted and collected under them: every result is a state that existed."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.errors import OffsetOutOfRange, SnapshotLost
from keyfold.log.record import Record
from keyfold.read.blocks import ReadLimits
from keyfold.read.log import Log
from tests.support.logs import MadeLog, latest_of, record, records
from tests.support.meddling import MeddlingStore


def test_an_ordered_read_continues_in_the_newest_version_if_objects_were_deleted() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 c=1"))
    made.append(records("d=1 a=2 e=1", 3))
    found = Log(made.store, "topics", "users").read()
    assert [next(found).offset for _ in range(3)] == [0, 1, 2]
    made.append(records("d=2 f=1", 6))
    made.compact(merge=True)
    made.delete_replaced()
    # d=1 at offset 3 went because of d=2 at 6, so the read must reach 6, past the end that it began with.
    assert [r.offset for r in found] == [4, 5, 6, 7]


def test_the_requested_end_stays_the_end() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 c=1"))
    made.append(records("d=1 a=2 e=1", 3))
    found = Log(made.store, "topics", "users").read(to_offset=6)
    assert next(found).offset == 0
    made.append(records("d=2 f=1", 6))
    made.compact(merge=True)
    made.delete_replaced()
    assert [r.offset for r in found] == [1, 2, 4, 5]


def test_a_reader_that_still_needed_a_purged_tombstone_gets_an_error() -> None:
    made = MadeLog()
    made.append(records("k=old x=1"))
    made.append(records("k= y=1", 2))
    found = Log(made.store, "topics", "users").read()
    assert next(found).value == b"old"
    made.compact()  # k=old goes, its tombstone is marked
    made.compact(purge=True)  # the tombstone goes
    made.delete_replaced()
    assert next(found).key == b"x"  # came with the block before
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 2 were removed"):
        list(found)


def test_a_reader_that_started_after_the_mark_does_not_need_the_tombstone() -> None:
    made = MadeLog()
    made.append(records("k=old x=1"))
    made.append(records("k= y=1", 2))
    made.compact()
    found = Log(made.store, "topics", "users").read()
    assert next(found).key == b"x"
    made.compact(purge=True)
    made.delete_replaced()
    assert [r.offset for r in found] == [3]


def test_a_snapshot_that_returned_records_does_not_mix_versions() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1"))
    made.append(records("c=1 d=1", 2))
    found = Log(made.store, "topics", "users").latest()
    assert next(found).key == b"a"
    made.append(records("a=2 c=2", 4))
    made.compact(merge=True)
    made.delete_replaced()
    with pytest.raises(SnapshotLost, match="read it again") as raised:
        list(found)
    assert raised.value.retriable


def test_a_snapshot_that_returned_nothing_starts_again() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1"))
    found = Log(made.store, "topics", "users").latest()
    made.append(records("a=2 c=2", 2))
    made.compact(merge=True)
    made.delete_replaced()
    assert [(r.key, r.value) for r in found] == [(b"b", b"1"), (b"a", b"2"), (b"c", b"2")]


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(40))
def test_a_read_is_a_state_that_existed_whatever_happens_between_store_calls(seed: int) -> None:
    random = Random(seed)
    limits = ReadLimits(read_ahead_bytes=100, whole_bytes=random.choice((0, 10_000)))
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

    def compact() -> None:
        made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)

    def meddle() -> None:
        random.choices((append, compact, made.delete_replaced, lambda: None), (15, 15, 20, 50))[0]()

    for _ in range(4):
        append()
    store.meddle = meddle
    log = Log(store, "topics", "users", limits=limits)
    outcomes = 0
    for _ in range(10):
        for result in (lambda: latest_of(log.read()), lambda: {r.key: r for r in log.latest()}):
            try:
                state = result()
            except (OffsetOutOfRange, SnapshotLost):
                continue
            outcomes += 1
            assert state in states
    assert outcomes
