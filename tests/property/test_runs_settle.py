"""A loop that nothing new comes to has nothing to do after a few runs: no log is claimed again and again for nothing.

Whatever the settings are, and wherever an earlier pass was stopped or cut off. A log that stays due without any
progress costs a claim, a map and two commits in every run, for ever.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from keyfold.log.record import Record
from keyfold.runtime.clock import NEVER_MS, ManualClock
from keyfold_compactor.decide.min_garbage import LogsBelowMinGarbage
from keyfold_compactor.decide.settings import TopicSettings
from tests.support.cleaning import PLACE, clean, latest, load, memory_log, new_run, read_all, record

RUNS_MAX = 8
UNIT_BYTES_MIN = 1
"""Outputs are made from as little as they may be, so that small logs meet this limit too."""
KEYS = [b"a", b"b", b"c"]


def batch(offset: int, random: Random) -> list[Record]:
    """Records of few keys, none, or a key that comes once, so that a segment's garbage is little or much."""
    often = random.choice([0.0, 0.1, 0.8])
    return [one(offset + i, often, random) for i in range(random.randrange(1, 9))]


def one(offset: int, often: float, random: Random) -> Record:
    value = None if random.random() < 0.3 else "v" * random.randrange(60)
    if random.random() < often:
        return record(offset, random.choice(KEYS), value)
    if random.random() < 0.2:
        return record(offset, None, "x" * random.choice([1, 60]))
    return record(offset, f"once-{offset}", None if value is None else value + "x" * 100)


def topic(random: Random) -> TopicSettings:
    compact = random.random() < 0.8
    return TopicSettings(
        compact=compact,
        delete=not compact or random.random() < 0.2,
        min_cleanable_dirty_ratio=random.choice([0.0, 0.0, 0.5, 1.0]),
        min_compaction_lag_ms=random.choice([0, 0, 1_000]),
        max_compaction_lag_ms=random.choice([NEVER_MS, NEVER_MS, 3_000]),
        delete_retention_ms=random.choice([0, 0, 2_000]),
        file_delete_delay_ms=random.choice([0, 2_000]),
        segment_bytes=random.choice([1, 600, 2_000, 10_000]),
        segment_min_garbage_ratio=random.choice([0.0, 0.2, 0.4, 0.9]),
        remove_keyless=random.random() < 0.4,
        retention_ms=random.choice([-1, -1, 10_000]),
        retention_bytes=random.choice([-1, -1, 1_000]),
        merge_span_ms=random.choice([0, 10_000, 86_400_000]),
    )


@pytest.mark.sharded
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_an_unchanging_log_needs_nothing_after_a_few_runs(seed: int) -> None:
    random = Random(seed)
    clock = ManualClock()
    store, sink = memory_log(clock=clock)
    appended: list[Record] = []
    for _ in range(random.randrange(1, 6)):
        for _ in range(random.randrange(1, 5)):
            records = batch(sink.session.refresh().next_offset, random)
            sink.append(records)
            appended += records
            clock.advance(random.choice([10, 700]))
        answers = iter([False] * random.randrange(1, 4))
        in_parts = {"pass_bytes": 1, "unit_bytes_min": UNIT_BYTES_MIN}
        stopping = new_run(store, topic(random), clock=clock, seed=random.getrandbits(32), **in_parts)
        assert stopping.clean([PLACE], lambda: next(answers, True)).exit_code == 0  # noqa: B023 - called before the loop goes on
        clock.advance(random.choice([10, 3_000]))
    last = topic(random)
    pass_bytes = random.choice([1, 1 << 40])
    limits: dict[str, object] = {
        "below_min_garbage": LogsBelowMinGarbage(),
        "pass_bytes": pass_bytes,
        "unit_bytes_min": UNIT_BYTES_MIN,
    }
    for run in range(RUNS_MAX):
        clock.advance(20_000 if run == 0 else 2_500)  # every wait is over
        report = clean(store, last, clock=clock, seed=run, **limits)
        assert report.exit_code == 0
        if not report.partitions:
            event(f"settled after {run} runs")
            break
    else:
        pytest.fail(f"still {report.partitions[0].reasons} after {RUNS_MAX} runs: {last}")
    kept = [r for r in appended if r.offset >= load(store).log_start_offset]
    assert latest(read_all(store)) == latest(kept)
