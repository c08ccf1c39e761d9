"""A few seconds of fuzzing of every decoder; `tests/soak/test_fuzz.py` runs for an hour."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.bounded import Bounded
from tests.support.fuzz.bounded_run import Tally, fuzz_batch
from tests.support.fuzz.cases import make_case
from tests.support.fuzz.targets import TARGETS
from tests.support.root import ROOT

CASES = 50
SEED = int(os.environ.get("FUZZ_SEED", "1"))
DOC = ROOT / "docs" / "testing.md"


@pytest.fixture(scope="module")
def bounded() -> Iterator[Bounded]:
    with Bounded() as process:
        yield process


@pytest.mark.sharded
@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_refuses_invalid_inputs_with_a_named_error(bounded: Bounded, name: str, tmp_path: Path) -> None:
    tally = Tally()
    fuzz_batch(bounded, name, tally, seed=SEED, folder=tmp_path, count=len(TARGETS[name].seeds) + CASES)
    assert not tally.findings
    assert tally.accepted >= TARGETS[name].made_count


@pytest.mark.sharded
@pytest.mark.parametrize("name", TARGETS)
def test_each_mutator_changes_valid_objects(name: str) -> None:
    target = TARGETS[name]
    valid = target.seeds[: target.made_count]
    for mutator in target.mutators:
        changed = {mutator(data, valid, Random(number)) for number in range(10) for data in valid}
        assert not changed <= set(valid)


@pytest.mark.sharded
@pytest.mark.parametrize("name", TARGETS)
def test_a_case_is_reproduced_by_its_seed_and_number(name: str) -> None:
    numbers = range(len(TARGETS[name].seeds), len(TARGETS[name].seeds) + 20)
    cases = [make_case(TARGETS[name], 1, number) for number in numbers]
    assert cases == [make_case(TARGETS[name], 1, number) for number in numbers]
    assert cases != [make_case(TARGETS[name], 2, number) for number in numbers]


def test_the_documentation_lists_every_target() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert [name for name in TARGETS if f"| `{name}` |" not in text] == []
