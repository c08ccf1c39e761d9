"""keyfold beside Kafka's own cleaner, on the same records: what is left must be the same after every pass.

`Twin` is keyfold's side of one topic: it is fed with what a plain consumer read before Kafka cleaned it, appended
through the real protocol at the same offsets, and cleaned by a real `Run` without Spark. `compare_seeds` draws topics
by chance and drives both.

What differs by design is a function of this module, one for each difference, applied to what Kafka has left before it
is compared; `tests/integration/test_kafka_cleaner_rules.py` shows each of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Final

from keyfold.log.manifest import Manifest
from keyfold.log.record import Record
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold_compactor.decide.policy import clean_range
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.report.report import PartitionReport
from tests.support.cleaning import PLACE, Sink, clean, load, read_all
from tests.support.kafka_cleaner import BASE_MS, DAY_MS, HOUR_MS, SENTINEL_STEP_MS, Lab, Message, sentinel

YEARS_MS: Final = 10_000 * DAY_MS
"""A retention of tombstones that never ends here."""


@dataclass(slots=True)
class Twin:
    """keyfold's log of one topic."""

    settings: TopicSettings
    seed: int = 0
    clock: ManualClock = field(default_factory=ManualClock)
    store: MemoryStore = field(init=False)
    sink: Sink = field(init=False)
    appended: list[Record] = field(default_factory=list)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self.store = MemoryStore("twin", self.clock)
        self.sink = Sink.open(self.store, clock=self.clock, seed=self.seed)

    @property
    def manifest(self) -> Manifest:
        return load(self.store)

    @property
    def records(self) -> list[Record]:
        """All records of the newest version, checked on the way."""
        return read_all(self.store)

    @property
    def dirty_ratio(self) -> float:
        return clean_range(self.manifest, self.settings, self.clock.now_ms()).dirty_ratio

    def append(self, records: Sequence[Record]) -> None:
        """Append, cut into segments at random places: where keyfold cuts must make no difference."""
        self.appended += records
        at = 0
        while at < len(records):
            size = self._random.choice([1, 7, 40, 200])
            self.sink.append(records[at : at + size])
            self.clock.advance(10)
            at += size

    def append_cut(self, records: Sequence[Record], bases: Sequence[int]) -> None:
        """Append, cut into segments at these base offsets: retention takes whole segments."""
        self.appended += records
        for begin, end in pairwise((*bases, records[-1].offset + 1)):
            self.sink.append([r for r in records if begin <= r.offset < end])
            self.clock.advance(10)

    def clean(self, **changes: object) -> PartitionReport | None:
        """One run of the compactor; None where it had nothing to do here."""
        self.clock.advance(1_000)
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]  # fields by name, of any type
        pass_bytes = self._random.choice([1, 1 << 40])  # cut into parts or not, the result is the same
        seed = self._random.getrandbits(32)
        report = clean(self.store, settings, clock=self.clock, seed=seed, pass_bytes=pass_bytes)
        assert report.exit_code == 0, report.document()
        self.clock.advance(1_000)
        return report.by_place.get(PLACE)


# What differs by design


def without_active_segment(kafka: Sequence[Record], active_base: int) -> list[Record]:
    """Kafka never cleans its active segment; keyfold's active segment is what the sink has not flushed yet.

    The sentinel is Kafka's active segment and not in keyfold's log when a pass begins, so it is left out.
    """
    return [r for r in kafka if r.offset < active_base]


def without_expired_tombstones(kafka: Sequence[Record], first_dirty: int) -> list[Record]:
    """A tombstone past its horizon stays in Kafka until there is enough new dirty data (KAFKA-8522); keyfold's goes
    by itself, from the clean part alone, at the run after its time is over.
    """
    return [r for r in kafka if r.offset >= first_dirty or not r.is_tombstone]


def with_keyless(kafka: Sequence[Record], appended: Sequence[Record]) -> list[Record]:
    """Kafka drops records without a key from a compacted log; keyfold keeps them, unless `keyless.records=remove`."""
    keyless = [r for r in appended if r.key is None]
    return sorted({r.offset: r for r in (*kafka, *keyless)}.values(), key=lambda r: r.offset)


def away_from(ratio: float, ratios: Sequence[float]) -> float:
    """Both sides weigh their own stored bytes, so their dirty ratios differ by what a record costs beside its data.

    A threshold between the two would be judged differently by design; the nearest one that is not between them.
    """
    if min(ratios) - 0.01 <= ratio <= max(ratios) + 0.01:
        return max(0.0, min(ratios) - 0.02)
    return ratio


# Random topics


