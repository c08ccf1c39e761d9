"""A latest state and then every later record: nothing between them is missed or given twice."""

from __future__ import annotations

from itertools import islice

import pytest

from keyfold import OffsetOutOfRange, Position
from keyfold.read.follow import Follower
from keyfold.read.log import Log
from tests.support.logs import MadeLog, records


def log_of(made: MadeLog) -> Log:
    return Log(made.store, made.place.topics_dir, made.place.topic, clock=made.clock, random=made.random)


def state_and_follower(log: Log) -> tuple[dict[bytes | None, bytes | None], Follower]:
    latest = log.latest(0)
    state = {record.key: record.value for record in latest}
    return state, log.follow(0, start={0: latest.position})


def test_following_a_state_returns_exactly_the_later_appends() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2 a=3 c=4"))
    state, follower = state_and_follower(log_of(made))
    made.append(records("b= d=6", start=4))
    made.compact(merge=True)
    made.delete_replaced()
    found = [record for _, record in islice(follower, 2)]
    assert [record.offset for record in found] == [4, 5]
    state |= {record.key: record.value for record in found}
    assert {key: value for key, value in state.items() if value} == {b"a": b"3", b"c": b"4", b"d": b"6"}


def test_the_state_of_an_empty_log_ends_at_its_start() -> None:
    made = MadeLog()
    _ = made.sink
    latest = log_of(made).latest(0)
    assert list(latest) == []
    assert latest.position.offset == 0
    made.append(records("a=1"))
    assert next(log_of(made).follow(0, start={0: latest.position}))[1].offset == 0


def test_the_position_belongs_to_the_version_read_if_an_older_one_was_deleted() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2"))
    latest = log_of(made).latest(0)
    made.append(records("a=3 c=4", start=2))
    made.compact(merge=True)
    made.delete_replaced()
    assert [record.offset for record in latest] == [1, 2, 3]
    assert latest.position.offset == 4
    assert latest.position.anchor.version == log_of(made).manifest(0).version


def test_a_tombstone_purged_between_state_and_follower_is_an_error_not_a_stale_key() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2"))
    latest = log_of(made).latest(0)
    assert [record.key for record in latest] == [b"a", b"b"]
    made.append(records("a=", start=2))
    made.compact()
    made.compact(purge=True)
    made.append(records("c=4", start=3))
    kept = Position.of(latest.position.document())
    with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 2 were removed"):
        log_of(made).follow(0, start={0: kept})


def test_arrow_batches_of_a_state_have_a_position_too() -> None:
    made = MadeLog()
    made.append(records("a=1 b=2 a=3"))
    latest = log_of(made).latest_batches(0, columns=["key", "offset"])
    assert sum(batch.num_rows for batch in latest) == 2
    assert latest.position.offset == 3
