"""Offsets of groups, as Kafka's tool writes them, in the target's offsets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.errors import ConfigError
from keyfold.restore.errors import RestoreRefused
from keyfold.restore.group_offsets import GroupOffset, format_offsets, parse_offsets, translate, translate_partition
from keyfold.restore.journal import Journal
from keyfold.restore.run import RestoreRequest
from keyfold.restore.window import Window
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.memory import MemoryStore
from tests.support.fake_topic import FakeTopic
from tests.unit.restore.test_restore import SMALL, made, restore, run


def test_offsets_files_round_trip_in_both_forms() -> None:
    one = "users,0,5\nusers,1,0\n"
    many = '"group, one",users,0,5\ng2,users,1,7\n'
    assert parse_offsets(one, "f") == [GroupOffset(None, "users", 0, 5), GroupOffset(None, "users", 1, 0)]
    assert parse_offsets(many, "f")[0] == GroupOffset("group, one", "users", 0, 5)
    for text in (one, many):
        assert format_offsets(parse_offsets(text, "f")) == text
    assert parse_offsets('"a-topic-with-a-long-name-in-quotes",0,5\n\n', "f")[0].offset == 5


@pytest.mark.parametrize("text", ["users,0", "users,x,5", "users,0,-5", "a,b,c,d,e", ",0,5", "g,users,0,1\nusers,0,1"])
def test_invalid_offsets_files_are_refused_with_the_line(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_offsets(text, "old.csv")


def journal() -> Journal:
    from random import Random

    clock = ManualClock()
    return Journal(MemoryStore(clock=clock), "topics/_restores/users/t@id/", RetryPolicy(clock, Random(1)))


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=6),
    st.lists(st.integers(0, 12), max_size=6),
    st.integers(0, 5),
)
def test_every_offset_is_where_its_record_landed(pieces: list[list[int]], cuts: list[int], base: int) -> None:
    """Windows of which some landed in part, whose rest was announced again: the specification is a plain list."""
    one = journal()
    landed: list[int] = []
    number, position = 0, 0
    for index, piece in enumerate(pieces):
        offsets = [o for o in sorted(set(piece)) if o >= position]
        keep = len(offsets) - (cuts[index] if index < len(cuts) else 0)
        kept = offsets[: max(0, keep)]
        window = Window(number, base + len(landed), position, position, np.array(offsets, np.int64), 1)
        one.add(0, window)
        number += 1
        landed += kept
        position = kept[-1] + 1 if kept else position
    with pytest.raises(RestoreRefused):
        translate_partition(one, 0, [0])
    one.add(0, Window(number, base + len(landed), position, 61, np.empty(0, np.int64), 1, finished=True))
    found = translate_partition(one, 0, range(63))
    assert found == {c: base + sum(o < c for o in landed) for c in range(63)}


def test_rows_of_other_topics_are_ignored_and_unknown_partitions_refused() -> None:
    clock, topic = ManualClock(), FakeTopic()
    log = made(clock, "a=1 _ b=2 c=3 _ _")
    request = RestoreRequest("restored", settings=SMALL)
    one = restore(log, topic, clock, request)
    with pytest.raises(RestoreRefused, match="no restore into topic"):
        one.translate([GroupOffset("g", "users", 0, 1)])
    run(log, topic, clock, request)
    rows = [GroupOffset("g", "users", 0, o) for o in (0, 1, 2, 3, 4, 99)]
    found, others = one.translate([*rows, GroupOffset("g", "else", 0, 1)])
    assert [(row.topic, row.offset) for row in found] == [("restored", o) for o in (0, 1, 1, 2, 3, 3)]
    assert others == [GroupOffset("g", "else", 0, 1)]
    with pytest.raises(RestoreRefused, match="users-7"):
        one.translate([GroupOffset("g", "users", 7, 1)])
    assert translate.__doc__
