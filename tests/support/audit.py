"""`make audit`: look up known vulnerabilities of the versions in constraints.txt.

pip-audit asks the package index or, with `-s osv`, OSV. Neither works offline, and pip-audit reports "No known
vulnerabilities" with exit code 0 for packages that the index said nothing about. So what was answered is counted here:

    0    every package was looked up, and none has a known vulnerability
    1    at least one has
    3    none that was looked up has, but at least one package could not be looked up
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.pins import CONSTRAINTS, ROOT, constraints

CLEAN: Final = 0
VULNERABLE: Final = 1
UNKNOWN: Final = 3


def judge(pinned: set[str], report: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return the exit code for pip-audit's report, and what to print."""
    said = {one["name"]: one for one in report.get("dependencies", []) if "vulns" in one}
    lines = [
        f"{name} {one['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version yet'}"
        for name, one in sorted(said.items())
        for found in one["vulns"]
    ]
    missing = sorted(pinned - set(said))
    if missing:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        lines.append(f"NOT AUDITED: nothing is known about {len(missing)} of {len(pinned)} packages: {names}")
        lines.append(
            "the audit needs a package index that answers about vulnerabilities, or OSV: make audit ARGS='-s osv'"
        )
    if any(one["vulns"] for one in said.values()):
        return VULNERABLE, lines
    return (UNKNOWN, lines) if missing else (CLEAN, [f"no known vulnerability in {len(pinned)} packages"])


def run_pip_audit(arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return pip-audit's report; an empty one where it gave none."""
    program = Path(sys.executable).with_name("pip-audit")
    options = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json"]
    words = [str(program), *options, *arguments, "--requirement", str(CONSTRAINTS)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        report: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError:
        print(f"pip-audit: {(done.stderr.strip().splitlines() or ['no output'])[-1]}", file=sys.stderr)
        return {}
    return report


def main(arguments: Sequence[str]) -> int:
    code, lines = judge({pin.name for pin in constraints()}, run_pip_audit(arguments))
    print("\n".join(lines), file=sys.stdout if code == CLEAN else sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
