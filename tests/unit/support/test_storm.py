"""Parts of the storm that need no server: its schedule, its judge, its summary, and the plain reader's imports."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support.storm.gates import FAULTS
from tests.support.storm.judge import Rules, Version, backwards, fold, row_flaws, snapshot_flaws, state_flaws
from tests.support.storm.schedule import BROKER, BUCKETS, COMPACTOR, DRILLS, REPLICATORS, SINKS, TRAFFIC, WEATHER, plan
from tests.support.storm.summary import MUST_HAPPEN, Summary
from tests.support.storm.traffic import TOPICS, Traffic
from tests.support.storm.truth import History, Row
from tests.support.storm.world import Child

ENDS = {"start", "wake", "clear"}


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert plan(7, 3600) == plan(7, 3600) != plan(8, 3600)


@pytest.mark.parametrize("seed", [1, 7])
def test_ten_minutes_have_every_action_and_each_fault_ends(seed: int) -> None:
    steps = plan(seed, 600)
    done = {(step.what, step.whom) for step in steps}
    for whom in (*SINKS, COMPACTOR, *REPLICATORS):
        assert {("kill", whom), ("terminate", whom), ("freeze", whom)} <= done
        own = [step.what in ENDS for step in steps if step.whom == whom]
        assert own == [number % 2 == 1 for number in range(len(own))]
    assert {("freeze", BROKER), ("wake", BROKER)} <= done
    assert {step.what for step in steps if step.whom in BUCKETS} == {*WEATHER, "clear"} == {*FAULTS}
    assert {step.whom for step in steps if step.what == "drill"} == {*DRILLS}
    assert {step.whom for step in steps if step.what == "traffic"} == {*TRAFFIC}


def test_records_name_their_topic_and_partition() -> None:
    traffic, random = Traffic(), Random(1)
    for number, kind in enumerate(TRAFFIC * 20):
        traffic.kind = kind
        for topic in TOPICS:
            given = traffic.record(random, topic, number)
            row = Row(number, 0, "CreateTime", given["key"], given["value"], ())
            assert row_flaws(topic.name, given["partition"], [row]) == []
            assert row.key is not None or not topic.kind.needs_keys
            assert row.value is None or row_flaws(topic.name, given["partition"] + 1, [row])


# The judge. Offset 4 is a transaction's marker; k1 is deleted at 5.


def row(offset: int, key: bytes | None, value: bytes | None = b"") -> Row:
    told = None if value is None else b"t|0|%s|%d|" % (b"-" if key is None else key, offset)
    return Row(offset, 1_000 + offset, "CreateTime", key, told, ())


ALL = [row(0, b"k1"), row(1, b"k2"), row(2, None), row(3, b"k2"), row(5, b"k1", None), row(6, b"k3"), row(7, b"k2")]
HISTORY = History(ALL, [r.offset for r in ALL], 8)
CLEAN = Version("log", 5, 0, 8, 7, 5, 100_000, {"older": 4})
RULES = Rules(is_compacted=True, expires=False, delete_retention_ms=10_000)
KEPT = [row(2, None), row(6, b"k3"), row(7, b"k2")]
"""What a clean log of `ALL` has after its tombstone was purged."""


def flaws(*rows: Row, rules: Rules = RULES, **changes: object) -> list[str]:
    return snapshot_flaws(HISTORY, replace(CLEAN, **changes), rules, rows)  # type: ignore[arg-type]  # fields by name, of any type


def test_the_judge_accepts_valid_logs() -> None:
    assert flaws(*ALL) == flaws(*KEPT) == flaws(row(2, None), row(5, b"k1", None), *KEPT[1:]) == []
    assert flaws(*ALL[3:], start=3, rules=replace(RULES, expires=True)) == []
    assert flaws(*ALL[:4], end=4, first_dirty=0) == flaws(*ALL[:4], end=5, first_dirty=0) == []
    assert flaws(*ALL, rules=replace(RULES, is_compacted=False)) == []


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        ((row(6, b"k3"), row(7, b"k2")), {}, "it has no key"),
        ((row(2, None), row(7, b"k2")), {}, "nothing has superseded it"),
        ((row(0, b"k1"), *KEPT), {}, r"key b'k1' is Row"),
        (KEPT[:2], {}, "the log is dirty from 7 on"),
        (KEPT, {"first_dirty": 3}, "the log is dirty from 3 on"),
        (KEPT, {"purged_to": 4}, "purged up to 4 only"),
        (KEPT, {"read_at_ms": 11_004}, "delete.retention.ms is longer"),
        ((row(4, b"k9"), *KEPT), {}, "is not what Kafka has: None"),
        (KEPT, {"end": 7}, "is not what Kafka has"),
        (ALL[3:], {"start": 3}, "nothing may expire"),
        (ALL, {"end": 6}, "is not what Kafka has"),
    ],
)
def test_the_judge_finds_each_flaw(rows: list[Row], changes: dict[str, object], words: str) -> None:
    found = flaws(*rows, **changes)  # type: ignore[arg-type]  # fields by name, of any type
    assert any(words in flaw for flaw in found), found


def test_an_uncompacted_log_lacks_and_repeats_nothing() -> None:
    plain = replace(RULES, is_compacted=False)
    assert "offset 3 is None" in flaws(*ALL[:3], *ALL[4:], rules=plain)[0]
    assert "some come twice" in flaws(*ALL, ALL[-1], rules=plain)[0]
    assert "comes after" in row_flaws("t", 0, [ALL[1], ALL[0]])[0]
    assert "does not belong to" in row_flaws("t", 1, ALL)[0]


def test_a_state_is_that_of_one_exact_prefix() -> None:
    assert state_flaws(HISTORY, 0, 6, fold(ALL[:5])) == []
    assert state_flaws(HISTORY, 2, 6, fold(ALL[:5])) == []
    for start, end in ((0, 4), (0, 7), (4, 6)):
        assert state_flaws(HISTORY, start, end, fold(ALL[:5])), (start, end)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"number": 4}, "version 4 was read after version 5"),
        ({"end": 7}, "of the same log"),
        ({"log_id": "new"}, "does not go on with"),
        ({"log_id": "new", "ancestors": {"log": 8}, "end": 7}, "goes on with that log from 8"),
    ],
)
def test_a_reader_that_goes_backwards_is_found(changes: dict[str, object], words: str) -> None:
    assert words in backwards(CLEAN, replace(CLEAN, **changes))  # type: ignore[arg-type]  # fields by name, of any type


def test_a_failed_over_log_loses_the_records_after_its_divergence() -> None:
    assert backwards(CLEAN, replace(CLEAN, number=6, end=9)) == ""
    assert backwards(CLEAN, replace(CLEAN, log_id="new", ancestors={"log": 6}, end=6)) == ""


def test_counts_that_are_zero_are_named() -> None:
    summary = Summary(7, 600)
    for part, names in MUST_HAPPEN.items():
        summary.add(part, dict.fromkeys(names, 2))
    assert summary.missing() == []
    summary.parts["replicas"]["demotions"] = 0
    assert summary.missing() == ["replicas: demotions"]
    assert "| replicas | demotions | 0 |" in summary.table()
    assert '"seed": 7' in summary.document()


def test_the_plain_reader_imports_nothing_of_keyfold() -> None:
    told = "import sys, tests.support.storm.plain; print([n for n in sys.modules if n.startswith('keyfold')])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_process_ended_before_it_listens_may_be_restarted(tmp_path: Path) -> None:
    child = Child("sleeper", ("sleep", "600"), {}, tmp_path / "log")
    child.start()
    assert child.terminate()
    assert not child.terminate()
    child.start()
    child.check()
    assert child.is_there
    assert child.terminate()
    with pytest.raises(AssertionError, match="sleeper ended with -15"):
        child.wait()
    assert not child.kill()


def test_a_process_that_ends_unexpectedly_is_noticed(tmp_path: Path) -> None:
    child = Child("talker", (sys.executable, "-c", "print('last words'); exit(3)"), {}, tmp_path / "log")
    child.start()
    assert child.process is not None
    child.process.wait()
    with pytest.raises(AssertionError, match=r"(?s)ended by itself with 3.*last words"):
        child.check()
