"""A log and a topic with one history, each cleaned in its own way and at its own time: never a finding.

And with one record lost on the way into the log that nothing takes away later: always one, whatever passes came after.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.log.record import Record
from keyfold.read.log import Log
from keyfold.verify.compare import Extent, compare_partition
from keyfold.verify.findings import FindingKind
from tests.support.logs import MadeLog, record
from tests.unit.verify.test_compare_with_kafka import FakeTopic

KEYS = st.sampled_from([None, "a", "b", "c", "d", "e"])
SOURCES = st.lists(st.tuples(KEYS, st.booleans(), st.integers(1, 3)), min_size=1, max_size=60)


def source_of(rows: Sequence[tuple[str | None, bool, int]]) -> list[Record]:
    """Records with holes in their offsets, as transactions leave them."""
    offset, found = -1, []
    for key, has_value, step in rows:
        offset += step
        found.append(record(offset, key, f"v{offset}" if has_value else None))
    return found


def cleaned(records: list[Record], upto: int, random: Random, purge_to: int) -> list[Record]:
    """What Kafka's cleaner leaves: below `upto` the last of each key, no keyless records, some tombstones gone.

    Tombstones that the log has not read yet stay: Kafka waits `delete.retention.ms` for readers that are no later. A
    log that is later keeps the key, and that is a finding.
    """
    last = {r.key: r.offset for r in records if r.offset < upto}
    kept = [r for r in records if r.offset >= upto or (r.key is not None and last[r.key] == r.offset)]
    return [r for r in kept if r.offset >= min(upto, purge_to) or not r.is_tombstone or random.random() < 0.5]


def history(made: MadeLog, source: list[Record], random: Random) -> None:
    """Appends and passes, at random."""
    rest = list(source)
    while rest:
        count = random.randrange(1, 9)
        batch, rest = rest[:count], rest[count:]
        made.append(batch, next_offset=rest[0].offset if rest and random.random() < 0.5 else None)
        if random.random() < 0.4:
            made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)
        if random.random() < 0.2:
            made.delete_replaced()


@pytest.mark.sharded
@settings(max_examples=150)
@given(SOURCES, SOURCES, st.integers(0, 2**32), st.booleans())
def test_a_log_and_topic_of_one_history_have_no_findings(
    rows: list[tuple[str | None, bool, int]], more: list[tuple[str | None, bool, int]], seed: int, is_ahead: bool
) -> None:
    random = Random(seed)
    everything = source_of([*rows, *more])
    source = everything[: len(rows)]
    made = MadeLog(random=Random(seed))
    history(made, source, random)
    kafka = everything if is_ahead else source
    end = kafka[-1].offset + 1
    for number in range(random.randrange(4)):
        kafka = cleaned(kafka, random.randrange(end + 1), random, made.manifest.next_offset if number else 0)
    start = random.choice([0, 0, random.randrange(end)])
    topic = FakeTopic([r for r in kafka if r.offset >= start], start=start, end=end)
    log = Log(made.store, "topics", "users", clock=made.clock, random=made.random)
    for extent in (Extent(), Extent(random.randrange(end), random.randrange(end + 1))):
        found = compare_partition(log, 0, topic, random=random, extent=extent, rows_at_once=7).findings
        assert [str(f) for f in found if f.kind.is_damage] == []


@pytest.mark.sharded
@settings(max_examples=150)
@given(SOURCES, st.integers(0, 2**32))
def test_a_missing_record_that_nothing_superseded_is_reported(
    rows: list[tuple[str | None, bool, int]], seed: int
) -> None:
    random = Random(seed)
    source = source_of(rows)
    last = {r.key: r.offset for r in source}
    lost = random.choice([r for r in source if r.key is not None and last[r.key] == r.offset] or [None])
    if lost is None or len(source) == 1:
        return
    made = MadeLog(random=Random(seed))
    rest = [r for r in source if r is not lost]
    history(made, rest, random)
    made._sink = made.log.claim_sink()
    if made.manifest.next_offset <= lost.offset:
        made.sink.advance(lost.offset + 1)
    topic = FakeTopic(list(source))
    log = Log(made.store, "topics", "users", clock=made.clock, random=made.random)
    found = compare_partition(log, 0, topic, random=random, rows_at_once=7).findings
    if lost.is_tombstone and lost.offset <= made.manifest.purged_to:
        return  # that is how a purged one looks
    assert [f.kind for f in found if f.offset == lost.offset] == [
        FindingKind.TOMBSTONE_LOST if lost.is_tombstone else FindingKind.RECORD_LOST
    ]
