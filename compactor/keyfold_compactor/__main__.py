"""`spark-submit .../keyfold_compactor/__main__.py run CONFIG --once`, or `python -m keyfold_compactor`."""

from __future__ import annotations

import sys

from keyfold.cli.app import run


def task() -> None:
    """Return when all is well, leave the process with an exit code else.

    For runners that call a function and take every `SystemExit` for a failure, as Databricks' wheel tasks may.
    """
    code = run(["compact", *sys.argv[1:]])
    if code:
        sys.exit(code)


if __name__ == "__main__":
    task()
