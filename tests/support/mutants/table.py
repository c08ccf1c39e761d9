"""What came of all mutants: a line for each, and the sums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from tests.support.mutants.trial import Outcome, Verdict

FIRST_TIER_SHARE: Final = 0.9
"""What the first tier has to catch of all mutants."""

_BEGIN: Final = "<!-- mutants: written by `make mutants ARGS=--docs` -->\n"
_END: Final = "<!-- end of mutants -->\n"


def line(verdict: Verdict, width: int = 0) -> str:
    """One mutant."""
    what = verdict.tier if verdict.outcome is Outcome.CAUGHT else verdict.outcome
    return f"{verdict.mutant:{width}}  {what:10}  {verdict.seconds:7.1f} s  {verdict.test}"


def table(verdicts: Sequence[Verdict]) -> str:
    """All mutants by name, and below them how many of each area were caught by which tier."""
    width = max((len(verdict.mutant) for verdict in verdicts), default=0)
    lines = [line(verdict, width) for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant)]
    areas = Counter(verdict.mutant.partition("/")[0] for verdict in verdicts)
    lines.append("")
    for area, count in sorted(areas.items()):
        of_area = [verdict for verdict in verdicts if verdict.mutant.startswith(f"{area}/")]
        lines.append(f"{area:12} {count:3} mutants: {_sums(of_area)}")
    lines.append(f"{'all':12} {len(verdicts):3} mutants: {_sums(verdicts)}")
    return "\n".join(lines)


def _sums(verdicts: Iterable[Verdict]) -> str:
    found = Counter(
        f"caught by {verdict.tier}" if verdict.outcome is Outcome.CAUGHT else str(verdict.outcome)
        for verdict in verdicts
    )
    return ", ".join(f"{count} {what}" for what, count in sorted(found.items(), key=lambda pair: -pair[1]))


def as_json(verdicts: Sequence[Verdict]) -> str:
    """The same for a program."""
    found = sorted(verdicts, key=lambda verdict: verdict.mutant)
    return json.dumps([asdict(verdict) for verdict in found], indent=1) + "\n"


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """The same for `docs/testing.md`: how many of each area, and the test that caught each."""
    rows = ["| area | mutants | caught by |", "| --- | --- | --- |"]
    areas = Counter(verdict.mutant.partition("/")[0] for verdict in verdicts)
    for area, count in sorted(areas.items()):
        of_area = [verdict for verdict in verdicts if verdict.mutant.startswith(f"{area}/")]
        rows.append(f"| {area} | {count} | {_sums(of_area).replace('caught by ', '')} |")
    rows += [f"| all | {len(verdicts)} | {_sums(verdicts).replace('caught by ', '')} |", ""]
    rows += ["| mutant | caught by | test |", "| --- | --- | --- |"]
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant):
        test = verdict.test.partition("[")[0].removeprefix("tests/")
        what = verdict.tier if verdict.outcome is Outcome.CAUGHT else str(verdict.outcome)
        rows.append(f"| {verdict.mutant} | {what} | {f'`{test}`' if test else ''} |")
    return "\n".join(rows) + "\n"


def into_page(page: str, verdicts: Sequence[Verdict]) -> str:
    """Return the page with this table between its two marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page has no `{_BEGIN.strip()}` and `{_END.strip()}`")
    return f"{before}{begin}\n{as_markdown(verdicts)}\n{end}{after}"


def complaints(verdicts: Sequence[Verdict], first_tier: str) -> list[str]:
    """Why the tests are not good enough; nothing where they are."""
    found = [
        f"{verdict.mutant}: {verdict.outcome}" + (f" ({verdict.test})" if verdict.test else "")
        for verdict in verdicts
        if verdict.outcome is not Outcome.CAUGHT
    ]
    by_first = sum(verdict.outcome is Outcome.CAUGHT and verdict.tier == first_tier for verdict in verdicts)
    if by_first < FIRST_TIER_SHARE * len(verdicts):
        found.append(f"`make {first_tier}` catches {by_first} of {len(verdicts)}, less than nine in ten")
    return found
