"""Where keyfold differs from Kafka's cleaner on purpose, and what was seen of Kafka's: each shown on a real broker.

The rules are functions of `tests.support.kafka_cleaner_twin`; the comparison of random topics applies the same ones.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException

from keyfold.errors import KeyfoldError
from keyfold.log.record import Record
from keyfold_compactor.decide.settings import TopicSettings
from tests.conftest import MakeTopic, fresh
from tests.support.kafka import KafkaBroker, produce_all
from tests.support.kafka_cleaner import BASE_MS, DAY_MS, HELD, SENTINEL_STEP_MS, Lab, Message, sentinel
from tests.support.kafka_cleaner_twin import (
    YEARS_MS,
    Twin,
    away_from,
    with_keyless,
    without_active_segment,
    without_expired_tombstones,
)

pytestmark = pytest.mark.kafka

EAGER = TopicSettings(min_cleanable_dirty_ratio=0.0, delete_retention_ms=0, file_delete_delay_ms=0)


@pytest.fixture(scope="module")
def lab(broker: KafkaBroker) -> Lab:
    return Lab(broker)


class Both:
    """One topic on both sides, by hand: `produce` feeds both, `clean` lets both clean."""

    def __init__(self, lab: Lab, settings: TopicSettings = EAGER, **config: str) -> None:
        self.lab = lab
        self.topic = fresh("rule")
        self.twin = Twin(settings)
        self.rounds = 0
        self.active_base = 0
        given = {key.replace("_", "."): value for key, value in config.items()}
        lab.create(self.topic, {"delete.retention.ms": str(settings.delete_retention_ms), **given})

    def produce(self, text: str, *, roll_at_ms: int | None = None) -> None:
        """`"a=1 a= =x b"`: values, tombstones, keyless and empty values; then the sentinel."""
        self.lab.hold([self.topic])
        base_ms = BASE_MS + self.rounds * SENTINEL_STEP_MS
        self.rounds += 1
        last = sentinel(self.rounds)
        if roll_at_ms is not None:
            last = replace(last, timestamp=roll_at_ms)
        self.lab.produce({self.topic: [[parsed(word, base_ms) for word in text.split()], [last]]})
        self.feed()

    def feed(self) -> None:
        records = self.lab.read({self.topic: self.twin.manifest.next_offset})[self.topic]
        self.active_base = records[-1].offset
        self.twin.append(records[:-1])

    def clean_kafka(self, end: int | None = None, **config: str) -> None:
        given = {key.replace("_", "."): value for key, value in config.items()}
        self.lab.set({self.topic: {"min.cleanable.dirty.ratio": "0", **given}})
        self.lab.wait_for_passes({self.topic: self.active_base if end is None else end})

    def clean(self) -> None:
        self.clean_kafka()
        self.twin.clean()

    @property
    def kafka(self) -> list[Record]:
        """All that Kafka has, its active segment included."""
        return self.lab.read({self.topic: 0})[self.topic]

    @property
    def kafka_cleaned(self) -> list[Record]:
        return without_active_segment(self.kafka, self.active_base)


def parsed(word: str, timestamp: int) -> Message:
    key, equals, value = word.partition("=")
    return Message(key.encode() if key else None, value.encode() if value or not equals else None, timestamp)


def said(records: list[Record]) -> list[str]:
    """`key@offset`, without sentinels."""
    keys = [((r.key or b"-").decode(), r.offset) for r in records if not (r.key or b"").startswith(b"\x00")]
    return [f"{key}@{offset}" for key, offset in keys]


def test_kafka_never_cleans_the_active_segment_and_keyfold_does_not_have_it_yet(lab: Lab) -> None:
    both = Both(lab)
    both.produce("a=1 b=1 a=2")
    both.lab.produce({both.topic: [[Message(b"a", b"3", BASE_MS + SENTINEL_STEP_MS)]]})
    both.clean()
    assert said(both.kafka) == ["b@1", "a@2", "a@4"], "the record in the active segment supersedes nothing yet"
    assert both.kafka_cleaned == both.twin.records
    assert both.twin.manifest.next_offset == both.active_base


def test_an_expired_tombstone_waits_for_new_data_in_kafka_but_not_in_keyfold(lab: Lab) -> None:
    both = Both(lab)
    both.produce("a=1 b=1 a=")
    both.clean()
    assert said(both.kafka_cleaned) == ["b@1", "a@2"]
    lab.wait_for_looks()  # its horizon has passed, the ratio to exceed is 0, and Kafka still has no reason
    both.twin.clean()
    assert said(both.kafka_cleaned) == ["b@1", "a@2"]
    assert both.twin.records == without_expired_tombstones(both.kafka_cleaned, both.active_base)
    assert said(both.twin.records) == ["b@1"]
    both.produce("c=1")
    both.clean()
    assert said(both.kafka_cleaned) == ["b@1", "c@4"], "with new data Kafka's goes too"
    assert both.kafka_cleaned == both.twin.records


def test_records_without_a_key_are_dropped_by_kafka_and_by_keyfold_only_if_configured(lab: Lab) -> None:
    both = Both(lab, cleanup_policy="delete", retention_ms="-1")  # these records are years old
    asked = Twin(replace(EAGER, remove_keyless=True))
    both.produce("a=1 =x a=2 =y =z b=1")
    asked.append(both.twin.appended)
    both.clean_kafka(cleanup_policy="compact")
    both.twin.clean()
    asked.clean()
    assert said(both.kafka_cleaned) == ["a@2", "b@5"]
    assert asked.records == both.kafka_cleaned
    assert both.twin.records == with_keyless(both.kafka_cleaned, both.twin.appended)
    assert said(both.twin.records) == ["-@1", "a@2", "-@3", "-@4", "b@5"]


def test_a_new_record_without_a_key_is_refused_by_a_compacted_topic(broker: KafkaBroker, topic: MakeTopic) -> None:
    name = topic(config=HELD)
    with pytest.raises((KeyfoldError, KafkaException), match="validate record"):
        produce_all(broker.bootstrap_servers, name, [(None, b"x", BASE_MS, 0)])


def test_an_empty_key_is_a_key_and_an_empty_value_is_no_tombstone(lab: Lab) -> None:
    both = Both(lab)
    empty = [Message(b"", b"1", BASE_MS), Message(b"", b"", BASE_MS), Message(b"a", b"", BASE_MS)]
    lab.produce({both.topic: [empty, [sentinel(1)]]})
    both.feed()
    both.clean()
    both.twin.clean()
    assert [(r.offset, r.key, r.value) for r in both.kafka_cleaned] == [(1, b"", b""), (2, b"a", b"")]
    assert both.twin.records == both.kafka_cleaned


def test_a_future_timestamp_blocks_kafkas_cleaner_under_a_lag_but_not_keyfolds(lab: Lab) -> None:
    """Kafka tells a young segment by its records' timestamps, keyfold by the time of the append."""
    settings = replace(EAGER, min_compaction_lag_ms=DAY_MS)
    both = Both(lab, settings, min_compaction_lag_ms=str(DAY_MS))
    future_ms = int(time.time() * 1000) + 1_000 * DAY_MS
    lab.produce({both.topic: [
        [Message(b"a", b"1", BASE_MS), Message(b"a", b"2", BASE_MS)],
        [Message(b"b", b"1", future_ms), Message(b"b", b"2", BASE_MS)],
        [replace(sentinel(1), timestamp=future_ms + SENTINEL_STEP_MS)],
    ]})  # fmt: skip
    both.feed()
    both.clean_kafka(end=2)
    assert said(both.kafka_cleaned) == ["a@1", "b@2", "b@3"], "blocked for a thousand days"
    both.twin.clean()
    assert said(both.twin.records) == ["a@0", "a@1", "b@2", "b@3"], "all of it was appended a moment ago"
    both.twin.clock.advance(DAY_MS)
    both.twin.clean()
    assert said(both.twin.records) == ["a@1", "b@3"]


