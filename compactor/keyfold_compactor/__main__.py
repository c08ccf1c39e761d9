"""`spark-submit .../keyfold_compactor/__main__.py run CONFIG --once`, or `python -m keyfold_compactor`."""

from __future__ import annotations

import sys

from keyfold.cli.app import run


def task() -> None:
    """Return on success, else exit the process with an exit code.

    Some runners, such as Databricks' wheel tasks, call a function and treat every `SystemExit` as a failure.
    """
    code = run(["compact", *sys.argv[1:]])
    if code:
        sys.exit(code)


if __name__ == "__main__":
    task()
