"""What an error means for a partition, and how its state is written down."""

from __future__ import annotations

import json

import pytest

from keyfold.errors import (
    AccessDenied,
    BucketMissing,
    CommitUnknown,
    CompactionNotEnabled,
    ConditionsIgnored,
    ConditionUndecided,
    Corrupt,
    Fenced,
    FirstCopyUnfinished,
    FormatTooNew,
    IsReplica,
    KeyfoldError,
    ManifestLost,
    ObjectNotFound,
    ReplicaDiverged,
    ReplicaFormatTooOld,
    ResyncRequired,
    StoreError,
    StoreUnavailable,
    UploadLost,
)
from keyfold.log.names import Place
from keyfold_replicator.copy.jobs import TransferStopped
from keyfold_replicator.rounds.state_table import StateTable
from keyfold_replicator.state.figures import Lag, Pending
from keyfold_replicator.state.states import PartitionState, SyncState, failure_of

PLACE = Place("topics", "users", 3)
LOG = ("users", 3, "what happened")

WAITING: list[KeyfoldError] = [
    StoreUnavailable("k", "time-out"),
    ConditionUndecided("k", "409"),
    ObjectNotFound("k", "404"),
    UploadLost("k", "parts"),
    CommitUnknown(*LOG),
    Fenced(*LOG),
    FirstCopyUnfinished(*LOG),
    CompactionNotEnabled(*LOG, hint="enable it"),
    ReplicaFormatTooOld(*LOG),
    TransferStopped("closed"),
]
BROKEN: list[Exception] = [
    AccessDenied("k", "403"),
    BucketMissing("k", "no bucket"),
    ConditionsIgnored("k", "unusable"),
    StoreError("k", "another region"),
    Corrupt(*LOG),
    FormatTooNew(*LOG),
    ManifestLost(*LOG),
    ReplicaDiverged(*LOG),
    IsReplica(*LOG, source="s3://near/topics"),
    ValueError("a defect"),
]


@pytest.mark.parametrize("error", WAITING, ids=lambda e: type(e).__name__)
def test_temporary_errors_and_missing_permissions_of_the_replica_are_waiting_states(error: KeyfoldError) -> None:
    found = failure_of(error, "far.test")
    assert found.state is SyncState.WAITING
    assert found.code == type(error).__name__
    assert found.host == "far.test"


@pytest.mark.parametrize("error", BROKEN, ids=lambda e: type(e).__name__)
def test_permanent_errors_are_broken_states(error: Exception) -> None:
    assert failure_of(error, "far.test").state is SyncState.BROKEN


def test_a_resync_has_a_state_of_its_own() -> None:
    found = failure_of(ResyncRequired(*LOG, hint="keyfold replica resync"), "far.test")
    assert (found.state, found.code, found.hint) == (
        SyncState.RESYNC_REQUIRED,
        "ResyncRequired",
        "keyfold replica resync",
    )


def test_the_stores_error_code_is_used_if_it_has_one() -> None:
    assert failure_of(StoreUnavailable("k", "slow", code="SlowDown"), "h").code == "SlowDown"
    assert failure_of(StoreUnavailable("k", "slow", code="503 SlowDown"), "h").code == "StoreUnavailable"
    assert failure_of(AccessDenied("k", "no"), "h").code == "AccessDenied"


def test_an_error_with_a_host_is_attributed_to_it() -> None:
    error = StoreUnavailable("k", "slow")
    error.host = "near.test:9000"
    assert failure_of(error, "far.test").host == "near.test:9000"


def test_an_unknown_error_is_a_defect() -> None:
    found = failure_of(ZeroDivisionError("x"), "h")
    assert (found.code, "ZeroDivisionError" in found.message, "report" in found.hint) == ("Internal", True, True)


def full() -> PartitionState:
    return PartitionState(
        PLACE, SyncState.WAITING, code="SlowDown", host="far.test", message="m", hint="h", attempts=3, backoff_ms=400,
        last_attempt_ms=1000, next_attempt_ms=1400, last_success_ms=500, pending=Pending(1, 2, 3, 4, 5), lag=Lag(6, 7),
        source_version=8, source_next_offset=9, replica_version=10, replica_next_offset=11,
    )  # fmt: skip


def test_a_state_round_trips_through_json() -> None:
    assert PartitionState.of_json(json.loads(json.dumps(full().as_json())), "topics") == full()


def test_a_state_of_another_release_is_read_as_far_as_possible() -> None:
    found = {"topic": "users", "partition": 3, "state": "dreaming", "backoff_ms": 7, "dreams": [1]}
    assert PartitionState.of_json(found, "topics") == PartitionState(PLACE, SyncState.PENDING, backoff_ms=7)


def test_failures_are_counted_and_reset_by_a_success() -> None:
    found = failure_of(StoreUnavailable("k", "slow"), "h")
    state = PartitionState(PLACE).failed(found, now_ms=1000, backoff_ms=90).failed(found, now_ms=1100, backoff_ms=190)
    assert (state.attempts, state.backoff_ms, state.last_attempt_ms, state.next_attempt_ms) == (2, 190, 1100, 1290)
    assert state.has_failed
    good = state.succeeded(now_ms=1300, next_attempt_ms=6300)
    assert (good.attempts, good.backoff_ms, good.code, good.state) == (0, 0, "", SyncState.IN_SYNC)
    assert not good.has_failed
    assert good.last_success_ms == 1300


def test_a_state_table_says_whether_anything_worth_writing_has_changed() -> None:
    table = StateTable()
    table.change(PLACE, lambda s: s.succeeded(now_ms=1, next_attempt_ms=2))
    assert table.take_changes()
    table.change(PLACE, lambda s: s.succeeded(now_ms=3, next_attempt_ms=4))
    assert not table.take_changes()
    assert table.state(PLACE).last_success_ms == 3
    table.change(PLACE, lambda s: s.failed(failure_of(StoreUnavailable("k", "x"), "h"), now_ms=5, backoff_ms=1))
    assert table.take_changes()
    table.drop(PLACE)
    assert table.take_changes()
    assert table.states() == ()
