"""What a plan says that cleaning would cost, and that it never costs more; progress where there is no terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from keyfold.log.partition_log import PartitionLog, Pinned
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.event_log import configure
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.policy import forecast
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.cost import Cost, cost, total
from keyfold_compactor.report.progress import FIRST_STAGE, LoggedProgress
from keyfold_compactor.report.show import plan_document, plan_lines
from tests.support.cleaning import EAGER, PLACE, clean, memory_log, record, retry_policy

GIB = 1024**3


def pinned(store: MemoryStore, clock: ManualClock) -> Pinned:
    return PartitionLog(store, PLACE, clock=clock, random=Random(0)).load()


def would(store: MemoryStore, clock: ManualClock, settings: TopicSettings, pass_bytes: int = GIB) -> Cost | None:
    seen = pinned(store, clock)
    return cost(PLACE, seen, forecast(seen.manifest, settings, seen.seen_ms), settings, pass_bytes)


def filled(clock: ManualClock, seed: int, batches: int = 6) -> MemoryStore:
    random = Random(seed)
    offset = 0
    found = []
    for _ in range(batches):
        batch = []
        for _ in range(200):
            value = None if random.random() < 0.1 else "v" * random.randrange(300)
            batch.append(record(offset, f"key-{random.randrange(150)}", value))
            offset += 1
        found.append(batch)
    return memory_log(*found, clock=clock)[0]


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(5))
def test_no_pass_moves_more_than_planned(seed: int) -> None:
    clock = ManualClock()
    store = filled(clock, seed)
    for number in range(3):  # the second removes tombstones alone, the third nothing
        expected = would(store, clock, EAGER)
        partitions = clean(store, clock=clock, seed=number).partitions
        assert bool(expected) == bool(partitions)
        for part in partitions:
            assert expected is not None
            # Segments this small are a tenth frame.
            assert part.traffic.read_bytes <= 1.1 * (expected.index_bytes_read + expected.segment_bytes_read)
            assert part.traffic.written_bytes <= 1.1 * expected.bytes_written


def test_costs_match_a_calculation_by_hand() -> None:
    clock = ManualClock()
    store = filled(clock, 1, batches=3)
    manifest = pinned(store, clock).manifest
    size_bytes = manifest.size_bytes
    index_bytes = sum(s.index_size_bytes for s in manifest.segments)
    found = would(store, clock, EAGER)
    assert found == Cost(2 * index_bytes, size_bytes, size_bytes + index_bytes, 1)
    assert found.moved_bytes == 2 * size_bytes + 3 * index_bytes
    assert found.seconds_at(found.moved_bytes / 4) == 4
    assert found.seconds_at(None) is None
    cut = would(store, clock, EAGER, pass_bytes=size_bytes)
    assert cut is not None
    assert cut.parts == 2
    assert total([found, found]).moved_bytes == 2 * found.moved_bytes


def test_a_log_that_is_not_due_shows_the_cost_of_force_and_a_clean_log_none() -> None:
    clock = ManualClock()
    store = filled(clock, 2, batches=2)
    idle = replace(EAGER, min_cleanable_dirty_ratio=1.0)
    assert would(store, clock, idle) == would(store, clock, EAGER)
    assert would(store, clock, replace(EAGER, compact=False, merge_span_ms=0)) is None
    keep = replace(EAGER, delete_retention_ms=86_400_000)
    clean(store, keep, clock=clock)
    assert would(store, clock, keep) is None


def test_a_pass_for_due_tombstones_costs_only_the_segments_that_have_them() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(n, f"a{n}", "1" * 500) for n in range(20)], [record(20, "b", None)], clock=clock)
    single = replace(EAGER, segment_bytes=1)
    clean(store, single, clock=clock)
    manifest = pinned(store, clock).manifest
    (due,) = [s for s in manifest.segments if s.tombstone_count]
    found = would(store, clock, single)
    assert found is not None
    assert found.segment_bytes_read == due.size_bytes


def test_a_plan_shows_cost_per_partition_and_in_all_as_text_and_json() -> None:
    clock = ManualClock()
    store = filled(clock, 3, batches=2)
    config = {"s3.bucket.name": "b", "log.cleaner.io.max.bytes.per.second": "1000"}
    for ratio, verb in (("0", "cost: "), ("1", "(--force: ")):
        options = CompactOptions.parse({**config, "min.cleanable.dirty.ratio": ratio})
        job = Job(
            options,
            RunSelection(),
            store,
            lambda _: LocalExecutor(store, retry_policy(clock, Random(1))),
            clock=clock,
            random=Random(2),
        )
        looks = job.review()
        costs, rate = job.costs(looks), options.io_max_bytes_per_second
        text = "\n".join(plan_lines(looks, costs, rate))
        assert f"{verb}at most" in text
        assert "s at log.cleaner.io.max.bytes.per.second" in text
        assert f"1 partition looked at, {int(ratio == '0')} to clean" in text
        found = json.loads(json.dumps(plan_document(looks, costs, rate)))
        (part,) = found["partitions"]
        moved = sum(part["cost_at_most"][name] for name in ("index_bytes_read", "segment_bytes_read", "bytes_written"))
        assert part["cost_at_most"]["throttled_seconds"] == pytest.approx(moved / 1000)
        whole = found["cost_at_most"]
        assert whole == part["cost_at_most"] if ratio == "0" else whole["bytes_written"] == 0


def test_progress_without_a_terminal_is_an_event_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=True)
    clock = ManualClock()
    progress = LoggedProgress(clock)
    clock.advance(60_000)
    progress.begin_stage(FIRST_STAGE, 5)
    progress.advance(5)
    progress.begin_stage("rewriting", 40)
    for _ in range(25):
        clock.advance(1_000)
        progress.advance()
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(e["stage"], e["done"], e["total"]) for e in events] == [("rewriting", 10, 40), ("rewriting", 20, 40)]
    clock.advance(-3_600_000)
    progress.advance()
    clock.advance(3_610_000)
    progress.begin_stage("committing", 3)
    assert '"done": 0' in capsys.readouterr().err, "a clock that jumps back delays an event and breaks nothing"