@dataclass(frozen=True, slots=True)
class Plan:
    """One topic's settings and shape, by chance."""

    seed: int
    topic: str
    key_count: int
    tombstone_share: float
    ratio: float
    retention_ms: int
    segment_bytes: int
    has_young_round: bool
    random: Random

    @staticmethod
    def of(seed: int, prefix: str = "seed") -> Plan:
        random = Random(seed)
        return Plan(
            seed=seed,
            topic=f"{prefix}-{seed}",
            key_count=random.choice([1, 5, 30, 200]),
            tombstone_share=random.choice([0.0, 0.1, 0.5, 1.0]),
            ratio=random.choice([0.0, 0.0, 0.3, 0.5, 0.8]),
            retention_ms=random.choice([0, YEARS_MS]),
            segment_bytes=random.choice([2_500, 10_000, 10_000_000]),
            has_young_round=random.random() < 0.5,
            random=random,
        )

    @property
    def config(self) -> dict[str, str]:
        return {
            "delete.retention.ms": str(self.retention_ms),
            "internal.segment.bytes": str(self.segment_bytes),
            "compression.type": self.random.choice(["producer", "uncompressed", "zstd", "lz4", "gzip", "snappy"]),
        }

    @property
    def settings(self) -> TopicSettings:
        return TopicSettings(
            min_cleanable_dirty_ratio=self.ratio,
            delete_retention_ms=self.retention_ms,
            segment_bytes=self.segment_bytes,
            file_delete_delay_ms=0,
        )

    def chunks(self, base_ms: int) -> list[list[Message]]:
        """A round's messages above the timestamp of the round's first batch."""
        return [
            [self._message(base_ms) for _ in range(self.random.choice([1, 3, 30, 100]))]
            for _ in range(self.random.randrange(1, 5))
        ]

    def _message(self, base_ms: int) -> Message:
        random = self.random
        number = random.randrange(self.key_count)
        key = b"" if number == 3 else b"%d" % number + b"k" * (number % 50)
        value: bytes | None = random.randbytes(random.choice([0, 1, 20, 300]))
        if random.random() < self.tombstone_share:
            value = None
        # In disorder, and some from long ago: those roll segments, and nothing else may come of it.
        timestamp = base_ms + random.randrange(20 * HOUR_MS)
        if random.random() < 0.02:
            timestamp = random.randrange(1, base_ms)
        headers = (("h", random.choice([None, b"", b"x"])), ("h", b"again")) if random.random() < 0.1 else ()
        return Message(key, value, timestamp, headers)

    def young_chunks(self) -> list[list[Message]]:
        """Messages of the last hour."""
        now_ms = int(time.time() * 1000)
        return [
            [replace(m, timestamp=now_ms - self.random.randrange(HOUR_MS)) for m in chunk]
            for chunk in self.chunks(BASE_MS)
        ]


@dataclass(slots=True)
class Tally:
    """What has happened in the rounds of all seeds."""

    cleaned_by_both: int = 0
    left_by_both: int = 0
    young_rounds: int = 0
    records_removed: int = 0
    tombstones_removed: int = 0
    tombstones_gone_by_themselves: int = 0


@dataclass(slots=True)
class Pair:
    """One topic on both sides."""

    plan: Plan
    twin: Twin
    lab: Lab
    tally: Tally
    checkpoint: int = 0
    active_base: int = 0
    round_number: int = 0

    @property
    def topic(self) -> str:
        return self.plan.topic

    def next_round(self) -> list[list[Message]]:
        base_ms = BASE_MS + self.round_number * SENTINEL_STEP_MS
        self.round_number += 1
        return self.plan.chunks(base_ms)

    def feed(self, records: Sequence[Record]) -> None:
        """Take over what Kafka holds and has not cleaned, but for the sentinel at its end."""
        begin = self.twin.manifest.next_offset
        assert [r.offset for r in records] == list(range(begin, begin + len(records))), "Kafka has cleaned too early"
        self.active_base = records[-1].offset
        self.twin.append(records[:-1])

    def threshold(self) -> tuple[float, bool]:
        """The dirty ratio to ask of both, and whether it makes them clean."""
        ratios = (self.lab.dirty_ratio(self.topic, self.checkpoint, self.active_base), self.twin.dirty_ratio)
        ratio = round(away_from(self.plan.ratio, ratios), 4)
        return ratio, min(ratios) > ratio

    def passed(self, kafka: Sequence[Record], ends: tuple[int, int], *, end: int, due: bool) -> None:
        """Compare what is left after a pass up to `end`, or after no pass."""
        where = f"seed {self.plan.seed}, round {self.round_number}: "
        manifest = self.twin.manifest
        self.checkpoint = end if due else self.checkpoint
        expected = without_active_segment(kafka, self.active_base)
        if not due and self.plan.retention_ms == 0:
            before = len(expected)
            expected = without_expired_tombstones(expected, self.checkpoint)
            self.tally.tombstones_gone_by_themselves += before - len(expected)
        found = self.twin.records
        assert found == expected, where + difference(expected, found)
        assert manifest.first_dirty_offset == self.checkpoint, where
        assert (manifest.log_start_offset, manifest.next_offset) == (ends[0], ends[1] - 1), where
        self.tally.cleaned_by_both += due
        self.tally.left_by_both += not due

    def close(self) -> None:
        gone = {r.offset for r in self.twin.appended} - {r.offset for r in self.twin.records}
        last = {r.key: r.offset for r in self.twin.appended}
        self.tally.records_removed += len(gone)
        self.tally.tombstones_removed += len(gone.intersection(last.values()))


