"""The judge of readers finds each flaw, and none in a sound read."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from keyfold.log.record import Record
from tests.support.logs import records
from tests.support.reader_proof import (
    Flaw,
    History,
    fold,
    lag_flaws,
    latest_flaws,
    ordered_flaws,
    prefix_flaws,
    sequence_flaws,
)

TEXT = "a=0 b=1 a=2 =3 c=4 a=5 b= d=7"
READ = records("_ _ _ =3 c=4 a=5 b= d=7")
"""The same, cleaned up to its end."""


@pytest.fixture
def history() -> History:
    """Commits end at 2, 4, 6 and 8."""
    found, written = History(), records(TEXT)
    for start in range(0, 8, 2):
        found.write(written[start : start + 2], start + 2, float(start))
    return found


def kinds(flaws: list[Flaw]) -> set[str]:
    return {flaw.kind for flaw in flaws}


def ordered(history: History, found: list[Record], *, begin: int = 8, dense_from: int = 8) -> set[str]:
    return kinds(ordered_flaws(history, found, begin=begin, end=8, dense_from=dense_from))


def test_dense_cleaned_and_purged_reads_are_sound(history: History) -> None:
    assert ordered(history, records(TEXT)) == set()
    assert ordered(history, READ) == set()
    assert ordered(history, [r for r in READ if r.key != b"b"]) == set()


def test_a_read_may_end_at_any_commit_made_meanwhile(history: History) -> None:
    found = records(TEXT)[:6]
    assert ordered(history, found, begin=4) == set()
    assert ordered(history, found, begin=8) == {"lost", "resurrected"}
    assert "lost" in ordered(history, found[:5], begin=4)


BROKEN: dict[str, tuple[Callable[[list[Record]], list[Record]], str]] = {
    "the last record of a key is lost": (lambda r: [x for x in r if x.offset != 5], "lost"),
    "a record without a key is lost": (lambda r: [x for x in r if x.key is not None], "lost"),
    "a record comes twice": (lambda r: [*r[:2], *r[1:]], "doubled"),
    "a record comes twice, later": (lambda r: [*r, r[0]], "doubled"),
    "two change places": (lambda r: [r[1], r[0], *r[2:]], "reordered"),
    "a value is another": (lambda r: [*records("_ _ _ =3 c=4 a=x"), *r[3:]], "invented"),
    "an offset is another": (lambda r: [*records("_ =3"), *r[1:]], "invented"),
    "a deleted key comes back": (lambda r: [*records("_ b=1"), *(x for x in r if x.key != b"b")], "resurrected"),
    "it goes on behind the end": (lambda r: [*r, *records("e=8", start=8)], "invented"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_flaws_of_an_ordered_read_are_found(history: History, name: str) -> None:
    breaking, kind = BROKEN[name]
    assert kind in ordered(history, breaking(READ))


def test_above_the_dirty_point_nothing_may_be_missing(history: History) -> None:
    assert ordered(history, READ, dense_from=3) == set()
    assert ordered(history, READ, dense_from=2) == {"lost"}
    assert ordered(history, [r for r in READ if r.key != b"b"], dense_from=6) == {"lost"}


def test_a_record_missing_in_a_prefix_may_be_superseded_after_the_prefix(history: History) -> None:
    found = [r for r in READ if r.offset < 5]
    assert prefix_flaws(history, found, end=5, horizon=8, dense_from=8) == []
    assert kinds(prefix_flaws(history, found, end=5, horizon=5, dense_from=8)) == {"lost"}
    assert kinds(prefix_flaws(history, found[:-1], end=5, horizon=8, dense_from=8)) == {"lost"}


def test_a_read_from_an_offset_is_judged_from_that_offset(history: History) -> None:
    assert ordered_flaws(history, READ[1:], start=4, begin=8, end=8, dense_from=8) == []
    assert kinds(ordered_flaws(history, READ, start=4, begin=8, end=8, dense_from=8)) == {"invented"}
    assert kinds(ordered_flaws(history, READ[2:], start=4, begin=8, end=8, dense_from=8)) == {"lost"}


def latest(history: History, found: list[Record], begin: int = 0) -> set[str]:
    return kinds(latest_flaws(history, found, begin=begin, end=8))


@pytest.mark.parametrize("end", [0, 2, 4, 6, 8])
def test_the_state_at_each_end_of_a_commit_is_one_that_existed(history: History, end: int) -> None:
    state = list(fold(records(TEXT)[:end]).values())
    assert latest(history, state) == set()
    assert latest(history, state, begin=end) == set()
    if 0 < end < 8:
        assert latest(history, state, begin=end + 2) == {"never existed"}


def test_states_that_never_existed_are_found(history: History) -> None:
    assert latest(history, list(fold(records(TEXT)[:5]).values())) == {"never existed"}  # inside a commit
    whole = list(fold(records(TEXT)).values())
    assert latest(history, whole[1:]) == {"never existed"}
    assert latest(history, [*records("_ b=1"), *whole]) == {"never existed"}  # deleted before d was written
    assert latest(history, [*whole, *records(TEXT)[:1]]) == {"doubled"}
    assert latest(history, [*whole, whole[0]]) == {"doubled"}
    assert latest(history, [*whole, *records("_ _ _ =3")]) == {"doubled"}
    assert latest(history, [*whole[:-1], *records("d=8", start=7)]) == {"invented"}


def test_the_order_of_records_is_checked_if_there_is_one() -> None:
    history = History()
    history.write(records(TEXT), 8, 0.0)
    assert sequence_flaws(history, READ) == []
    assert kinds(sequence_flaws(history, READ[::-1])) == {"reordered"}


def test_a_reader_that_passes_a_record_in_time_must_have_returned_it(history: History) -> None:
    # Written at 0.0, 0.0, 2.0, 2.0, ...; the record of offset 2 is passed with that of offset 3.
    seen = [(record, 0.5 + record.offset) for record in records(TEXT)]
    assert lag_flaws(history, seen, end=8, ended_s=9.0, lag_s=2.0) == []
    missed = seen[:2] + seen[3:]
    assert kinds(lag_flaws(history, missed, end=8, ended_s=9.0, lag_s=2.0)) == {"lost"}
    assert lag_flaws(history, missed, end=8, ended_s=9.0, lag_s=1.4) == []
    assert kinds(lag_flaws(history, seen[:-1], end=8, ended_s=7.0, lag_s=2.0)) == {"lost"}
    assert lag_flaws(history, seen[:-1], end=7, ended_s=7.0, lag_s=2.0) == []


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(20))
def test_the_result_of_a_correct_cleaner_is_sound_and_one_record_less_is_not(seed: int) -> None:
    random = Random(seed)
    words = [f"{random.choice('abcd')}={random.choice(('', '', str(n)))}" for n in range(60)]
    history, written = History(), records(" ".join(words))
    for start in range(0, 60, 5):
        history.write(written[start : start + 5], start + 5, 0.0)
    clean = random.randrange(61)
    last = {r.key: r.offset for r in written[:clean]}
    left = [r for r in written if r.offset >= clean or last[r.key] == r.offset]
    assert ordered_flaws(history, left, begin=60, end=60, dense_from=clean) == []
    needed = {r.key: r for r in written}
    for at, record in enumerate(left):
        flaws = ordered_flaws(history, left[:at] + left[at + 1 :], begin=60, end=60, dense_from=clean)
        may_go = record.offset < clean and (record != needed[record.key] or record.value is None)
        older = record.value is None and record == needed[record.key] and any(r.key == record.key for r in left[:at])
        assert bool(flaws) is (not may_go or older)
