"""`make mutants`: try every mutant, and print which test of which tier caught it. Survivors make the exit code 1."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.support.mutants import ROOT, table
from tests.support.mutants.choice import KINDS, stages
from tests.support.mutants.mutant import Mutant, MutantError, load
from tests.support.mutants.recording import Recording, newest, record
from tests.support.mutants.tree import Tree
from tests.support.mutants.trial import COMMANDS, Known, Outcome, Trial, TrialResult
from tests.support.tiers import Tier

_PAGE: Final = ROOT / "docs" / "testing.md"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these mutants; * is a wildcard")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    parser.add_argument(
        "--record", action="store_true", help="first run all tests under coverage, keep what they reach, and print it"
    )
    parser.add_argument("--record-only", action="store_true", help="do that, and try no mutant")
    parser.add_argument("--kinds", default=",".join(KINDS), help="folders of tests to choose from (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time (%(default)s)")
    parser.add_argument("--minutes", type=float, default=15.0, help="at most for one mutant (%(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table for programs")
    parser.add_argument("--docs", action="store_true", help="also write the table into docs/testing.md")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "mutants", help="where recordings are kept")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="keep what pytest says, a file for each mutant")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 where a mutant was not caught, 2 where one cannot be tried."""
    asked = _parser().parse_args(arguments)
    try:
        mutants = [mutant for mutant in load() if not asked.only or _is_any(mutant.name, asked.only)]
        for mutant in mutants:
            mutant.applied(mutant.path().read_text(encoding="utf-8"))
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    if asked.list:
        print("\n".join(f"{mutant.name}: {mutant.mistake}" for mutant in mutants))
        return 0
    if not mutants or (asked.docs and asked.only):
        wrong = "--docs writes the table of all mutants; leave --only out" if mutants else "there is no such mutant"
        print(f"{wrong}; --list prints them", file=sys.stderr)
        return 2
    if asked.record or asked.record_only:
        record(asked.cache, ["-n", str(asked.workers), "--dist", "loadfile", "--no-loadscope-reorder"])
    return 0 if asked.record_only else _judged(mutants, asked)


def _judged(mutants: Sequence[Mutant], asked: argparse.Namespace) -> int:
    """Try the mutants, and print and write the table; the exit code."""
    results = _tried(mutants, _recording(asked.cache), asked)
    print("\n" + table.table(results))
    if asked.json is not None:
        asked.json.write_text(table.as_json(results), encoding="utf-8")
    if asked.docs:
        _PAGE.write_text(table.into_page(_PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    complaints = table.complaints(results, COMMANDS[Tier.TEST])
    if complaints:
        print("\n" + "\n".join(complaints), file=sys.stderr)
    return 1 if complaints else 0


def _recording(folder: Path) -> Recording | None:
    found = newest(folder)
    if found is None:
        print(f"nothing is recorded in {folder}, so tests are chosen by imports; --record records first")
    else:
        print(f"tests are chosen by what was recorded of commit {found.commit[:10]}")
    return found


def _tried(mutants: Sequence[Mutant], recording: Recording | None, asked: argparse.Namespace) -> list[TrialResult]:
    kinds = frozenset(asked.kinds.split(","))
    chosen = {mutant.name: stages(mutant, recording, kinds) for mutant in mutants}
    known = Known()
    width = max(len(mutant.name) for mutant in mutants)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfold-mutants-")))
        logs: Path = asked.log or work / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(min(asked.workers, len(mutants))):
            trees.put(Tree(work / f"tree-{number}"))

        def tried(mutant: Mutant) -> TrialResult:
            tree = trees.get()
            try:
                log = logs / f"{mutant.name.replace('/', '-')}.log"
                result = Trial(mutant, tree, known, asked.minutes * 60, log).run(chosen[mutant.name])
            finally:
                trees.put(tree)
            print(table.line(result, width), flush=True)
            return result

        with ThreadPoolExecutor(asked.workers) as pool:
            results = list(pool.map(tried, mutants))
        for result in results:
            if result.outcome is Outcome.UNFINISHED and asked.log is None:
                name = result.mutant.replace("/", "-")
                print(f"\n== {result.mutant}\n{(logs / f'{name}.log').read_text(errors='replace')[-2000:]}")
    return results


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


if __name__ == "__main__":
    sys.exit(main())
