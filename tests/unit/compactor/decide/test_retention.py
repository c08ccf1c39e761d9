"""Retention: what goes, what stays and why, who decides it, and that nothing else can stop it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from keyfold.errors import ConfigError
from keyfold.log.manifest import UNSTAMPED, Manifest
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import STORE_TIME_RESOLUTION_MS, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore
from keyfold_compactor.decide.policy import MaintenanceTask, decide_cleaning, forecast
from keyfold_compactor.decide.retention import born_ms, expiry
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import LogJob, MapAnswer, UnitAnswer, UnitJob
from keyfold_compactor.execute.executor import Done, Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import expire
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import PartitionOutcome
from keyfold_compactor.report.report_text import text_lines
from keyfold_compactor.report.show import plan_document, plan_lines
from tests.support.cleaning import (
    PLACE,
    Sink,
    clean,
    load,
    memory_log,
    new_run,
    object_names,
    read_all,
    record,
    retry_policy,
)
from tests.support.manifests import empty_manifest, entry, sink_name
from tests.support.untyped import untyped

NOW = 1_000_000_000
SEEN = NOW + STORE_TIME_RESOLUTION_MS
DELETE = TopicSettings(compact=False, delete=True, retention_ms=1_000)
SIZED = TopicSettings(compact=False, delete=True, retention_bytes=100)


def log(*segments: tuple[int, int, int], **changes: object) -> Manifest:
    """Segments of ten offsets each: (stored bytes, appended_at, largest timestamp)."""
    entries = tuple(
        entry(sink_name(10 * i), 10 * i, 10 * i + 10, size_bytes=size, appended_at_ms=appended, max_timestamp=timestamp)
        for i, (size, appended, timestamp) in enumerate(segments)
    )
    values: dict[str, Any] = {"next_offset": 10 * len(segments), "segments": entries, **changes}
    return empty_manifest(**values)


def gone(manifest: Manifest, settings: TopicSettings = DELETE, now_ms: int = SEEN) -> int:
    return len(expiry(manifest, settings, now_ms).segments)


# What goes


def test_segments_expire_oldest_first_up_to_the_first_that_stays() -> None:
    old, young = (50, NOW - 1_000, NOW - 1_000), (50, NOW - 999, NOW - 999)
    found = expiry(log(old, old, young, old), DELETE, SEEN)
    assert (len(found.segments), found.by_time, found.log_start_offset) == (2, 2, 20)
    assert (found.record_count, found.size_bytes) == (20, 100)
    assert "1 ms left" not in found.why_not
    assert "retention.ms" in found.why_not


def test_the_last_segment_can_expire_and_the_log_then_starts_at_its_end() -> None:
    found = expiry(log((50, 1, 1), (50, 1, 1)), DELETE, SEEN)
    assert (len(found.segments), found.log_start_offset, found.why_not) == (2, 20, "")


@pytest.mark.parametrize(
    ("appended", "timestamp", "goes"),
    [
        (NOW - 1_000, NOW + 10**12, True),  # from the future: blocks nothing
        (NOW - 999, NOW + 10**12, False),
        (NOW - 5, NOW - 1_000, True),  # from the past: archived late, not kept longer
        (NOW - 5, 0, True),  # 1970 is a time, as in Kafka
        (NOW - 5, -1, False),  # no timestamp is no time: the append's counts
        (NOW - 1_000, -1, True),
        (UNSTAMPED, 0, False),  # appended "now", whatever the records say
        (UNSTAMPED, -1, False),
    ],
)
def test_age_counts_from_the_earlier_of_the_append_and_the_largest_timestamp(
    appended: int, timestamp: int, goes: bool
) -> None:
    assert gone(log((50, appended, timestamp))) == goes


def test_a_segment_with_future_timestamps_does_not_keep_later_ones() -> None:
    assert gone(log((50, 1, 2**60), (50, 1, 1), (50, NOW, NOW))) == 2


def test_an_old_segment_after_a_young_one_stays() -> None:
    assert gone(log((50, NOW, NOW), (50, NOW, 0))) == 0


def test_zero_retention_expires_everything_stamped() -> None:
    zero = replace(DELETE, retention_ms=0)
    assert gone(log((50, NOW, 2**60), (50, NOW, NOW), (50, UNSTAMPED, NOW)), zero) == 2


@pytest.mark.parametrize(("limit", "count"), [(150, 0), (101, 0), (100, 1), (51, 1), (50, 2), (1, 2), (0, 3)])
def test_retention_by_size_keeps_at_least_the_limit_as_in_kafka(limit: int, count: int) -> None:
    segments = [(50, UNSTAMPED, NOW)] * 3
    found = expiry(log(*segments), replace(SIZED, retention_bytes=limit), SEEN)
    assert (len(found.segments), found.by_size) == (count, count)
    assert sum(s.size_bytes for s in log(*segments).segments[count:]) >= limit


def test_retention_by_size_applies_before_retention_by_time() -> None:
    both = replace(DELETE, retention_bytes=100)
    found = expiry(log((50, NOW, NOW), (50, 1, 1), (50, NOW, NOW), (50, NOW, NOW)), both, SEEN)
    assert (found.by_size, found.by_time) == (2, 0)
    found = expiry(log((50, NOW, NOW), (50, 1, 1), (50, NOW, NOW)), both, SEEN)
    assert (found.by_size, found.by_time) == (1, 1)


def test_a_log_without_delete_policy_and_limit_keeps_everything() -> None:
    manifest = log((10**12, 1, 1))
    for settings in (
        replace(DELETE, delete=False),
        replace(DELETE, retention_ms=-1),
        TopicSettings(compact=True, delete=True),
    ):
        found = expiry(manifest, settings, SEEN)
        assert not found.segments
        assert found.why_not
        assert not found.is_asked
    assert gone(empty_manifest()) == 0


def test_an_unstamped_append_needs_its_stamp_only_under_retention_by_time() -> None:
    manifest = log((50, UNSTAMPED, 1))
    assert decide_cleaning(manifest, DELETE, SEEN).maintenance == (MaintenanceTask.STAMP,)
    assert decide_cleaning(manifest, SIZED, SEEN).maintenance == ()
    assert born_ms(manifest.segments[0]) == UNSTAMPED


def test_a_plan_judges_the_cleaning_of_what_retention_leaves() -> None:
    manifest = log((90, 1, 1), (10, NOW, NOW), first_dirty_offset=10)
    both = TopicSettings(min_cleanable_dirty_ratio=0.5, delete=True, retention_ms=1_000)
    assert not decide_cleaning(manifest, both, SEEN).is_due
    found = forecast(manifest, both, SEEN)
    assert found.is_due
    assert found.range.log_start == 10
    assert MaintenanceTask.EXPIRE in found.maintenance


# Who decides it

BASE = {"s3.bucket.name": "b"}


def settings_of(topic: str, followed: dict[str, str], **values: str) -> TopicSettings:
    given = {key.replace("__", "\0").replace("_", ".").replace("\0", "_"): value for key, value in values.items()}
    return CompactOptions.parse({**BASE, **given}).settings_of(topic, followed)


FOLLOWED = {"cleanup.policy": "delete", "retention.ms": "1000", "retention.bytes": "1"}


def test_settings_followed_from_kafka_never_delete() -> None:
    assert not settings_of("users", FOLLOWED).has_retention
    ours = CompactOptions.parse({**BASE, "retention.ms": "1000", "topic.orders.cleanup.policy": "delete"})
    assert ours.settings_of("orders", {}).has_retention
    emptied = ours.settings_of("users", FOLLOWED)
    assert not emptied.has_retention, "a topic that is emptied in Kafka keeps its archive"
    assert not ours.has_retention("users")
    assert ours.has_retention("orders")


def test_settings_followed_from_kafka_neither_stop_nor_change_retention() -> None:
    found = settings_of("users", {**FOLLOWED, "cleanup.policy": "compact"}, cleanup_policy="delete", retention_ms="7")
    assert (found.compact, found.delete, found.retention_ms, found.retention_bytes) == (False, True, 7, -1)


def test_a_topics_own_value_overrides_the_general_one() -> None:
    options = CompactOptions.parse(
        {
            **BASE,
            "cleanup.policy": "compact,delete",
            "retention.ms": "1000",
            "topic.users.retention.ms": "-1",
            "topic.orders.retention.bytes": "5",
            "topic.keep.cleanup.policy": "compact",
        }
    )
    assert options.settings_of("any", {}).retention_ms == 1_000
    assert not options.settings_of("users", {}).has_retention
    assert options.settings_of("orders", {}).retention_bytes == 5
    assert not options.settings_of("keep", {}).has_retention
    assert options.settings_of("any", {}).compact


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"retention.ms": "1000"}, "retention.ms"),
        ({"retention.bytes": "0", "cleanup.policy": "compact"}, "retention.bytes"),
        ({"topic.users.retention.ms": "1000"}, "topic.users.retention.ms"),
        ({"topic.users.retention.ms": "1000", "topic.orders.cleanup.policy": "delete"}, "topic.users.retention.ms"),
    ],
)
def test_a_retention_limit_without_the_delete_policy_is_a_config_error(values: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=r"has no effect: `cleanup\.policy` is not set here with delete") as caught:
        CompactOptions.parse({**BASE, **values})
    assert key in str(caught.value)


@pytest.mark.parametrize("value", ["-2", "1d", ""])
def test_an_invalid_limit_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="retention"):
        CompactOptions.parse({**BASE, "cleanup.policy": "delete", "retention.ms": value})


# The run

HOUR_MS = 3_600_000
CONFIG = {
    **BASE,
    "min.cleanable.dirty.ratio": "0",
    "file.delete.delay.ms": "0",
    "cleanup.policy": "delete",
    "retention.ms": str(HOUR_MS),
}


def no_executor() -> Executor:
    raise AssertionError("retention needs no Spark")


def job(store: ObjectStore, clock: ManualClock, executor: Any = no_executor, **config: str) -> Job:
    values = {**CONFIG, **{key.replace("_", "."): value for key, value in config.items()}}
    return Job(CompactOptions.parse(values), RunSelection(), store, executor, clock=clock, random=Random(2))


def hourly_log(clock: ManualClock, count: int = 3) -> tuple[MemoryStore, Sink]:
    """One segment of two records an hour."""
    store, sink = memory_log(clock=clock)
    for i in range(count):
        sink.append([record(2 * i, "a", f"v{i}", clock.now_ms()), record(2 * i + 1, f"b{i}", "v", clock.now_ms())])
        clock.advance(HOUR_MS)
    return store, sink


def test_a_delete_only_log_expires_without_spark_and_leaves_no_object() -> None:
    clock = ManualClock()
    store, sink = hourly_log(clock)
    job(store, clock, retention_ms=str(4 * HOUR_MS)).once()  # writes the last append's time
    clock.advance(2_000)
    report = job(store, clock, retention_ms=str(2 * HOUR_MS)).once()
    (part,) = report.partitions
    assert (part.outcome, part.expired.segments, part.expired.records) == (PartitionOutcome.EXPIRED, 2, 4)
    assert part.expired.bytes == part.before.bytes - part.after.bytes > 0
    assert untyped(report.document())["totals"]["records_expired"] == 4
    assert "users-0: retention removed 2 segments, 4 records" in "\n".join(text_lines(report, is_verbose=True))
    assert [r.offset for r in read_all(store)] == [4, 5]
    assert object_names(store) == load(store).object_names()
    assert load(store).compactor.lease_until_ms == 0, "nobody else has to wait for it"
    clock.advance(4 * HOUR_MS)
    job(store, clock).once()
    assert (load(store).segments, load(store).log_start_offset) == ((), 6)
    assert object_names(store) == set()
    assert job(store, clock).once().quiet_partitions == 1
    sink.session.refresh()
    sink.append([record(6, "a", "again", clock.now_ms())])
    assert [r.offset for r in read_all(store)] == [6]


def test_a_compacted_log_expires_and_is_cleaned_in_one_run() -> None:
    clock = ManualClock()
    store, _ = hourly_log(clock)

    def executor(_due_bytes: int) -> Executor:
        return LocalExecutor(store, retry_policy(clock, Random(1)))

    both = job(store, clock, executor, cleanup_policy="compact,delete", retention_ms=str(2 * HOUR_MS + HOUR_MS // 2))
    report = both.once()
    (part,) = report.partitions
    assert (part.outcome, part.expired.segments, part.superseded) == (PartitionOutcome.CLEANED, 1, 1)
    assert (part.before.records, part.after.records) == (6, 3)
    assert [r.offset for r in read_all(store)] == [3, 4, 5]
    assert untyped(report.document())["partitions"][0]["bytes_freed"] == part.before.bytes - part.after.bytes


def test_merging_never_expires_a_record_by_another_records_timestamp() -> None:
    clock = ManualClock()
    long_ago = clock.now_ms() - 100 * HOUR_MS
    store, _ = memory_log(*([record(n, f"k{n}", "v", at)] for n, at in enumerate([long_ago, -1, -1])), clock=clock)
    both = TopicSettings(min_cleanable_dirty_ratio=0.0, file_delete_delay_ms=0)
    assert clean(store, both, clock=clock).partitions[0].outcome is PartitionOutcome.CLEANED
    clock.advance(2_000)
    clean(store, replace(both, delete=True, retention_ms=HOUR_MS), clock=clock, seed=2)
    assert [r.offset for r in read_all(store)] == [1, 2], "appended two seconds ago"


def test_retention_leaves_no_lease_and_writes_nothing_if_nothing_expires() -> None:
    """Another compactor, or this one after a restart, must not wait for a commit that is long done."""
    clock = ManualClock()
    store, _ = hourly_log(clock)
    topic = replace(DELETE, retention_ms=2 * HOUR_MS + HOUR_MS // 2)
    report = new_run(store, topic, clock=clock).clean([], resting=[PLACE])
    assert report.partitions[0].expired.segments == 1
    assert load(store).compactor.lease_until_ms == 0
    session = PartitionLog(store, PLACE, clock=clock, random=Random(5)).claim_compactor(lease_ms=0, holder="another")
    version = load(store).version
    assert not expire(session, topic).segments
    assert load(store).version == version


class Dying:
    slots = 1

    def map_logs(self, jobs: Sequence[LogJob], done: Done) -> list[MapAnswer]:
        raise RuntimeError(f"lost its executors over {len(jobs)} logs")

    def rewrite(self, portions: Sequence[Sequence[UnitJob]], done: Done) -> list[UnitAnswer]:
        raise AssertionError(portions)

    def forget(self) -> None:
        """Nothing is kept."""


def test_segments_expire_while_cleaning_fails_or_backs_off() -> None:
    clock = ManualClock()
    store, _ = hourly_log(clock)
    runs = job(
        store, clock, lambda _: Dying(), cleanup_policy="compact,delete", retention_ms=str(2 * HOUR_MS + HOUR_MS // 2)
    )
    (part,) = runs.once().partitions
    assert (part.outcome, part.expired.segments) == (PartitionOutcome.FAILED, 1)
    assert "lost its executors" in part.why
    assert load(store).log_start_offset == 2
    runs._backoff._until_s[PLACE] = clock.monotonic_s() + 10**9  # resting for long
    assert runs.once().partitions == []
    clock.advance(HOUR_MS)
    (part,) = runs.once().partitions
    assert (part.outcome, part.expired.segments) == (PartitionOutcome.EXPIRED, 1)
    assert runs.once().partitions == [], "a partition whose segments expired goes on resting"
    assert [r.offset for r in read_all(store)] == [4, 5]


def test_a_retention_that_fails_is_reported_and_stops_no_other_work() -> None:
    clock = ManualClock()
    store, _ = hourly_log(clock)
    fault = Fault(
        lambda call: call.operation == "put" and call.key == PLACE.manifest_key, FaultKind.UNAVAILABLE, times=10**6
    )
    broken = FaultyStore(store, (fault,))
    report = job(broken, clock).once()
    assert report.exit_code == 1
    (part,) = report.partitions
    assert part.expired.error
    assert "retention failed" in "\n".join(text_lines(report, is_verbose=True))
    assert len(read_all(store)) == 6


def test_another_compactors_lease_is_respected() -> None:
    clock = ManualClock()
    store, _ = hourly_log(clock)
    PartitionLog(store, PLACE, clock=clock, random=Random(5)).claim_compactor(lease_ms=HOUR_MS, holder="another")
    assert job(store, clock).once().exit_code == 0
    assert len(read_all(store)) == 6


def test_the_plan_shows_what_expires_and_why_not_more() -> None:
    clock = ManualClock()
    store, _ = hourly_log(clock)
    looks = job(store, clock).review()
    (text,) = [line for line in plan_lines(looks) if "retention" in line]
    assert "2 segments expire (2 by retention.ms), 4 records" in text
    assert "the log will start at 4" in text
    assert "not recorded yet" in text
    found = untyped(plan_document(looks))["partitions"][0]["retention"]
    assert (found["segments"], found["records"], found["log_start_offset"]) == (2, 4, 4)
    json.dumps(found)
    kept = job(store, clock, cleanup_policy="compact", retention_ms="-1").review()
    assert "does not include `delete`" in untyped(plan_document(kept))["partitions"][0]["retention"]["why_not_more"]
    assert not [line for line in plan_lines(kept) if "retention" in line]
    assert len(read_all(store)) == 6, "a plan changes nothing"
