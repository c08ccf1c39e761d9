"""Many cases in a process that is ended when it grows by 512 MiB or does not come back.

A finding is written as a file, and said together with the command that repeats it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.bounded import Bounded
from tests.support.fuzz.cases import Finding, make_case, run_cases
from tests.support.fuzz.targets import TARGETS

BATCH_S: Final = 5.0
_FINDINGS_MAX: Final = 20


@dataclass(slots=True)
class Tally:
    """What was tried of one target. `next_number` is where a further run continues."""

    next_number: int = 0
    accepted: int = 0
    slowest_s: float = 0.0
    slowest_number: int = 0
    findings: list[Finding] = field(default_factory=list)

    def line(self, name: str) -> str:
        """One line about it."""
        return (
            f"{name:22} {self.next_number:9} cases {self.accepted:9} accepted {len(self.findings):3} findings, "
            f"slowest {self.slowest_s:.2f} s (case {self.slowest_number})"
        )


def fuzz_batch(
    bounded: Bounded, name: str, tally: Tally, *, seed: int, folder: Path, count: int = 1 << 40, seconds: float = 1e9
) -> None:
    """Try some more cases of a target. A case that ends the process is a finding as well."""
    at_work = folder / f"{name}.at-work"
    begun_s = time.monotonic()
    end = tally.next_number + count
    while tally.next_number < end and (left_s := seconds - (time.monotonic() - begun_s)) > 0:
        first = tally.next_number
        try:
            batch = bounded.run(run_cases, name, seed, first, end - first, min(left_s, BATCH_S), str(at_work))
        except (AssertionError, EOFError, ConnectionError) as error:  # too large, too slow, or it died
            number = int(at_work.read_text(encoding="ascii")) if at_work.exists() else first
            data = make_case(TARGETS[name], seed, number)
            _keep(
                tally, Finding(name, seed, number, f"the process ended: {error or type(error).__name__}", data), folder
            )
            tally.next_number = number + 1
            bounded.end()
            continue
        tally.next_number = batch.next_number
        tally.accepted += batch.accepted
        if batch.slowest_s > tally.slowest_s:
            tally.slowest_s, tally.slowest_number = batch.slowest_s, batch.slowest_number
        for finding in batch.findings:
            _keep(tally, finding, folder)
        if len(tally.findings) >= _FINDINGS_MAX:
            return


def _keep(tally: Tally, finding: Finding, folder: Path) -> None:
    path = folder / f"{finding.target}-{finding.seed}-{finding.number}"
    path.write_bytes(finding.data)
    tally.findings.append(finding)
    print(told(finding, path), flush=True)


def told(finding: Finding, path: Path | None = None) -> str:
    """The text of a finding."""
    again = f"python -m tests.support.fuzz {finding.target} --seed {finding.seed} --case {finding.number}"
    kept = (
        ""
        if path is None
        else f"\n  the same from its bytes: python -m tests.support.fuzz {finding.target} --file {path}"
    )
    return f"{finding.target}, case {finding.number}: {finding.error}\n  repeat: {again}{kept}"
