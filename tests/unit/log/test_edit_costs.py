"""How often an edit reads the entries of a log: each a few times, however many segments a commit replaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from keyfold.log.edits import Replacement, Swap, expire, replace_segments
from keyfold.log.manifest import Manifest, RoleState, SegmentEntry
from keyfold.log.names import ObjectName, Role


class CountedEntry(SegmentEntry):
    """An entry that counts reads of its name."""

    reads = 0

    def __getattribute__(self, field: str) -> object:
        if field == "name":
            CountedEntry.reads += 1
        return super().__getattribute__(field)


def entry(number: int, role: Role, epoch: int) -> SegmentEntry:
    name = ObjectName(number, epoch, role, f"{number:016x}")
    return CountedEntry(str(name), str(name.index), number, number, number + 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, b"", b"")


def replaced(count: int) -> Callable[[Manifest], Manifest]:
    swaps = [Swap((entry(n, Role.SINK, 1),), (entry(n, Role.COMPACTOR, 2),)) for n in range(count)]
    return lambda made: replace_segments(2, Replacement(tuple(swaps), 0))(made, 0)


def emptied(count: int) -> Callable[[Manifest], Manifest]:
    swaps = [Swap((entry(n, Role.SINK, 1),), ()) for n in range(count)]
    return lambda made: replace_segments(2, Replacement(tuple(swaps), 0))(made, 0)


def expired(count: int) -> Callable[[Manifest], Manifest]:
    return lambda made: expire(2, [entry(n, Role.SINK, 1) for n in range(count)])(made, 0)


@pytest.mark.parametrize("edit", [replaced, emptied, expired])
def test_a_commit_reads_each_entry_a_few_times(edit: Callable[[int], Callable[[Manifest], Manifest]]) -> None:
    reads = []
    for count in (20, 200):
        segments = tuple(entry(n, Role.SINK, 1) for n in range(count))
        made = Manifest("t", 0, "log", b"", last_epoch=2, compactor=RoleState(2), next_offset=count, segments=segments)
        commit = edit(count)
        CountedEntry.reads = 0
        commit(made)
        reads.append(CountedEntry.reads)
    assert reads[1] <= 10 * reads[0]


def test_ranges_of_emptied_segments_go_to_neighbours_in_any_order_of_the_swaps() -> None:
    segments = tuple(entry(n, Role.SINK, 1) for n in range(6))
    made = Manifest("t", 0, "log", b"", last_epoch=2, compactor=RoleState(2), next_offset=6, segments=segments)
    new = replace(entry(2, Role.COMPACTOR, 2), next_offset=4, last_offset=3)
    swaps = [Swap((segments[4],), ()), Swap(segments[2:4], (new,)), Swap((segments[1],), ()), Swap((segments[0],), ())]
    for order in (swaps, swaps[::-1]):
        after = replace_segments(2, Replacement(tuple(order), 0))(made, 0)
        assert [(s.name, s.base_offset, s.next_offset) for s in after.segments] == [
            (new.name, 0, 5),
            (segments[5].name, 5, 6),
        ]
