"""How a replica stands: what the manifests say, what the process says, who is believed when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keyfold.errors import AccessDenied, Corrupt, KeyfoldError, StoreUnavailable
from keyfold.log.commit import Pinned
from keyfold.log.manifest import Hold, Manifest, ReplicaState
from keyfold.log.names import Place
from keyfold.replicas.documents import ALL_TOPICS, CompactionEntry, Enablement
from keyfold_replicator.state.figures import Lag, Pending
from keyfold_replicator.state.states import PartitionState, SyncState, failure_of
from keyfold_replicator.status.assessment import Assessment, BothManifests, ReplicaFacts, assess
from keyfold_replicator.status.summary import summary
from tests.support.manifests import empty_manifest, entry, sink_name

NOW_MS = 1_700_000_000_000
PLACE = Place("topics", "users", 0)
ENABLED = Enablement({ALL_TOPICS: CompactionEntry(enabled=True, format=1)})
ASKED = ReplicaFacts("dr", "dr@1", "s3.source", "s3.replica", enablement=Enablement())


def log(segments: int, **changes: Any) -> Manifest:
    listed = tuple(
        entry(sink_name(10 * i), 10 * i, 10 * i + 10, appended_at_ms=NOW_MS - 1000 * (10 - i)) for i in range(segments)
    )
    return empty_manifest(0, version=segments + 3, segments=listed, next_offset=10 * segments, **changes)


def replica_of(source: Manifest, segments: int, **changes: Any) -> Manifest:
    """A replica that has the first segments of its source."""
    some = source.segments[:segments]
    state = ReplicaState(3, "", "dr", "s3://b/topics", source.log_id, source.version - 1, NOW_MS)
    return replace(source, version=2, replica=state, segments=some, next_offset=10 * segments, holds=(), **changes)


def seen(source: Manifest | KeyfoldError, replica: Manifest | KeyfoldError | None) -> BothManifests:
    pinned = source if isinstance(source, KeyfoldError) else Pinned(source, "etag", NOW_MS)
    return BothManifests(PLACE, pinned, replica)


def failed(code: str = "SlowDown", state: SyncState = SyncState.WAITING, **changes: Any) -> PartitionState:
    values: dict[str, Any] = {"code": code, "host": "s3.replica", "message": "no", "hint": "wait", "attempts": 4}
    times = {"backoff_ms": 800, "last_attempt_ms": NOW_MS - 500, "next_attempt_ms": NOW_MS + 300}
    return PartitionState(PLACE, state, **{**values, **times, **changes})


# By the manifests


def test_equal_content_is_in_sync_whatever_the_versions() -> None:
    source = log(3, holds=(Hold("dr@1", -1, 0, 30, NOW_MS),))
    found = assess(seen(source, replica_of(source, 3)), ASKED)
    assert (found.state.state, found.state.pending, found.state.lag) == (SyncState.IN_SYNC, Pending(), Lag())
    assert (found.state.source_version, found.state.replica_version) == (6, 5)
    assert (found.state.source_next_offset, found.state.replica_next_offset) == (30, 30)
    assert found.errors == ()


def test_differences_are_pending_with_their_sizes() -> None:
    source = log(3)
    found = assess(seen(source, replica_of(source, 1)), ASKED).state
    assert (found.state, found.pending.bytes, found.lag.records) == (SyncState.PENDING, 300, 20)


def test_a_change_without_a_byte_to_send_is_pending_too() -> None:
    source = log(3)
    changed = replace(source, settings={"cleanup.policy": "compact"})
    found = assess(seen(changed, replica_of(source, 3)), ASKED).state
    assert (found.state, found.pending) == (SyncState.PENDING, Pending())


def test_an_empty_replica_is_pending() -> None:
    found = assess(seen(log(2), None), ASKED).state
    assert (found.state, found.pending.segments, found.replica_next_offset) == (SyncState.PENDING, 2, -1)


def test_a_purge_ahead_of_the_replica_requires_a_resync_even_while_paused() -> None:
    source = log(3, purged_to=20)
    for is_paused in (False, True):
        found = assess(seen(source, replica_of(source, 2)), replace(ASKED, is_paused=is_paused))
        assert found.state.state is SyncState.RESYNC_REQUIRED
        assert found.state.code == "ResyncRequired"
        assert "keyfold replica resync" in found.state.hint
    below = replace(source, purged_to=19)
    asked = replace(ASKED, enablement=ENABLED)
    assert assess(seen(below, replica_of(below, 2)), asked).state.state is SyncState.PENDING
    assert assess(seen(source, None), asked).state.state is SyncState.PENDING, "a first copy needs none"


def test_a_log_with_own_writers_or_another_source_is_broken_even_without_a_report() -> None:
    source = log(3)
    promoted = replace(replica_of(source, 3), replica=None)
    found = assess(seen(replace(source, next_offset=31), promoted), ASKED).state
    assert (found.state, found.code) == (SyncState.BROKEN, "ReplicaDiverged")
    recreated = replace(source, log_id="f" * 32)
    found = assess(seen(recreated, replica_of(source, 3)), ASKED).state
    assert (found.state, found.code, found.host) == (SyncState.BROKEN, "ReplicaDiverged", "s3.replica")
    assert "resync" in found.hint


def test_a_compacted_log_waits_for_compaction_to_be_enabled_even_without_a_report() -> None:
    source = log(3, first_dirty_offset=10)
    found = assess(seen(source, replica_of(log(3), 2)), ASKED)
    assert (found.state.state, found.state.code) == (SyncState.WAITING, "CompactionNotEnabled")
    assert found.state.host == "s3.replica"
    assert "enable-compaction" in found.errors[0].hint
    enabled = replace(ASKED, enablement=ENABLED)
    assert assess(seen(source, replica_of(log(3), 2)), enabled).state.state is SyncState.PENDING
    newer = replace(source, min_reader=2)
    assert assess(seen(newer, None), enabled).state.code == "ReplicaFormatTooOld"


def test_a_paused_replica_still_shows_its_lag() -> None:
    source = log(3)
    found = assess(seen(source, replica_of(source, 1)), replace(ASKED, is_paused=True)).state
    assert (found.state, found.pending.segments) == (SyncState.PAUSED, 2)


# By the process


def test_a_running_processs_waits_are_shown() -> None:
    source = log(3)
    found = assess(seen(source, replica_of(source, 1)), ASKED, failed(), is_alive=True)
    assert (found.state.state, found.state.code, found.state.attempts) == (SyncState.WAITING, "SlowDown", 4)
    assert (found.state.backoff_ms, found.state.next_attempt_ms) == (800, NOW_MS + 300)
    assert found.state.pending.segments == 2, "figures are of now"
    assert [e.code for e in found.errors] == ["SlowDown"]


def test_a_running_processs_error_shows_although_nothing_is_pending() -> None:
    source = log(3)
    reported = failed("AccessDenied", SyncState.BROKEN, host="s3.source")
    assert assess(seen(source, replica_of(source, 3)), ASKED, reported, is_alive=True).state.state is SyncState.BROKEN
    gone = assess(seen(source, replica_of(source, 3)), ASKED, reported).state
    assert (gone.state, gone.code, gone.backoff_ms) == (SyncState.IN_SYNC, "", 0)


def test_an_ended_processs_last_error_shows_while_something_is_pending() -> None:
    source = log(3)
    found = assess(seen(source, replica_of(source, 1)), ASKED, failed("Corrupt", SyncState.BROKEN)).state
    assert (found.state, found.code) == (SyncState.BROKEN, "Corrupt")


def test_an_ended_processs_refusal_is_checked_again() -> None:
    source = log(3, first_dirty_offset=10)
    reported = failed("CompactionNotEnabled")
    enabled = replace(ASKED, enablement=ENABLED)
    assert assess(seen(source, replica_of(log(3), 2)), enabled, reported).state.state is SyncState.PENDING
    still = assess(seen(source, replica_of(log(3), 2)), enabled, reported, is_alive=True).state
    assert still.state is SyncState.WAITING, "it has not tried again yet"
    blind = replace(ASKED, enablement=None)
    assert assess(seen(source, replica_of(log(3), 2)), blind, reported).state.state is SyncState.WAITING


def test_a_failure_beside_the_round_is_shown_and_changes_no_state() -> None:
    source = log(3)
    reported = failed("AccessDenied", SyncState.IN_SYNC, attempts=0, backoff_ms=0)
    for replica, state in ((3, SyncState.IN_SYNC), (2, SyncState.PENDING)):
        found = assess(seen(source, replica_of(source, replica)), ASKED, reported, is_alive=True)
        assert (found.state.state, found.state.code) == (state, "")
        assert [e.code for e in found.errors] == ["AccessDenied"]


def test_a_paused_replicas_error_stays_and_counts_again_after_the_pause() -> None:
    source = log(3)
    reported = failed("AccessDenied", SyncState.PAUSED)
    paused = assess(seen(source, replica_of(source, 1)), replace(ASKED, is_paused=True), reported, is_alive=True)
    assert (paused.state.state, [e.code for e in paused.errors]) == (SyncState.PAUSED, ["AccessDenied"])
    assert assess(seen(source, replica_of(source, 1)), ASKED, reported, is_alive=True).state.state is SyncState.WAITING


def test_a_retry_in_progress_is_copying_and_shows_the_failure() -> None:
    source = log(3)
    again = failed(state=SyncState.COPYING, pending=Pending(50))
    found = assess(seen(source, replica_of(source, 1)), ASKED, again, is_alive=True)
    assert (found.state.state, found.state.pending.bytes) == (SyncState.COPYING, 50)
    assert [e.code for e in found.errors] == ["SlowDown"]
    assert assess(seen(source, replica_of(source, 1)), ASKED, again).state.state is SyncState.WAITING


def test_only_a_running_process_is_copying() -> None:
    source, copying = log(3), PartitionState(PLACE, SyncState.COPYING, pending=Pending(10_000))
    assert assess(seen(source, replica_of(source, 1)), ASKED, copying, is_alive=True).state.state is SyncState.COPYING
    assert assess(seen(source, replica_of(source, 1)), ASKED, copying).state.state is SyncState.PENDING
    assert assess(seen(source, replica_of(source, 3)), ASKED, copying, is_alive=True).state.state is SyncState.IN_SYNC
    half = replace(copying, pending=Pending(120, 20, 2))
    found = assess(seen(source, replica_of(source, 1)), ASKED, half, is_alive=True).state
    assert (found.pending.bytes, found.pending.records) == (120, 20), "180 of 300 bytes have been copied"
    assert assess(seen(source, replica_of(source, 1)), ASKED, half).state.pending.bytes == 300


def test_a_finished_resync_is_no_longer_shown() -> None:
    source = log(3)
    reported = failed("ResyncRequired", SyncState.RESYNC_REQUIRED)
    assert assess(seen(source, replica_of(source, 3)), ASKED, reported, is_alive=True).state.state is SyncState.IN_SYNC


# One side does not answer


def test_an_unavailable_replica_is_assessed_by_its_cursor() -> None:
    source = log(3, holds=(Hold("other@1", -1, 0, 30, NOW_MS), Hold("dr@1", -1, 0, 20, NOW_MS)))
    found = assess(seen(source, StoreUnavailable("k", "timed out")), ASKED)
    assert found.is_by_cursor
    assert (found.state.state, found.state.code, found.state.host) == (
        SyncState.WAITING,
        "StoreUnavailable",
        "s3.replica",
    )
    assert (found.state.pending.segments, found.state.lag.records) == (1, 10)
    denied = assess(seen(source, AccessDenied("k", "403")), ASKED).state
    assert (denied.state, denied.code) == (SyncState.BROKEN, "AccessDenied")
    never = assess(seen(log(3), StoreUnavailable("k", "timed out")), ASKED).state
    assert never.pending.segments == 3, "no cursor: nothing was received"


def test_an_unreadable_source_keeps_the_reported_values() -> None:
    reported = replace(PartitionState(PLACE, SyncState.PENDING), pending=Pending(5, 6, 7), lag=Lag(8, 9))
    found = assess(seen(Corrupt("users", 0, "torn"), None), ASKED, reported)
    assert (found.state.state, found.state.code, found.state.host) == (SyncState.BROKEN, "Corrupt", "s3.source")
    assert (found.state.pending, found.state.lag) == (Pending(5, 6, 7), Lag(8, 9))


def test_reported_and_observed_errors_are_both_shown_unless_equal() -> None:
    source = log(3)
    found = assess(seen(source, AccessDenied("k", "403")), ASKED, failed(), is_alive=True)
    assert found.state.code == "SlowDown", "the process may have rights that who asks has not"
    assert [(e.code, e.host) for e in found.errors] == [("SlowDown", "s3.replica"), ("AccessDenied", "s3.replica")]
    same = assess(
        seen(source, AccessDenied("k", "403")), ASKED, failed("AccessDenied", SyncState.BROKEN), is_alive=True
    )
    assert len(same.errors) == 1


# In all


def assessment(partition: int, state: SyncState, **changes: Any) -> Assessment:
    place = Place("topics", "users", partition)
    return Assessment(PartitionState(place, state, **changes))


def test_the_worst_partition_gives_the_state_and_values_are_summed() -> None:
    found = summary(
        [
            assessment(0, SyncState.IN_SYNC, last_success_ms=50, last_attempt_ms=50, next_attempt_ms=90),
            assessment(1, SyncState.PENDING, pending=Pending(1, 2, 3, 10, 20), lag=Lag(5, 700), last_success_ms=40),
            assessment(
                2,
                SyncState.WAITING,
                pending=Pending(10, 20, 30, 5, 8),
                lag=Lag(9, 60),
                backoff_ms=200,
                next_attempt_ms=99,
                last_attempt_ms=60,
                last_success_ms=30,
            ),
        ]
    )
    assert found.state is SyncState.WAITING
    assert found.by_state == {SyncState.WAITING: 1, SyncState.PENDING: 1, SyncState.IN_SYNC: 1}
    assert found.pending == Pending(11, 22, 33, 5, 20)
    assert found.lag == Lag(9, 700)
    assert (found.backoff_ms, found.next_attempt_ms) == (200, 99), "one in sync does not wait, it looks"
    assert (found.last_attempt_ms, found.last_success_ms) == (60, 30)


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ([SyncState.BROKEN, SyncState.RESYNC_REQUIRED], SyncState.RESYNC_REQUIRED),
        ([SyncState.WAITING, SyncState.BROKEN], SyncState.BROKEN),
        ([SyncState.PAUSED, SyncState.IN_SYNC], SyncState.PAUSED),
        ([SyncState.COPYING, SyncState.PENDING], SyncState.COPYING),
    ],
)
def test_some_states_are_worse_than_others(states: list[SyncState], worst: SyncState) -> None:
    assert summary([assessment(i, state) for i, state in enumerate(states)]).state is worst


def test_a_replica_without_partitions_is_in_sync_or_paused() -> None:
    assert summary([]).state is SyncState.IN_SYNC
    assert summary([], is_paused=True).state is SyncState.PAUSED


def test_a_partition_that_never_succeeded_shows_in_the_summary() -> None:
    found = summary([assessment(0, SyncState.IN_SYNC, last_success_ms=50), assessment(1, SyncState.PENDING)])
    assert found.last_success_ms == -1


def test_errors_are_grouped_by_code_and_host_most_frequent_first() -> None:
    away, denied = failure_of(StoreUnavailable("k", "away"), "h"), failure_of(AccessDenied("k", "403"), "h")
    assessments = [
        replace(assessment(0, SyncState.BROKEN), errors=(denied,)),
        replace(assessment(1, SyncState.WAITING), errors=(away,)),
        replace(assessment(2, SyncState.WAITING), errors=(away,)),
    ]
    found = summary(assessments).errors
    assert [(f.failure.code, [p.partition for p in f.places]) for f in found] == [
        ("StoreUnavailable", [1, 2]),
        ("AccessDenied", [0]),
    ]
