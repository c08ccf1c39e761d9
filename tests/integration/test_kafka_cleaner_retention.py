"""Both policies at once: what Kafka's retention takes off a compacted log, keyfold's takes, and then both clean.

Retention takes whole segments, so keyfold's log is cut where Kafka's is. Each side gets a limit that means the same for
it: an age that ends at the same moment (their clocks differ), and a size that ends at the same segment (a record costs
each its own bytes).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from keyfold.log.record import Record
from tests.conftest import fresh
from tests.support.kafka import KafkaBroker
from tests.support.kafka_cleaner import BASE_MS, HOUR_MS, SENTINEL_STEP_MS, Lab, sentinel
from tests.support.kafka_cleaner_twin import Plan, Twin, difference, without_active_segment

pytestmark = pytest.mark.kafka

MARGIN_MS = HOUR_MS // 60


class Expiring:
    """One random topic on both sides, in the same segments, not cleaned yet."""

    def __init__(self, lab: Lab, seed: int) -> None:
        plan = replace(Plan.of(seed), segment_bytes=2_500)
        self.lab = lab
        self.topic = fresh("expiring")
        self.twin = Twin(replace(plan.settings, min_cleanable_dirty_ratio=1.0, delete=True), seed)
        lab.create(self.topic, {**plan.config, "cleanup.policy": "compact,delete", "retention.ms": "-1"})
        rounds = [plan.chunks(BASE_MS + n * SENTINEL_STEP_MS) for n in range(3)]
        lab.produce({self.topic: [c for n, chunks in enumerate(rounds, 1) for c in (*chunks, [sentinel(n)])]})
        records = lab.read({self.topic: 0})[self.topic]
        self.active_base = records[-1].offset
        self.bases = [base for base in lab.segments(self.topic) if base < self.active_base]
        self.twin.append_cut(records[:-1], self.bases)
        self.compare()

    def compare(self) -> None:
        log_start = self.twin.manifest.log_start_offset
        assert self.lab.ends([self.topic])[self.topic] == (log_start, self.active_base + 1)
        kafka = without_active_segment(self.lab.read({self.topic: log_start})[self.topic], self.active_base)
        found = self.twin.records
        assert found == kafka, difference(kafka, found)

    def expire(self, kafka: dict[str, str], **keyfold: int) -> int:
        """Let both expire, and compare; where the log starts then."""
        self.twin.clean(**keyfold)  # writes the time of the last append down
        self.twin.clean(**keyfold)
        log_start = self.twin.manifest.log_start_offset
        self.lab.set({self.topic: kafka})
        self.lab.wait_for_log_start(self.topic, log_start)
        self.lab.wait_for_looks()  # and it goes no further
        self.compare()
        self.lab.set({self.topic: dict.fromkeys(kafka, "-1")})
        return log_start

    def clean(self) -> None:
        self.lab.set({self.topic: {"min.cleanable.dirty.ratio": "0"}})
        self.lab.wait_for_passes({self.topic: self.active_base})
        self.twin.clean(min_cleanable_dirty_ratio=0.0)
        self.compare()

    def newest_by_segment(self) -> list[int]:
        ends = (*self.bases[1:], self.active_base)
        return [newest(self.twin.appended, *ends_of) for ends_of in zip(self.bases, ends, strict=True)]


def newest(records: Sequence[Record], begin: int, end: int) -> int:
    return max(r.timestamp for r in records if begin <= r.offset < end)


@pytest.mark.sharded
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_retention_by_time_stops_at_the_same_segment_and_both_continue_cleaning(broker: KafkaBroker, seed: int) -> None:
    both = Expiring(Lab(broker), seed)
    times = sorted(both.newest_by_segment())
    # A moment that no segment is near to, two thirds into the log.
    cuts = [(a + b) // 2 for a, b in pairwise(times) if b - a > 2 * MARGIN_MS]
    limit_ms = cuts[2 * len(cuts) // 3]
    now_ms = int(time.time() * 1000)
    log_start = both.expire({"retention.ms": str(now_ms - limit_ms)}, retention_ms=both.twin.clock.now_ms() - limit_ms)
    assert 0 < log_start < both.active_base
    both.clean()


@pytest.mark.sharded
@pytest.mark.parametrize("seed", [3, 5])
def test_retention_by_size_stops_at_the_same_segment_and_both_continue_cleaning(broker: KafkaBroker, seed: int) -> None:
    both = Expiring(Lab(broker), seed)
    count = len(both.bases) // 2
    kafka_bytes = sum(list(both.lab.segments(both.topic).values())[count:])
    keyfold_bytes = sum(s.size_bytes for s in both.twin.manifest.segments[count:])
    log_start = both.expire({"retention.bytes": str(kafka_bytes)}, retention_bytes=keyfold_bytes)
    assert log_start == both.bases[count]
    both.clean()
