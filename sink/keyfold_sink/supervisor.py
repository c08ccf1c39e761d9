"""`tasks.max` processes, each one member of the consumer group.

The supervisor does nothing but start them, pass on the signal to stop, and report the worst exit code. A task that
failed is not started again (its group gives its partitions to the others; what failed there will fail again); the
others go on. Each task holds the reading end of a pipe from the supervisor: should the supervisor be killed, they see
its end and stop as they do on a signal.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import structlog

from keyfold.clock import Clock
from keyfold.errors import KeyfoldError

_POLL_S = 0.1


class TasksFailed(KeyfoldError):
    """At least one task ended with an error; each has said its own."""


def supervise(arguments: Sequence[str], tasks: int, *, stop: threading.Event, clock: Clock) -> None:
    """Run `keyfold sink run <arguments> --task N` for each task until all have ended. Raises `TasksFailed`."""
    command = [sys.executable, "-m", "keyfold_sink", "run", *arguments, "--task"]
    processes = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE)  # noqa: S603 - this very program
        for number in range(tasks)
    ]
    try:
        codes = _wait(processes, stop, clock)
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
    failed = {number: code for number, code in codes.items() if code != 0}
    if failed:
        ended = ", ".join(f"task {number}: {_words(code)}" for number, code in sorted(failed.items()))
        raise TasksFailed(f"{len(failed)} of {tasks} tasks failed ({ended})", hint="see their messages above")


def _wait(processes: list[subprocess.Popen[bytes]], stop: threading.Event, clock: Clock) -> dict[int, int]:
    codes: dict[int, int] = {}
    told = False
    while len(codes) < len(processes):
        if stop.is_set() and not told:
            told = True
            for number, process in enumerate(processes):
                if number not in codes:
                    process.send_signal(signal.SIGTERM)
        for number, process in enumerate(processes):
            code = process.poll()
            if told and code == -signal.SIGTERM:
                code = 0  # it was told to stop before it could listen: nothing was begun
            if code is not None and number not in codes:
                codes[number] = code
                if code != 0:
                    structlog.get_logger("keyfold.sink").error("task failed", task=number, end=_words(code))
        clock.sleep(_POLL_S)
    return codes


def _words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
