"""What a plan says that a pass would free, and what the pass then frees."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.policy import PartitionReview
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.gain import Gain
from keyfold_compactor.report.show import plan_document, plan_lines
from tests.support.cleaning import PLACE, Sink, memory_log, record, retry_policy

CONFIG = {
    "s3.bucket.name": "b",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}


def job(store: MemoryStore, clock: ManualClock, **config: str) -> Job:
    options = CompactOptions.parse({**CONFIG, **{key.replace("_", "."): value for key, value in config.items()}})
    return Job(
        options,
        RunSelection(),
        store,
        lambda _: LocalExecutor(store, retry_policy(clock, Random(1))),
        clock=clock,
        random=Random(2),
    )


def append(sink: Sink, count: int, keys: int, random: Random) -> None:
    start = sink.session.manifest.next_offset
    values = [None if random.random() < 0.1 else "v" * random.randrange(300) for _ in range(count)]
    sink.append([record(start + n, f"k{random.randrange(keys)}", value) for n, value in enumerate(values)])


@pytest.mark.parametrize("seed", range(5))
def test_a_pass_frees_what_an_exact_plan_says_and_never_more_than_the_bound(seed: int) -> None:
    clock, random = ManualClock(), Random(seed)
    store, sink = memory_log([record(0, "k0", "x")], clock=clock)
    for number in range(6):
        if number != 3:
            append(sink, 200, 50, random)
        made = job(store, clock, segment_min_garbage_ratio=random.choice(("0", "0.6")))
        looks = made.review()
        bounds, exact = made.gains(looks), made.gains(looks, is_exact=True)
        report = made.once()
        removed = sum(part.removed for part in report.partitions)
        assert sum(found.records or 0 for found in exact.values()) == removed
        assert removed <= sum(found.records_max for found in bounds.values())
        for found in bounds.values():
            assert found.records is None or found.records <= found.records_max
            assert found.size_bytes is None or found.size_bytes <= found.bytes_max
        sink = Sink.open(store, PLACE, clock=clock)


def test_there_is_no_estimate_before_the_first_pass_and_a_close_one_later() -> None:
    clock, random = ManualClock(), Random(1)
    store, sink = memory_log([record(0, "k0", "x")], clock=clock)
    append(sink, 1_000, 50, random)
    first = job(store, clock).gains(job(store, clock).review())[PLACE]
    assert (first.records, first.size_bytes, first.records_max) == (None, None, 1_000)
    job(store, clock).once()
    append(Sink.open(store, PLACE, clock=clock), 1_000, 50, random)
    later = job(store, clock)
    looks = later.review()
    (estimate,), (exact,) = later.gains(looks).values(), later.gains(looks, is_exact=True).values()
    assert estimate.records is not None
    assert exact.records is not None
    assert estimate.records == pytest.approx(exact.records, rel=0.1)
    assert not estimate.is_exact
    assert exact.is_exact


def test_a_plan_shows_bounds_estimates_and_exact_figures() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    looks = job(store, clock).review()
    for found, expected in (
        (Gain(None, None, 1, 2_048), "frees: at most 1 record of 2.0 KiB (no estimate"),
        (
            Gain(900, 2_048, 1_000, 4_096),
            "frees: about 900 records, 2.0 KiB (estimated from earlier passes; at most 1,000 records)",
        ),
        (Gain(1, 2_048, 1, 2_048, is_exact=True), "frees: 1 record, about 2.0 KiB"),
    ):
        lines = list(plan_lines(looks, gains={PLACE: found}))
        assert any(line.startswith(f"users-0: {expected}") for line in lines)
        assert any(line.startswith(f"in all, {expected}"[:40]) for line in lines)
        document = json.loads(json.dumps(plan_document(looks, gains={PLACE: found})))
        assert document["partitions"][0]["frees"]["records"] == found.records
        assert document["frees"]["records_at_most"] == found.records_max
        assert document["frees"]["is_exact"] == found.is_exact


def test_a_log_that_is_not_due_has_no_gain() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    idle = job(store, clock, min_cleanable_dirty_ratio="1")
    looks = idle.review()
    assert idle.gains(looks) == {}
    unread = [replace(look, pinned=None) for look in looks]
    assert idle.gains([*unread, PartitionReview(PLACE)]) == {}
