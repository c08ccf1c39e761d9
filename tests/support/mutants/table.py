"""What came of all mutants: a line for each, and the sums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from tests.support.mutants.trial import Outcome, TrialResult

FIRST_TIER_SHARE: Final = 0.9
"""What the first tier has to catch of all mutants."""

_BEGIN: Final = "<!-- mutants: written by `make mutants ARGS=--docs` -->\n"
_END: Final = "<!-- end of mutants -->\n"


def line(result: TrialResult, width: int = 0) -> str:
    """One mutant."""
    what = result.tier if result.outcome is Outcome.CAUGHT else result.outcome
    return f"{result.mutant:{width}}  {what:10}  {result.seconds:7.1f} s  {result.test}"


def table(results: Sequence[TrialResult]) -> str:
    """All mutants by name, and below them how many of each area were caught by which tier."""
    width = max((len(result.mutant) for result in results), default=0)
    lines = [line(result, width) for result in sorted(results, key=lambda result: result.mutant)]
    areas = Counter(result.mutant.partition("/")[0] for result in results)
    lines.append("")
    for area, count in sorted(areas.items()):
        of_area = [result for result in results if result.mutant.startswith(f"{area}/")]
        lines.append(f"{area:12} {count:3} planted: {_sums(of_area)}")
    lines.append(f"{'all':12} {len(results):3} planted: {_sums(results)}")
    return "\n".join(lines)


def _sums(results: Iterable[TrialResult]) -> str:
    found = Counter(
        f"caught by {result.tier}" if result.outcome is Outcome.CAUGHT else str(result.outcome) for result in results
    )
    return ", ".join(f"{count} {what}" for what, count in sorted(found.items(), key=lambda pair: -pair[1]))


def as_json(results: Sequence[TrialResult]) -> str:
    """The same for a program."""
    found = sorted(results, key=lambda result: result.mutant)
    return json.dumps([asdict(result) for result in found], indent=1) + "\n"


def as_markdown(results: Sequence[TrialResult]) -> str:
    """The same for `docs/testing.md`: how many of each area, and the test that caught each."""
    rows = ["| area | mutants | caught by |", "| --- | --- | --- |"]
    areas = Counter(result.mutant.partition("/")[0] for result in results)
    for area, count in sorted(areas.items()):
        of_area = [result for result in results if result.mutant.startswith(f"{area}/")]
        rows.append(f"| {area} | {count} | {_sums(of_area).replace('caught by ', '')} |")
    rows += [f"| all | {len(results)} | {_sums(results).replace('caught by ', '')} |", ""]
    rows += ["| mutant | caught by | test |", "| --- | --- | --- |"]
    for result in sorted(results, key=lambda result: result.mutant):
        test = result.test.partition("[")[0].removeprefix("tests/")
        what = result.tier if result.outcome is Outcome.CAUGHT else str(result.outcome)
        rows.append(f"| {result.mutant} | {what} | {f'`{test}`' if test else ''} |")
    return "\n".join(rows) + "\n"


def into_page(page: str, results: Sequence[TrialResult]) -> str:
    """Return the page with this table between its two marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page has no `{_BEGIN.strip()}` and `{_END.strip()}`")
    return f"{before}{begin}\n{as_markdown(results)}\n{end}{after}"


def complaints(results: Sequence[TrialResult], first_tier: str) -> list[str]:
    """Why the tests are not good enough; nothing where they are."""
    found = [
        f"{result.mutant}: {result.outcome}" + (f" ({result.test})" if result.test else "")
        for result in results
        if result.outcome is not Outcome.CAUGHT
    ]
    by_first = sum(result.outcome is Outcome.CAUGHT and result.tier == first_tier for result in results)
    if by_first < FIRST_TIER_SHARE * len(results):
        found.append(f"`make {first_tier}` catches {by_first} of {len(results)}, less than nine in ten")
    return found
