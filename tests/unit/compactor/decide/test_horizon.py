"""Which tombstones may go: the rule on whole columns and on manifests, beside the rule said in one line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfold.log.manifest import UNSTAMPED, Hold, Manifest, Pass, Replaced, ReplicaState, SegmentEntry
from keyfold.runtime.arrow_types import values_of
from keyfold.store.api import STORE_TIME_RESOLUTION_MS
from keyfold_compactor.decide.horizon import UNHELD, HeldTombstones, Purge, held_from, plain_names, purge_of
from keyfold_compactor.decide.min_garbage import _signature
from keyfold_compactor.decide.policy import Reason, decide_cleaning, forecast
from keyfold_compactor.decide.retain import retain
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.replica_holds import UNKNOWN
from tests.support.manifests import empty_manifest, entry, sink_name

NOW = 100_000_000
RETENTION = 1_000
HOLD = 10_000
SETTINGS = TopicSettings(delete_retention_ms=RETENTION, replica_hold_max_ms=HOLD)
EPOCHS = st.integers(1, 6)
OFFSETS = st.integers(0, 60)


def purges() -> st.SearchStrategy[Purge]:
    def made(due: set[int], overdue: set[int], held: int) -> Purge:
        return Purge(frozenset(due | overdue), held, frozenset(overdue))

    return st.builds(made, st.sets(EPOCHS), st.sets(EPOCHS), st.one_of(OFFSETS, st.just(UNHELD)))


def goes(purge: Purge, offset: int, mark: int | None) -> bool:
    """The rule, said once more: the specification of everything here."""
    if mark in purge.overdue_epochs:
        return True
    return mark in purge.due_epochs and offset < purge.held_from


Marks = st.dictionaries(OFFSETS, st.one_of(st.none(), EPOCHS), min_size=1, max_size=20)


def rows(marks: dict[int, int | None]) -> pa.Table:
    """A tombstone for every offset; and a value, which nothing may touch, between each two of them."""
    offsets = sorted(marks)
    return pa.table(
        {
            "offset": pa.array([o for at in offsets for o in (2 * at, 2 * at + 1)], pa.int64()),
            "key": pa.array([b"k"] * 2 * len(offsets), pa.binary()),
            "is_tombstone": pa.array([True, False] * len(offsets), pa.bool_()),
            "cleaned_epoch": pa.array([m for at in offsets for m in (marks[at], None)], pa.int32()),
            "length": pa.array([10] * 2 * len(offsets), pa.int32()),
        }
    )


def segment(offsets: list[int], marks: list[int | None]) -> SegmentEntry:
    epochs = tuple(sorted({m for m in marks if m is not None}))
    first = sink_name(offsets[0])
    return entry(first, offsets[0], offsets[-1] + 5, last_offset=offsets[-1], record_count=len(offsets),
                 tombstones=len(offsets), unmarked=marks.count(None), cleaned_epochs=epochs)  # fmt: skip


@given(Marks, purges())
def test_a_tombstone_goes_when_it_is_due_and_received_or_overdue(marks: dict[int, int | None], purge: Purge) -> None:
    table = rows(marks)
    found = retain(table, np.zeros(len(table), np.bool_), purge=purge, remove_keyless=False)
    expected = [m is None or not goes(purge, o, m) for o, m in zip(
        values_of(table["offset"]), values_of(table["cleaned_epoch"]), strict=True)]  # fmt: skip
    assert found.keep.tolist() == expected
    gone = [2 * at for at, mark in marks.items() if goes(purge, 2 * at, mark)]
    assert found.purged_count == len(gone)
    assert found.purged_to == max(gone, default=-1)
    held = [at for at, mark in marks.items() if mark in purge.due_epochs and not goes(purge, 2 * at, mark)]
    assert found.held_count == len(held)


@given(Marks, purges())
def test_a_manifests_entry_matches_the_segments_records(marks: dict[int, int | None], purge: Purge) -> None:
    offsets = sorted(marks)
    found = segment(offsets, [marks[o] for o in offsets])
    going = {o for o in offsets if goes(purge, o, marks[o])}
    sure = purge.of_all(found)
    assert {o for o in offsets if marks[o] in sure} <= going, "it promises what does not go"
    assert {marks[o] for o in going} <= purge.of_some(found), "a segment is not read of which something goes"
    assert bool(sure) <= bool(going), "a pass would be made for nothing"
    stays = {marks[o] for o in offsets if marks[o] in purge.due_epochs and o not in going}
    assert stays <= purge.held(found), "what is held is not told"


@given(st.dictionaries(st.sampled_from("abc"), st.integers(-1, 50)), st.sets(st.sampled_from("abcd")))
def test_the_slowest_registered_replica_holds_and_one_without_an_entry_received_nothing(
    received: dict[str, int], registered: set[str]
) -> None:
    manifest = empty_manifest(holds=tuple(Hold(name, -1, 0, to) for name, to in received.items()))
    expected = min((max(0, received.get(name, 0)) for name in registered), default=UNHELD)
    assert held_from(manifest, tuple(registered)) == expected


def marked(*segments: tuple[int, int], committed_at_ms: int, received_to: int = -1, first_dirty: int = 20) -> Manifest:
    """Segments `(base, last)` of ten offsets each, with tombstones of pass 3; replica `r` has `received_to`."""
    entries = tuple(
        entry(sink_name(base), base, base + 10, last_offset=last, tombstones=2, unmarked=0, cleaned_epochs=(3,))
        for base, last in segments
    )
    return empty_manifest(
        segments=entries,
        next_offset=entries[-1].next_offset,
        first_dirty_offset=first_dirty,
        passes=(Pass(3, committed_at_ms),),
        last_epoch=3,
        holds=(Hold("r", -1, 0, received_to),),
    )


DUE = NOW - STORE_TIME_RESOLUTION_MS - RETENTION
OVERDUE = DUE - HOLD
HELD = replace(SETTINGS, replicas=("r",))


@pytest.mark.parametrize(
    ("committed_at_ms", "received_to", "is_due"),
    [
        (DUE + 1, 99, False),
        (DUE, 99, True),
        (DUE, 8, False),  # the first segment's last record is at 8: it may be a tombstone
        (DUE, 9, True),
        (DUE, -1, False),
        (OVERDUE + 1, -1, False),
        (OVERDUE, -1, True),
    ],
)
def test_a_log_is_due_for_tombstones_once_a_segment_was_fully_received_or_the_hold_ended(
    committed_at_ms: int, received_to: int, is_due: bool
) -> None:
    manifest = marked((0, 8), (10, 19), committed_at_ms=committed_at_ms, received_to=received_to)
    assert decide_cleaning(manifest, HELD, NOW).reasons == ((Reason.HORIZON,) if is_due else ())
    # Nobody is registered: what the manifest says of a replica that was removed holds nothing.
    assert decide_cleaning(manifest, SETTINGS, NOW).is_due == (committed_at_ms <= DUE)


def test_a_plan_shows_which_replica_holds_what_and_for_how_long() -> None:
    manifest = marked((0, 8), (10, 19), committed_at_ms=DUE, received_to=9)
    assert decide_cleaning(manifest, HELD, NOW).held == HeldTombstones(9, ("r",), 1, DUE + RETENTION + HOLD)
    both = replace(HELD, replicas=("r", "s", "t"))
    ahead = replace(manifest, holds=(*manifest.holds, Hold("s", -1, 0, 20), Hold("t", -1, 0, 9)))
    assert decide_cleaning(ahead, both, NOW).held == HeldTombstones(9, ("r", "t"), 1, DUE + RETENTION + HOLD)
    assert decide_cleaning(manifest, both, NOW).held == HeldTombstones(0, ("s", "t"), 2, DUE + RETENTION + HOLD)
    received = marked((0, 8), (10, 19), committed_at_ms=DUE, received_to=20)
    assert decide_cleaning(received, HELD, NOW).held is None
    young = marked((0, 8), (10, 19), committed_at_ms=DUE + 1, received_to=-1)
    assert decide_cleaning(young, HELD, NOW).held is None, "readers still need them: no replica is to blame"
    assert decide_cleaning(manifest, SETTINGS, NOW).held is None


def test_without_any_hold_or_retention_the_claims_own_stamp_is_enough() -> None:
    manifest = marked((0, 8), (10, 19), committed_at_ms=UNSTAMPED)
    at_once = replace(HELD, delete_retention_ms=0)
    assert not decide_cleaning(manifest, at_once, NOW).is_due
    assert decide_cleaning(manifest, at_once, NOW).held == HeldTombstones(0, ("r",), 2, NOW + HOLD)
    assert decide_cleaning(manifest, replace(at_once, replica_hold_max_ms=0), NOW).reasons == (Reason.HORIZON,)


def test_what_a_pass_left_is_reconsidered_only_after_a_replica_received_it() -> None:
    manifest = marked((0, 8), (10, 19), committed_at_ms=DUE)

    def known(received_to: int) -> object:
        now = replace(manifest, holds=(Hold("r", -1, 0, received_to),))
        return _signature(now, 20, purge_of(now, HELD, NOW), 0.5)

    assert known(-1) == known(0) == known(8) != known(9)
    assert known(9) == known(10) == known(19) != known(20)
    assert known(20) == known(UNHELD)


def test_a_replica_is_never_cleaned_whatever_its_manifest_and_the_command_say() -> None:
    source = ReplicaState(1, "", "eu", "s3://source/topics", "log", 7)
    manifest = replace(marked((0, 8), (10, 19), committed_at_ms=OVERDUE, received_to=20), replica=source)
    manifest = replace(manifest, replaced=(Replaced("old", 1, UNSTAMPED), Replaced("older", 1, 0)))
    expiring = replace(SETTINGS, delete=True, retention_ms=1, retention_bytes=1, min_cleanable_dirty_ratio=0.0)
    for decision in (
        decide_cleaning(manifest, expiring, NOW, force=True),
        forecast(manifest, expiring, NOW, force=True),
    ):
        assert (decision.reasons, decision.maintenance, decision.expiry.segments) == ((), (), ())
        assert decision.replica_of == "s3://source/topics"
        assert decision.replica_of in decision.why_not


def test_a_replicas_name_is_shown_without_its_location_id() -> None:
    assert plain_names(("eu@0a1b2c3d", UNKNOWN, "us")) == ("eu", UNKNOWN, "us")
