"""The command `keyfold` in the process of a test, for tests in which a process of its own plays no part.

    done = here("compact", "run", path, "--once")       as `subprocess.run` gives it

A process costs a second for its imports, and its Spark ten. The compactor finds the Spark of the fixture `spark`.
"""

from __future__ import annotations

import io
import signal
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from keyfold.cli.app import run
from keyfold.cli.context import CliContext, open_by_url
from keyfold.runtime.clock import SystemClock


def here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `keyfold ...`. Handlers of signals are afterwards as they were."""
    words = list(map(str, arguments))
    out, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            code = run(words, CliContext(open_by_url, SystemClock(), Random()))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())
