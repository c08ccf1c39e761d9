"""Claiming a partition: where reading starts, and when a claim is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from keyfold.errors import Fenced, SourceError
from keyfold.log.manifest import Gap, SegmentEntry
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog, Replacement, Swap
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.options import GapPolicy
from keyfold_sink.group.assignment import (
    AssignedPartition,
    Claimed,
    Claims,
    Loaded,
    PartitionStage,
    require_same_branch,
)
from keyfold_sink.group.membership import Membership
from keyfold_sink.kafka.source import ASKED_REASON, SKIPPED, SourceFacts
from keyfold_sink.write.partition_health import PartitionHealth
from keyfold_sink.write.serial_queue import QueueRetry, SerialQueue

PLACE = Place("topics", "t", 0)
SETTINGS = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}


class FakeSource:
    def __init__(self, earliest: int = 0, end: int = 0, topic_id: str = "T") -> None:
        self.earliest, self.end, self.id = earliest, end, topic_id

    def facts(self, topic: str, partition: int) -> SourceFacts:
        return SourceFacts(self.id, "C", self.earliest, self.end, SETTINGS)

    def topic_id(self, topic: str) -> str:
        return self.id

    def settings(self, topic: str) -> dict[str, str]:
        return SETTINGS


class Setting:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.store, self.clock, self.random = MemoryStore(), ManualClock(), Random(1)
        self.source = FakeSource()
        self.events: list[Any] = []
        self.pool = pool

    def log(self) -> PartitionLog:
        return PartitionLog(self.store, PLACE, clock=self.clock, random=self.random)

    def owner(self) -> AssignedPartition:
        queue = SerialQueue(self.pool, self.events.append)
        return AssignedPartition(
            ("t", 0), queue, QueueRetry(queue, self.random, Backoff(1, 2)), self.log(), PartitionHealth(self.clock)
        )

    def claims(self, policy: GapPolicy = GapPolicy.FAIL) -> Claims:
        return Claims(self.source, policy, self.random, self.events.append)

    def loaded(self, policy: GapPolicy = GapPolicy.FAIL) -> AssignedPartition:
        owner = self.owner()
        self.claims(policy).load(owner)
        event = self.events.pop()
        assert isinstance(event, Loaded)
        owner.pinned = event.pinned
        return owner

    def claimed(self, policy: GapPolicy = GapPolicy.FAIL) -> Claimed:
        self.claims(policy).claim(self.loaded(policy))
        event = self.events.pop()
        assert isinstance(event, Claimed)
        return event


@pytest.fixture
def here() -> Iterator[Setting]:
    with ThreadPoolExecutor(2) as pool:
        yield Setting(pool)


def test_only_the_answer_to_the_latest_commit_confirms_the_membership(here: Setting) -> None:
    """The task may have lost the partition and received it again since its first request."""
    owner = here.loaded()
    owner.stage = PartitionStage.CONFIRMING
    sent: list[TopicPartition] = []
    membership = Membership({owner.key: owner}, here.claims(), sent.extend, here.events.append, here.clock)
    membership.confirm()
    here.clock.advance(10_000)
    membership.confirm()
    first, second = sent
    stages = []
    for answer in (first, second):
        membership.answered(answer, None)
        stages.append(owner.stage)
    assert stages == [PartitionStage.CONFIRMING, PartitionStage.CLAIMING]
    assert owner.queue.wait_idle(60)


def test_a_new_log_starts_at_the_earliest_offset_and_records_its_topic(here: Setting) -> None:
    here.source = FakeSource(earliest=7, end=20)
    event = here.claimed()
    manifest = event.session.manifest
    assert (manifest.log_start_offset, manifest.next_offset, event.start_offset) == (7, 7, 7)
    assert (manifest.topic_id, manifest.cluster_id, manifest.settings) == ("T", "C", SETTINGS)
    assert manifest.sink.epoch == 1
    assert event.resumed is None


def test_an_outdated_claim_is_fenced_and_fences_nobody(here: Setting) -> None:
    """The process was suspended between reading and claiming. The sink that claimed meanwhile keeps the partition."""
    sleeper = here.loaded()
    session = here.claimed().session
    with pytest.raises(Fenced):
        here.claims().claim(sleeper)
    assert session.refresh().sink.epoch == session.epoch


def test_a_failed_claim_leaves_the_log_unchanged(here: Setting) -> None:
    here.claimed()
    before = here.log().load()
    for source in (FakeSource(topic_id="X"), FakeSource(earliest=5, end=9)):
        here.source = source
        with pytest.raises(SourceError):
            here.claims().claim(here.loaded())
        assert here.log().load().etag == before.etag


def test_a_gap_is_recorded_and_skipped(here: Setting) -> None:
    here.claimed()
    here.source = FakeSource(earliest=5, end=9)
    event = here.claimed(GapPolicy.RECORD)
    manifest = event.session.manifest
    assert [(gap.from_offset, gap.to_offset) for gap in manifest.gaps] == [(0, 5)]
    assert manifest.next_offset == event.start_offset == 5


def test_a_newer_leader_epoch_at_the_source_is_refused(here: Setting) -> None:
    owner = here.owner()
    owner.log_end, owner.last_leader_epoch = 60, 4
    require_same_branch(owner, 59, 4)
    require_same_branch(owner, 40, 3)  # the last record was cleaned away
    with pytest.raises(SourceError, match=r"t-0: .*truncated below the log's end at 60.*epoch 5.*last record has 4"):
        require_same_branch(owner, 59, 5)
    owner.last_leader_epoch = -1
    require_same_branch(owner, 59, 5)


DAY_MS = 86_400_000


def test_a_compaction_pass_does_not_shorten_the_sinks_absence(here: Setting) -> None:
    """The pass rewrites the last segment, so the times in the manifest and of the object are those of the pass."""
    here.store = MemoryStore(clock=here.clock)
    session = here.claimed().session
    session.append(entry(0, 4, 5, session.epoch))
    here.clock.time_ms += 4 * DAY_MS
    compactor = here.log().claim_compactor(lease_ms=1000, holder="c")
    name, old = compactor.new_name(0), compactor.manifest.segments[0]
    new = replace(old, name=str(name), index_name=str(name.index))
    compactor.replace(Replacement((Swap((old,), (new,)),), 5))
    here.source = FakeSource(end=9)
    for days in (5, 6):  # nor does a claim
        here.clock.time_ms += DAY_MS
        at = here.claimed().resumed
        assert at is not None
        assert at.now_ms - at.last_appended_ms == days * DAY_MS


def entry(base_offset: int, last_offset: int, next_offset: int, epoch: int) -> SegmentEntry:
    """Return a segment entry of which only the offsets matter."""
    name = f"{base_offset:020d}-{epoch:08d}-s{base_offset:016x}"
    return SegmentEntry(
        f"{name}.avro", f"_index/{name}.parquet", base_offset, last_offset, next_offset, 1, 0, 0, 0, 1, 1, 0, 0, -1,
        bytes(32), bytes(32),
    )  # fmt: skip


def test_reading_starts_at_the_logs_last_record_with_its_leader_epoch(here: Setting) -> None:
    session = here.claimed().session
    session.append(entry(0, 4, 7, session.epoch), leader_epoch=3)
    here.source = FakeSource(end=9)
    event = here.claimed()
    assert (event.start_offset, event.start_leader_epoch) == (4, 3)


def test_no_leader_epoch_is_given_if_kafka_no_longer_has_the_last_record(here: Setting) -> None:
    session = here.claimed().session
    session.append(entry(0, 4, 7, session.epoch), leader_epoch=3)
    here.source = FakeSource(earliest=6, end=9)
    event = here.claimed()
    assert (event.start_offset, event.start_leader_epoch) == (6, -1)


def test_records_skipped_on_request_are_not_read_again(here: Setting) -> None:
    session = here.claimed().session
    session.append(entry(0, 4, 5, session.epoch), leader_epoch=3)
    session.advance(8, gaps=(Gap(5, 8, ASKED_REASON),))
    here.source = FakeSource(end=9)
    event = here.claimed()
    assert (event.start_offset, event.start_leader_epoch) == (8, -1)
    event.session.append(entry(8, 8, 9, event.session.epoch), leader_epoch=5)
    event = here.claimed()
    assert (event.start_offset, event.start_leader_epoch) == (8, 5), "once there are records after it, they count"


@pytest.mark.parametrize("gaps", [(), (Gap(8, 10, SKIPPED + "not JSON"),)])
def test_records_skipped_on_request_are_not_read_again_if_no_record_follows(
    here: Setting, gaps: tuple[Gap, ...]
) -> None:
    """The last record is followed by a transaction marker or a rejected record, of which the log has no record."""
    session = here.claimed().session
    session.append(entry(0, 4, 5, session.epoch), leader_epoch=3)
    session.advance(8, gaps=(Gap(5, 8, ASKED_REASON),))
    session.advance(10, gaps=gaps)
    here.source = FakeSource(end=10)
    event = here.claimed()
    assert (event.start_offset, event.start_leader_epoch) == (10, -1)


@pytest.mark.parametrize(("skipped", "begins"), [(9_000, 4), (20_000, 20_005)])
def test_many_rejected_records_are_not_read_again(here: Setting, skipped: int, begins: int) -> None:
    session = here.claimed().session
    session.append(entry(0, 4, 5, session.epoch), leader_epoch=3)
    end = 5 + skipped
    session.advance(end - 1, gaps=(Gap(5, end - 1, SKIPPED + "not JSON"),))
    session.advance(end)  # the end of a transaction
    here.source = FakeSource(end=end)
    event = here.claimed()
    assert (event.start_offset, event.start_leader_epoch) == (begins, 3 if begins == 4 else -1)