def compare_seeds(lab: Lab, seeds: Iterable[int], *, rounds: int, prefix: str = "seed") -> Tally:
    """Drive Kafka's cleaner and keyfold through the same rounds, all seeds side by side; compare after each pass."""
    tally = Tally()
    plans = [Plan.of(seed, prefix) for seed in seeds]
    pairs = [Pair(plan, Twin(plan.settings, plan.seed), lab, tally) for plan in plans]
    for pair in pairs:
        lab.create(pair.topic, pair.plan.config)
    for _ in range(rounds):
        _random_round(lab, pairs)
    young = [pair for pair in pairs if pair.plan.has_young_round]
    if young:
        _young_round(lab, young)
    for pair in pairs:
        pair.close()
        lab.broker.delete_topic(pair.topic)
    return tally


def _random_round(lab: Lab, pairs: Sequence[Pair]) -> None:
    lab.hold(p.topic for p in pairs)
    lab.produce({p.topic: [*p.next_round(), [sentinel(p.round_number)]] for p in pairs})
    added = lab.read({p.topic: p.twin.manifest.next_offset for p in pairs})
    for p in pairs:
        p.feed(added[p.topic])
    judged = {p.topic: p.threshold() for p in pairs}
    lab.set({topic: {"min.cleanable.dirty.ratio": str(ratio)} for topic, (ratio, _) in judged.items()})
    lab.wait_for_passes({p.topic: p.active_base for p in pairs if judged[p.topic][1]})
    if not all(due for _, due in judged.values()):
        lab.wait_for_looks()
    known = lab.checkpoints()
    left, ends = lab.read({p.topic: 0 for p in pairs}), lab.ends(p.topic for p in pairs)
    for p in pairs:
        ratio, due = judged[p.topic]
        assert known[p.topic] == (p.active_base if due else p.checkpoint)
        p.twin.clean(min_cleanable_dirty_ratio=ratio)
        p.passed(left[p.topic], ends[p.topic], end=p.active_base, due=due)


def _young_round(lab: Lab, pairs: Sequence[Pair]) -> None:
    """Old records, then young ones; a pass that must spare the young ones, and one that need not.

    Kafka tells a young segment by its records' timestamps, keyfold by the time of its append: both are set.
    """
    lab.hold(p.topic for p in pairs)
    old = {p.topic: p.next_round() for p in pairs}
    last = Message(b"\x00sentinel", b"", int(time.time() * 1000) + SENTINEL_STEP_MS)
    lab.produce({p.topic: [*old[p.topic], *p.plan.young_chunks(), [last]] for p in pairs})
    added = lab.read({p.topic: p.twin.manifest.next_offset for p in pairs})
    young_base = {p.topic: p.active_base + 1 + sum(map(len, old[p.topic])) for p in pairs}
    for p in pairs:
        records = added[p.topic]
        cut = young_base[p.topic] - records[0].offset
        p.twin.append(records[:cut])
        p.twin.clock.advance(2 * DAY_MS)
        p.feed(records[cut:])
    for lag_ms in (DAY_MS, 0):
        ends = {p.topic: young_base[p.topic] if lag_ms else p.active_base for p in pairs}
        # One after the other: a cleaner that has just looked up how far it may clean reads the ratio a moment later.
        lab.set({p.topic: {"min.compaction.lag.ms": str(lag_ms)} for p in pairs})
        lab.set({p.topic: {"min.cleanable.dirty.ratio": "0"} for p in pairs})
        lab.wait_for_passes(ends)
        left, offsets = lab.read({p.topic: 0 for p in pairs}), lab.ends(p.topic for p in pairs)
        for p in pairs:
            p.twin.clean(min_cleanable_dirty_ratio=0.0, min_compaction_lag_ms=lag_ms)
            p.passed(left[p.topic], offsets[p.topic], end=ends[p.topic], due=True)
            p.tally.young_rounds += 1


def difference(expected: Sequence[Record], found: Sequence[Record]) -> str:
    """Offsets that one side alone has, and records that differ at the same offset."""
    wanted, had = {r.offset: r for r in expected}, {r.offset: r for r in found}
    changed = [(wanted[o], had[o]) for o in wanted.keys() & had.keys() if wanted[o] != had[o]]
    return (
        f"Kafka alone has {[wanted[o] for o in sorted(wanted.keys() - had.keys())][:5]}, "
        f"keyfold alone has {[had[o] for o in sorted(had.keys() - wanted.keys())][:5]}, changed {changed[:3]}"
    )
