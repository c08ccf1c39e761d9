"""Repeat one case, or run some.

python -m tests.support.fuzz                                      the targets, and their seeds
python -m tests.support.fuzz manifest --seed 1 --case 17          one case, in this process
python -m tests.support.fuzz manifest --file found                the bytes of a file
python -m tests.support.fuzz manifest --seed 1 --seconds 60       as many as there is time for, in a bounded process
python -m tests.support.fuzz all --seed 1 --seconds 5
python -m tests.support.fuzz all --reach 200                      the lines that 200 cases of each target reach
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.bounded import Bounded
from tests.support.fuzz.bounded_run import Tally, fuzz_batch, told
from tests.support.fuzz.cases import Finding, judge, make_case
from tests.support.fuzz.reach import reached
from tests.support.fuzz.targets import TARGETS


def main() -> int:
    """Return 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz")
    parser.add_argument("target", nargs="?", choices=["all", *TARGETS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--reach", type=int)
    asked = parser.parse_args()
    if asked.target is None:
        for target in TARGETS.values():
            print(f"{target.name:16} {len(target.seeds):3} seeds  {', '.join(target.reads)}")
        return 0
    names = list(TARGETS) if asked.target == "all" else [asked.target]
    if asked.reach:
        for line in reached(names, asked.seed, asked.reach):
            print(line)
        return 0
    if asked.case is not None or asked.file is not None:
        return _once(names[0], asked.seed, asked.case, asked.file)
    folder = Path(tempfile.mkdtemp(prefix="keyfold-fuzz-"))
    found = 0
    with Bounded() as bounded:
        for name in names:
            tally = Tally()
            fuzz_batch(bounded, name, tally, seed=asked.seed, folder=folder, seconds=asked.seconds)
            print(tally.line(name), flush=True)
            found += len(tally.findings)
    return 1 if found else 0


def _once(name: str, seed: int, number: int | None, file: Path | None) -> int:
    target = TARGETS[name]
    data = file.read_bytes() if file is not None else make_case(target, seed, number or 0)
    print(f"{len(data)} bytes: {data[:2000]!r}")
    is_accepted, wrong = judge(target, data)
    print(
        "accepted"
        if is_accepted
        else told(Finding(name, seed, number or 0, wrong, data))
        if wrong
        else "refused, as it may be"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