def test_a_past_timestamp_defeats_the_lag_in_kafka_but_not_in_keyfold(lab: Lab) -> None:
    settings = replace(EAGER, min_compaction_lag_ms=DAY_MS)
    both = Both(lab, settings, min_compaction_lag_ms=str(DAY_MS))
    both.produce("a=1 a=2")
    both.clean()
    assert said(both.kafka_cleaned) == ["a@1"]
    assert said(both.twin.records) == ["a@0", "a@1"], "a reader within the lag sees every record"


def test_kafka_keeps_a_delete_horizon_once_set_and_keyfold_uses_the_current_setting(lab: Lab) -> None:
    both = Both(lab, replace(EAGER, delete_retention_ms=YEARS_MS))
    both.produce("a=1 a=")
    both.clean()
    both.produce("b=1")
    lab.set({both.topic: {"delete.retention.ms": "0"}})
    both.clean_kafka()
    both.twin.clean(delete_retention_ms=0)
    assert said(both.kafka_cleaned) == ["a@1", "b@3"], "stamped for years, whatever is configured now"
    assert said(both.twin.records) == ["b@3"]


def test_dirty_ratios_differ_because_each_side_counts_its_own_bytes(lab: Lab) -> None:
    both = Both(lab)
    both.produce(" ".join(f"{n}={'v' * 50}" for n in range(60)))
    both.clean()
    both.produce(" ".join(f"{n}={'v' * 50}" for n in range(40)))
    kafka = lab.dirty_ratio(both.topic, lab.checkpoints()[both.topic], both.active_base)
    ratios = (kafka, both.twin.dirty_ratio)
    assert kafka == pytest.approx(both.twin.dirty_ratio, abs=0.1)
    assert away_from(sum(ratios) / 2, ratios) < min(ratios)
    assert away_from(max(ratios) + 0.1, ratios) == max(ratios) + 0.1


