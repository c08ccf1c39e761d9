"""A restore that continues after a fail-over of the log: the journal has what an earlier run has seen.

The log and its copy are made by hand; the copy ends where it was taken, and is promoted under a log id of its own.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from keyfold.errors import OffsetOutOfRange
from keyfold.log.manifest import Ancestor
from keyfold.log.manifest_codec import encode_manifest
from keyfold.read.log import Log
from keyfold.read.position import Anchor
from keyfold.restore.journal import Journal
from keyfold.restore.run import Restore, RestoreOutcome, RestoreRequest
from keyfold.restore.selection import RestoreSelection
from keyfold.restore.window import Window
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import RetryPolicy
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import SimulatedCrash
from tests.support.fake_topic import FakeTopic
from tests.support.logs import MadeLog, latest_of, records
from tests.unit.restore.test_restore import SMALL, bare, made, of_log


def promoted_copy(log: MadeLog, clock: ManualClock) -> MadeLog:
    """A replica of the log as it is now, promoted."""
    store = MemoryStore(clock=clock)
    for info in log.store.list(""):
        store.put(info.key, log.store.get(info.key).data, Create())
    copy = MadeLog(store=store, place=log.place, clock=clock)
    before = copy.manifest
    ancestor = Ancestor(before.log_id, before.version, before.next_offset, before.last_epoch)
    store.delete(log.place.manifest_key)
    promoted = replace(before, log_id="promoted", lineage=(*before.lineage, ancestor))
    store.put(log.place.manifest_key, encode_manifest(promoted), Create())
    return copy


def run(
    log: MadeLog, journal: MemoryStore, topic: FakeTopic, clock: ManualClock, number: int, *, latest: bool = False
) -> RestoreOutcome:
    """A run over this log, with the journal in another place."""
    opened = Log(log.store, "topics", "users", clock=clock, random=Random(number))
    request = RestoreRequest("users", RestoreSelection(latest=latest), settings=SMALL)
    one = Restore(
        opened, topic, request, clock=clock, random=Random(number), holder=f"run {number}", journal_store=journal
    )
    outcome = one.run(one.preview())
    for error in outcome.failures.values():
        raise error
    return outcome


def dying(
    log: MadeLog, journal: MemoryStore, topic: FakeTopic, clock: ManualClock, number: int, *, records: int,
    latest: bool = False,
) -> None:  # fmt: skip
    """A run that dies after a number of landed records."""
    topic.dies_at = topic.sends + records + 1
    with pytest.raises(SimulatedCrash):
        run(log, journal, topic, clock, number, latest=latest)
    topic.die()
    topic.dies_at = None


def test_a_run_ahead_of_the_promoted_log_cannot_be_continued() -> None:
    """b=2 was left out, for b=9 was coming; the promoted log has never had b=9, and its b=2 is behind the position."""
    clock, topic, journal = ManualClock(), FakeTopic(lag=0), MemoryStore()
    log = made(clock, "a=1 b=2 c=3 d=4 e=5", segments=2)
    copy = promoted_copy(log, clock)
    dying(log, journal, topic, clock, 1, records=1)
    log.append(records("b=9", 5))
    log.compact()
    log.delete_replaced()
    dying(log, journal, topic, clock, 2, records=2)
    assert [r.key for r in topic.log(0) if r] == [b"a", b"c", b"d"]
    with pytest.raises(
        OffsetOutOfRange, match=r"only below offset 5; this reader, at offset 4, has seen .* below offset 6"
    ):
        run(copy, journal, topic, clock, 3)
    assert len(topic.log(0)) == 3
    run(log, journal, topic, clock, 4)  # where the old log is still there it is gone on with
    state = {k: r.value for k, r in latest_of(r for r in topic.log(0) if r).items()}
    assert state == {b"a": b"1", b"b": b"9", b"c": b"3", b"d": b"4", b"e": b"5"}


@pytest.mark.parametrize("behind", range(1, 4))
def test_a_run_in_the_promoted_log_continues_after_the_old_logs_end(behind: int) -> None:
    clock, topic, journal = ManualClock(), FakeTopic(lag=0), MemoryStore()
    log = made(clock, "a=1 b=2 c=3 d=4 e=5", segments=2)
    copy = promoted_copy(log, clock)
    copy.append(records("a=6 f=7 g=8", 5))
    dying(log, journal, topic, clock, 1, records=3)
    dying(copy, journal, topic, clock, 2, records=2 + behind - 1)
    outcome = run(copy, journal, topic, clock, 3)
    assert outcome.results[0].records == 8
    assert bare(topic.log(0)) == bare(of_log(copy))
    assert run(copy, journal, topic, clock, 4).results[0].was_finished


@pytest.mark.parametrize(("since", "is_needed"), [("g=7 c=", True), ("g=7", False)])
def test_in_a_promoted_log_the_latest_state_needs_no_tombstone_from_before_its_plan(
    since: str, *, is_needed: bool
) -> None:
    """b was deleted when the plan was made, so that it was left out; the promoted log has cleaned that away since."""
    clock, topic, journal = ManualClock(), FakeTopic(lag=0), MemoryStore()
    log = made(clock, "b=2 a=1 c=3 d=4 b=5 b= e=5", segments=2)
    copy = promoted_copy(log, clock)
    dying(log, journal, topic, clock, 1, records=1, latest=True)
    copy.append(records(since, 7))
    copy.compact()
    copy.compact(purge=True)
    copy.delete_replaced()
    if is_needed:  # c's is newer than the plan
        with pytest.raises(OffsetOutOfRange, match="tombstones up to offset 8"):
            run(copy, journal, topic, clock, 2, latest=True)
    else:
        run(copy, journal, topic, clock, 2, latest=True)
        assert [r.key for r in topic.log(0) if r] == [b"a", b"c", b"d", b"e", b"g"]


def window(number: int, run: int, seen_to: int | None) -> Window:
    anchor = None if seen_to is None else Anchor("log", 3, 2, seen_to)
    return Window(number, number, number, number + 1, np.array([number], np.int64), run, anchor=anchor)


@pytest.mark.parametrize(
    ("runs", "newest"),
    [
        ([1], 0),
        ([1, 1], 1),
        ([1, 1, 2], 2),
        ([1, 2, 1], 1),  # the first run's request was still under way when the second had begun
        ([1, 1, 3, 2, 1], 2),
        ([1, 1, 3, 2, 3, 1], 4),
    ],
)
def test_the_newest_run_determines_the_position_even_if_an_older_window_landed_late(
    runs: list[int], newest: int
) -> None:
    clock = ManualClock()
    journal = Journal(MemoryStore(clock=clock), "journal/", RetryPolicy(clock, Random(1)))
    for number, run_number in enumerate(runs):
        one = window(number, run_number, 100 + number)
        journal.store.put(f"journal/partition=0/{number:010d}.window", one.encode(), Create())
    found = journal.last_anchor(0, journal.numbers(0))
    assert found == Anchor("log", 3, 2)
    assert found is not None
    assert found.seen_to == 100 + newest


def test_a_window_records_the_logs_identity_and_older_windows_are_readable() -> None:
    read = Window.decode(window(4, 1, 77).encode())
    assert read.anchor == Anchor("log", 3, 2)
    assert read.anchor is not None
    assert read.anchor.seen_to == 77
    assert Window.decode(window(4, 1, None).encode()).anchor is None
