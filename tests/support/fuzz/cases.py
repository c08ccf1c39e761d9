"""One case, made from (target, seed, number) alone, and what comes of it; and many of them, one after another."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.support.fuzz.mutate import any_bytes
from tests.support.fuzz.target import Target
from tests.support.fuzz.targets import TARGETS

_TRACE_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """A case whose decoder raised what it must not raise."""

    target: str
    seed: int
    number: int
    error: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of some cases. `next_number` is the first that was not tried."""

    next_number: int
    accepted: int
    slowest_s: float
    slowest_number: int
    findings: tuple[Finding, ...]


def make_case(target: Target, seed: int, number: int) -> bytes:
    """The bytes of a case. The first cases are the seeds as they are."""
    if number < len(target.seeds):
        return target.seeds[number]
    random = Random(f"{target.name}/{seed}/{number}")
    data = random.choice(target.seeds)
    for _ in range(random.choice((1, 1, 2, 3))):
        mutator = random.choice(target.mutators)
        try:
            data = mutator(data, target.seeds, random)
        except Exception:  # noqa: BLE001 - an earlier change has left no structure that this mutator could change
            data = any_bytes(data, target.seeds, random)
    return data


def judge(target: Target, data: bytes, *, must_pass: bool = False) -> tuple[bool, str]:
    """Whether the decoder accepts the bytes, and what is wrong with how it did not."""
    try:
        target.decode(data)
    except target.allowed as error:
        return False, f"a valid object is refused: {error}" if must_pass else ""
    except Exception:  # noqa: BLE001 - any other error is what is looked for
        return False, "\n".join(traceback.format_exc().splitlines()[-_TRACE_LINES:])
    return True, ""


def run_cases(name: str, seed: int, first: int, count: int, seconds: float, at_work: str) -> Batch:
    """Try the cases from `first` on: `count` of them, and none any more after `seconds`.

    The number of the case that is being tried stands in the file `at_work`: who ends this process knows it then.
    """
    target = TARGETS[name]
    until_s = time.monotonic() + seconds
    accepted = 0
    slowest = (0.0, first)
    findings: list[Finding] = []
    number = first
    with Path(at_work).open("w", encoding="ascii") as file:
        while number < first + count and (number == first or time.monotonic() < until_s):
            file.seek(0)
            file.write(f"{number:20d}")
            file.flush()
            data = make_case(target, seed, number)
            begun_s = time.monotonic()
            is_accepted, wrong = judge(target, data, must_pass=number < target.made_count)
            slowest = max(slowest, (time.monotonic() - begun_s, number))
            accepted += is_accepted
            if wrong:
                findings.append(Finding(name, seed, number, wrong, data))
            number += 1
    return Batch(number, accepted, *slowest, tuple(findings))
