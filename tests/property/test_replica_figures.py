"""A replica's figures match its objects after any order of appends, passes and rounds.

pending     is what a round would copy, object by object
in sync     is said exactly where both sides have the same content
lag         in offsets is the distance of both ends; in time it is at least the age of the oldest record that the
            source still has and the replica has not, and never more than the time since the replica was in sync
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keyfold.log.commit import Pinned
from keyfold.log.edits_replica import same_content
from keyfold.log.manifest import UNSTAMPED, Manifest
from keyfold.log.partition_log import PartitionLog
from keyfold.replicas.documents import ALL_TOPICS, CompactionEntry, Enablement
from keyfold_replicator.rounds.plan import copy_plan
from keyfold_replicator.state.figures import ReplicaFigures, figures, figures_by_cursor
from keyfold_replicator.state.states import SyncState
from keyfold_replicator.status.assessment import BothManifests, ReplicaFacts, assess
from tests.support.cleaning import EAGER, FAST, PLACE, load, read_all, record
from tests.support.replica_oracle import NAME, REPLICA_PLACE
from tests.support.replica_pair import Pair

RESOLUTION_MS: Final = 4_000
"""Store times are whole seconds and may be a little stale, at either end of a difference."""

MERGE: Final = replace(EAGER, min_cleanable_dirty_ratio=0.9, segment_bytes=600)

ASKED: Final = ReplicaFacts(
    "second", NAME, "source.test", "replica.test",
    enablement=Enablement({ALL_TOPICS: CompactionEntry(enabled=True, format=1)}),
)  # fmt: skip

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 600)),
        st.tuples(st.sampled_from(["clean", "merge", "replicate", "replicate"]), st.just(0)),
    ),
    min_size=3,
    max_size=14,
)


@pytest.mark.sharded
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example is short, and takes long to be shorter
)
@given(steps=STEPS)
def test_figures_match_the_objects(steps: list[tuple[str, int]]) -> None:
    with Pair.new() as pair:
        pair.source.in_force = [replace(s, replicas=(NAME,)) for s in (EAGER, MERGE)]
        pair.append([record(0, "k0", "v", timestamp=pair.source.clock.now_ms())])
        version, received_ms = 0, UNSTAMPED
        known_ms: dict[int, int] = {}
        for what, number in steps:
            before = load(pair.source)
            _step(pair, what, number)
            if load(pair.source).version > before.version:
                for offset in range(before.next_offset):
                    known_ms.setdefault(offset, pair.source.clock.now_ms())
            replica = load(pair.replica, REPLICA_PLACE) if pair.replica.history else None
            source = _pinned(pair)
            if replica is not None and replica.version != version:
                version, received_ms = replica.version, source.seen_ms
            _check(pair, source, replica, received_ms, known_ms)


def _step(pair: Pair, what: str, number: int) -> None:
    now_ms = pair.source.clock.now_ms()
    if what == "append":
        base = load(pair.source).next_offset
        values = ((o, None if o % 5 == 4 else f"v{o}") for o in range(base, base + number))
        pair.append([record(o, f"k{o % 4}", value, timestamp=now_ms) for o, value in values])
    elif what == "wait":
        pair.advance(1000 * number)
    elif what == "replicate":
        pair.process().once()
    else:
        pair.compact(EAGER if what == "clean" else MERGE)


def _pinned(pair: Pair) -> Pinned:
    return PartitionLog(pair.source, PLACE, clock=pair.source.clock, random=Random(0), backoff=FAST).load()


def _check(pair: Pair, source: Pinned, replica: Manifest | None, received_ms: int, known_ms: dict[int, int]) -> None:
    hold = source.manifest.hold(NAME)
    received_at_ms = UNSTAMPED if hold is None else hold.received_at_ms
    found = figures(source, replica, received_at_ms=received_at_ms)
    to_copy = copy_plan(PLACE, source.manifest, replica)
    assert found.pending.bytes == to_copy.size_bytes
    assert bool(found.pending.segments) == bool(to_copy.jobs)
    state = assess(BothManifests(PLACE, source, replica), ASKED).state
    assert (state.pending, state.lag) == (found.pending, found.lag)
    is_equal = replica is not None and same_content(source.manifest, replica)
    assert (state.state is SyncState.IN_SYNC) == is_equal, state
    if is_equal:
        assert found == ReplicaFigures()
    _check_lag(pair, source, replica, found, received_ms, known_ms)
    if hold is not None:
        by_cursor = figures_by_cursor(source, hold.received_to, received_at_ms=received_at_ms)
        assert by_cursor.lag.records == found.lag.records
        assert by_cursor.pending.bytes <= found.pending.bytes, "rewrites are not seen"


def _check_lag(
    pair: Pair,
    source: Pinned,
    replica: Manifest | None,
    found: ReplicaFigures,
    received_ms: int,
    known_ms: dict[int, int],
) -> None:
    start = source.manifest.log_start_offset
    end = start if replica is None else replica.next_offset
    assert found.lag.records == source.manifest.next_offset - max(start, end)
    missing = [r for r in read_all(pair.source, source.manifest) if r.offset >= end]
    if not missing:
        assert found.pending.earliest_ms == -1
        return
    assert found.pending.earliest_ms <= min(r.timestamp for r in missing)
    assert found.pending.latest_ms >= max(r.timestamp for r in missing)
    if received_ms == UNSTAMPED:
        return
    oldest_ms = source.seen_ms - min(known_ms.get(r.offset, source.seen_ms) for r in missing)
    assert found.lag.ms >= oldest_ms - RESOLUTION_MS
    assert found.lag.ms <= source.seen_ms - received_ms + RESOLUTION_MS
