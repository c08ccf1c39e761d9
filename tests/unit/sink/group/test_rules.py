"""The sink's decisions: rolling, memory limits, checks of the source, and the end of catching up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold.errors import SourceError
from keyfold.log.manifest import Gap, Manifest, SegmentEntry
from keyfold_sink.config.memory_plan import plan_memory
from keyfold_sink.config.options import GapPolicy
from keyfold_sink.config.rolling import RollPolicy, RollReason, SegmentFill
from keyfold_sink.group.catchup import CatchUp, HeldUp, still_open
from keyfold_sink.kafka.source import (
    Resumed,
    SourceFacts,
    check_identity,
    check_offsets,
    resumed,
    tombstone_gap,
    tombstones_at_risk,
)
from keyfold_sink.write.memory_budget import InFlight, PauseThreshold, block_bytes, to_roll

MIB = 1024 * 1024


def policy(segment_bytes: int = 1000, segment_ms: int = 5000, flush_size: int = 0) -> RollPolicy:
    return RollPolicy(segment_bytes, segment_ms, flush_size)


@pytest.mark.parametrize(
    ("fill", "flush_size", "now_s", "reason"),
    [
        (SegmentFill(1, 999, 0.0), 0, 4.9, None),
        (SegmentFill(1, 1000, 0.0), 0, 0.0, RollReason.BYTES),
        (SegmentFill(1, 1, 0.0), 0, 5.0, RollReason.TIME),
        (SegmentFill(3, 1, 0.0), 3, 0.0, RollReason.RECORDS),
        (SegmentFill(2, 1, 0.0), 3, 0.0, None),
        (SegmentFill(0, 0, 0.0), 3, 99.0, None),
    ],
)
def test_a_segment_rolls_at_its_limits(
    fill: SegmentFill, flush_size: int, now_s: float, reason: RollReason | None
) -> None:
    assert policy(flush_size=flush_size).due(fill, now_s) is reason


def test_the_remaining_batch_size_is_between_one_and_the_record_limit() -> None:
    assert policy(flush_size=10).records_until_check(7, 1.0) == 3
    assert policy(segment_bytes=1000).records_until_check(0, 1_000_000.0) == 1
    assert policy(segment_bytes=1000).records_until_check(0, 10.0) == 100
    assert policy(segment_bytes=128 * MIB).records_until_check(0, 211.0) > 10_000


def test_the_plan_stays_within_the_budget() -> None:
    for buffer_memory in (16 * MIB, 64 * MIB, 256 * MIB, 4096 * MIB):
        plan = plan_memory(buffer_memory)
        together = plan.queue_bytes + plan.queue_records * 600 + plan.fetch_bytes + 2 * plan.batch_bytes
        assert together + plan.segments_bytes <= buffer_memory * 1.05
        assert plan.segments_bytes >= buffer_memory // 4


def test_batches_shrink_for_large_records() -> None:
    plan = plan_memory(128 * MIB)
    assert plan.batch_records(200) == 10_000
    assert plan.batch_records(8 * MIB) == 1
    assert plan.batch_records(10_000) * 10_000 <= plan.batch_bytes


def test_memory_pressure_rolls_the_largest_segments_first_and_only_as_many_as_needed() -> None:
    assert to_roll({"a": 10, "b": 30, "c": 20}, 0, 100) == ["b"]
    assert to_roll({"a": 10, "b": 30, "c": 20}, 0, 120) == []
    assert to_roll({"a": 40, "b": 40}, 50, 100) == []  # half of it is on its way already
    assert to_roll({}, 0, 100) == []


def test_blocks_are_smaller_if_many_segments_share_the_memory() -> None:
    sizes = [block_bytes(partitions, 128 * MIB) for partitions in (0, 1, 64, 128, 256, 2000)]
    assert sizes == [MIB // 4, MIB // 4, MIB // 4, MIB // 8, MIB // 16, MIB // 16]


def test_backpressure_has_hysteresis() -> None:
    brake = PauseThreshold(100)
    assert [brake.update(n) for n in (99, 100, 90, 80, 79, 99)] == [False, True, True, True, False, False]


def test_bytes_in_flight_are_summed() -> None:
    in_flight = InFlight()
    in_flight.add(5)
    in_flight.add(-2)
    assert in_flight.size_bytes == 3


def manifest(**changes: object) -> Manifest:
    base = Manifest("t", 3, "log", bytes(16), topic_id="T", cluster_id="C", next_offset=100)
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by name, of any type


def facts(earliest: int = 0, end: int = 200) -> SourceFacts:
    return SourceFacts("T", "C", earliest, end, {})


def test_the_same_topic_and_cluster_or_unknown_ids_are_accepted() -> None:
    check_identity(manifest(), topic_id="T", cluster_id="C")
    check_identity(manifest(), topic_id="", cluster_id="")
    check_identity(manifest(topic_id="", cluster_id=""), topic_id="X", cluster_id="Y")


def test_another_topic_id_or_cluster_is_refused_with_both_names() -> None:
    with pytest.raises(SourceError, match=r"t-3: .*created again.*T, Kafka has X"):
        check_identity(manifest(), topic_id="X", cluster_id="C")
    with pytest.raises(SourceError, match=r"cluster C, this is cluster Y"):
        check_identity(manifest(), topic_id="T", cluster_id="Y")


def test_adjacent_offsets_are_not_a_gap() -> None:
    for earliest, end in ((0, 100), (100, 100), (100, 200), (0, 101)):
        assert check_offsets(manifest(), facts(earliest, end), GapPolicy.FAIL) is None


def test_a_truncated_topic_is_refused_under_every_policy() -> None:
    for gap_policy in GapPolicy:
        with pytest.raises(SourceError, match=r"ends at offset 99, the log ends at offset 100"):
            check_offsets(manifest(), facts(0, 99), gap_policy)


def test_lost_records_are_an_error_or_a_gap() -> None:
    with pytest.raises(SourceError, match=r"ends at offset 100, the topic now begins at 150.*source.gap.policy=record"):
        check_offsets(manifest(), facts(150, 200), GapPolicy.FAIL)
    gap = check_offsets(manifest(), facts(150, 200), GapPolicy.RECORD)
    assert gap is not None
    assert (gap.from_offset, gap.to_offset) == (100, 150)


DAY_MS = 86_400_000
COMPACT = {"cleanup.policy": "compact", "delete.retention.ms": str(DAY_MS)}


def at(away_ms: int, settings: dict[str, str] = COMPACT) -> Resumed:
    now_ms = 10 * DAY_MS
    return Resumed("t", 3, 100, now_ms - away_ms, now_ms, settings)


@pytest.mark.parametrize(
    ("away_ms", "first_offset", "age_ms", "risk"),
    [
        (DAY_MS, 500, 2 * DAY_MS, False),  # written to within the retention
        (DAY_MS + 1, 100, 5, False),  # a quiet topic: the next record follows and is young
        (DAY_MS + 1, 101, 5, True),  # a hole
        (DAY_MS + 1, 100, DAY_MS + 1, True),  # unread for too long
    ],
)
def test_tombstones_at_risk(away_ms: int, first_offset: int, age_ms: int, *, risk: bool) -> None:
    here = at(away_ms)
    assert tombstones_at_risk(here, first_offset, here.now_ms - age_ms) is risk
    plain = at(away_ms, {"cleanup.policy": "delete"})
    assert not tombstones_at_risk(plain, first_offset, here.now_ms - age_ms)


def test_tombstones_at_risk_are_an_error_or_a_gap() -> None:
    with pytest.raises(SourceError, match=r"delete.retention.ms of 86400000.*source.gap.policy=record"):
        tombstone_gap(at(2 * DAY_MS), 120, 150, GapPolicy.FAIL)
    gap = tombstone_gap(at(2 * DAY_MS), 120, 150, GapPolicy.RECORD)
    assert (gap.from_offset, gap.to_offset) == (100, 150)
    assert isinstance(gap, Gap)


def test_an_empty_log_has_no_tombstones_at_risk() -> None:
    assert resumed(manifest(), 7, 5, COMPACT) is None
    entry = SegmentEntry("s", "i", 0, 99, 100, 1, 0, 0, 0, 1, 1, -1, -1, 7, b"", b"")
    here = resumed(manifest(segments=(entry,)), 7, 5, COMPACT)
    assert here is not None
    assert (here.last_appended_ms, here.next_offset, here.now_ms) == (7, 100, 5)


def test_catching_up_ends_when_every_manifest_has_reached_its_target() -> None:
    catch_up = CatchUp({("t", 0): 5, ("t", 1): 0, ("t", 2): 9})
    assert not catch_up.is_done
    catch_up.saw({("t", 1): 0, ("t", 0): 4, ("x", 0): 99})
    assert dict(catch_up.left) == {("t", 0): 5, ("t", 2): 9}
    assert catch_up.to_flush({("t", 0): 5, ("t", 2): 8}, ()) == [("t", 0)]
    assert catch_up.to_flush({("t", 0): 3, ("t", 2): 8}, {("t", 2)}) == [("t", 2)]
    assert catch_up.elsewhere({("t", 0)}) == [("t", 2)]
    catch_up.saw({("t", 0): 6, ("t", 2): 9})
    assert catch_up.is_done


def test_catching_up_waits_if_the_log_has_every_readable_record_but_is_below_its_target() -> None:
    catch_up = CatchUp({("t", 0): 9, ("t", 1): 9, ("t", 2): 9, ("t", 3): 9})
    catch_up.saw({("t", 0): 5, ("t", 1): 4, ("t", 2): 9})
    stable = {("t", 0): 5, ("t", 1): 5, ("t", 2): 5, ("t", 3): 5}
    assert catch_up.held_up(stable) == [HeldUp(("t", 0), 5, 9)]
    catch_up.saw({("t", 1): 5, ("t", 3): 9})
    assert catch_up.held_up(stable) == [HeldUp(("t", 0), 5, 9), HeldUp(("t", 1), 5, 9)]
    assert catch_up.held_up({("t", 0): 9, ("t", 1): 12}) == []  # over: what they had is yet to be read


def test_pending_partitions_are_named_with_their_offsets_up_to_a_limit() -> None:
    error = still_open([HeldUp(("users", number), 5, 9) for number in range(12)], 900)
    assert "users-0: last stable offset 5, end offset 9" in str(error)
    assert "users-9" in str(error)
    assert "users-10" not in str(error)
    assert "2 more" in str(error)
    assert error.exit_code == 3


def test_a_topic_without_partitions_is_caught_up() -> None:
    assert CatchUp({}).is_done
