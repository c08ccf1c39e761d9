"""Which logs may go to a replica, what is to be copied, and when a failed round is tried again."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.errors import (
    AccessDenied,
    CompactionNotEnabled,
    Fenced,
    KeyfoldError,
    ReplicaFormatTooOld,
    ResyncRequired,
    StoreUnavailable,
)
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.replicas.documents import CompactionEntry, Enablement
from keyfold_replicator.registry.compaction_rule import refusal
from keyfold_replicator.rounds.plan import CopyPlan, copy_plan
from keyfold_replicator.state.retry import RoundBackoff
from keyfold_replicator.state.states import failure_of
from tests.support.manifests import compactor_name, empty_manifest, entry, sink_name

RAW = empty_manifest(next_offset=10)
COMPACTED = {
    "a pass": empty_manifest(next_offset=10, last_pass_epoch=3),
    "a purged tombstone": empty_manifest(next_offset=10, purged_to=4),
    "a clean part": empty_manifest(next_offset=10, first_dirty_offset=5),
}
ON = CompactionEntry(enabled=True, format=1)
OFF = CompactionEntry(enabled=False, format=1)


def test_a_never_compacted_log_is_copied_with_or_without_permission() -> None:
    for enablement in (Enablement(), Enablement({"*": OFF}), Enablement({"*": ON}), Enablement({"users": OFF})):
        assert refusal(RAW, enablement, "far") is None


def test_a_moved_log_start_alone_is_not_compaction() -> None:
    expired = empty_manifest(next_offset=10, log_start_offset=5, first_dirty_offset=5)
    assert refusal(expired, Enablement(), "far") is None


@pytest.mark.parametrize("source", COMPACTED.values(), ids=COMPACTED)
def test_a_compacted_log_is_copied_only_if_compaction_is_enabled(source: Manifest) -> None:
    assert refusal(source, Enablement({"*": ON}), "far") is None
    for enablement in (Enablement(), Enablement({"*": OFF}), Enablement({"orders": ON})):
        error = refusal(source, enablement, "far")
        assert isinstance(error, CompactionNotEnabled)
        assert "enable-compaction" in str(error)
        assert "far" in str(error)
        assert error.code == "CompactionNotEnabled"


def test_a_topics_own_entry_overrides_that_for_all_in_both_directions() -> None:
    source = COMPACTED["a pass"]
    assert refusal(source, Enablement({"*": OFF, "users": ON}), "far") is None
    assert isinstance(refusal(source, Enablement({"*": ON, "users": OFF}), "far"), CompactionNotEnabled)


def test_a_format_unknown_to_the_replicas_readers_is_refused() -> None:
    source = empty_manifest(next_offset=10, last_pass_epoch=3, min_reader=2)
    error = refusal(source, Enablement({"*": ON}), "far")
    assert isinstance(error, ReplicaFormatTooOld)
    assert "upgrade" in str(error)
    assert refusal(source, Enablement({"*": CompactionEntry(enabled=True, format=2)}), "far") is None


# Plan

PLACE = Place("topics", "users", 0)
ONE, TWO = entry(sink_name(0), 0, 5), entry(sink_name(5), 5, 9)
SOURCE = empty_manifest(next_offset=9, segments=(ONE, TWO))


def names(found: CopyPlan) -> list[str]:
    return [job.name for job in found.jobs]


def test_everything_is_missing_at_an_empty_replica_indexes_first() -> None:
    found = copy_plan(PLACE, SOURCE, None)
    assert names(found) == [ONE.index_name, ONE.name, TWO.index_name, TWO.name]
    assert found.size_bytes == 300
    assert {(job.place, job.sha256) for job in found.jobs} == {(PLACE, ONE.checksum), (PLACE, ONE.index_checksum)}


def test_objects_in_the_replicas_manifest_are_not_copied() -> None:
    found = copy_plan(PLACE, SOURCE, empty_manifest(next_offset=5, segments=(ONE,)))
    assert names(found) == [TWO.index_name, TWO.name]


def test_a_segment_with_a_new_index_costs_only_the_index() -> None:
    marked = entry(sink_name(0), 0, 5, index_name=str(compactor_name(0, 2).index))
    found = copy_plan(PLACE, empty_manifest(next_offset=9, segments=(marked, TWO)), SOURCE)
    assert names(found) == [marked.index_name]


def test_an_existing_object_is_skipped_only_if_its_size_matches() -> None:
    listed = {ONE.name: 100, ONE.index_name: 49, "foreign": 1}
    found = copy_plan(PLACE, SOURCE, None, listed)
    assert names(found) == [ONE.index_name, TWO.index_name, TWO.name]
    assert found.left_out == 1


def test_equal_logs_need_no_copy() -> None:
    assert copy_plan(PLACE, SOURCE, SOURCE).jobs == ()


# Retry

LOG = ("users", 0, "what happened")
PASSING = failure_of(StoreUnavailable("k", "503"), "far.test")


def test_backoff_doubles_with_jitter_up_to_its_cap() -> None:
    retry, dice = RoundBackoff(100, 60_000), Random(1)
    for attempts, step_ms in [(1, 100), (2, 200), (5, 1_600), (10, 51_200), (11, 60_000), (500_000, 60_000)]:
        waits = [retry.backoff_ms(attempts, PASSING, dice) for _ in range(200)]
        assert step_ms / 2 <= min(waits) < max(waits) <= step_ms
        assert len(set(waits)) > 20


@pytest.mark.parametrize("error", [AccessDenied("k", "403"), ResyncRequired(*LOG), Fenced(*LOG)])
def test_permanent_errors_wait_the_maximum_backoff_immediately(error: KeyfoldError) -> None:
    assert 30_000 <= RoundBackoff(100, 60_000).backoff_ms(1, failure_of(error, "far.test"), Random(1)) <= 60_000