def test_emptied_segments_and_the_log_start_stay_where_they_were(lab: Lab) -> None:
    """Offsets of removed records stay valid: reading from one begins at the next that is there (KAFKA-7556)."""
    both = Both(lab, internal_segment_bytes="2500")
    for _ in range(3):
        both.produce(" ".join(f"a={n}{'v' * 400}" for n in range(20)))
        both.clean()
    assert both.kafka_cleaned == both.twin.records
    start, _ = lab.ends([both.topic])[both.topic]
    assert (start, both.twin.manifest.log_start_offset) == (0, 0)
    assert both.twin.records[0].offset > 0
    assert lab.read({both.topic: 1})[both.topic][0] == both.twin.records[0]


def test_a_pass_over_new_keys_only_removes_nothing_on_either_side(lab: Lab) -> None:
    both = Both(lab)
    both.produce("a=1 b=1")
    both.clean()
    both.produce("c=1 d=")
    both.clean()
    assert said(both.kafka_cleaned) == ["a@0", "b@1", "c@3", "d@4"]
    assert both.kafka_cleaned == both.twin.records


@pytest.mark.full
def test_a_small_offset_map_cuts_kafkas_pass_and_starts_horizons_early_but_not_keyfolds() -> None:
    """A cut pass of Kafka stamps the horizon of tombstones whose older values still live in the part it left."""
    tiny_map = {"log.cleaner.io.buffer.load.factor": "0.0002", "log.cleaner.dedupe.buffer.size": str(2**21)}
    text = " ".join([f"{n}=1" for n in range(40)] + [f"{n}=" for n in range(20)] + [f"{n}=2" for n in range(30, 40)])
    with KafkaBroker(settings=tiny_map) as broker:
        lab = Lab(broker)
        promised, hasty = Both(lab, replace(EAGER, delete_retention_ms=YEARS_MS)), Both(lab)
        for both in (promised, hasty):
            both.produce(text)
            both.clean()
        assert promised.kafka_cleaned == promised.twin.records
        tombstones = {r.offset for r in hasty.twin.records if r.is_tombstone}
        assert len(tombstones) == 20, "readable from the pass on that removed the values"
        left = {r.offset for r in hasty.kafka_cleaned if r.is_tombstone}
        assert left < tombstones
        hasty.twin.clean()
        assert {r.offset for r in hasty.kafka_cleaned if not r.is_tombstone} == {r.offset for r in hasty.twin.records}
