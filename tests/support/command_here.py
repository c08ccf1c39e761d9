"""The command `keyfold` in this process: for tests in which neither the process nor its signals are under test.

A process costs a second of CPU for its imports alone. All but that is the same: arguments, configuration, environment,
log events, standard output and exit code are those of the command.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from random import Random
from typing import Final
from unittest.mock import patch

from keyfold.cli.app import run
from keyfold.config.options import read_config
from keyfold.errors import KeyfoldError
from keyfold.runtime import event_log
from keyfold.runtime.clock import Clock
from keyfold_sink.config.examine import options_of
from keyfold_sink.status import RunState, TaskStatus
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.run import run_task

# `keyfold.runtime.process_memory` leaves alone what the operator has set. This process goes on to run other tests.
_ALLOCATORS: Final = {"MALLOC_ARENA_MAX": "8", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code of a command, and what it wrote."""

    code: int
    out: str
    err: str


def run_here(environment: Mapping[str, str], *arguments: str) -> Ended:
    """Run `keyfold ARGUMENTS`. The caller is the main thread, because commands handle signals."""
    out, err = StringIO(), StringIO()
    with _process_as_found(environment), redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    return Ended(code, out.getvalue(), err.getvalue())


def run_task_here(environment: Mapping[str, str], config: Path, clock: Clock) -> Ended:
    """Run the task of `keyfold sink run CONFIG` until it fails; without REST, its worker would end then too."""
    err, stop = StringIO(), threading.Event()

    def stop_a_failed_one(status: TaskStatus) -> None:
        if status.state is RunState.FAILED:
            stop.set()

    with _process_as_found(environment):
        event_log.configure(json=True, stream=err)
        options, reporter = options_of(read_config(config)), StatusReporter(0, clock, stop_a_failed_one, interval_s=0.1)
        try:
            run_task(options, stop=stop, until_caught_up=False, clock=clock, random=Random(), reporter=reporter)
        except KeyfoldError as error:
            err.write(f"error: {' '.join(error.message.split())}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
            return Ended(error.exit_code, "", err.getvalue())
    return Ended(0, "", err.getvalue())


@contextmanager
def _process_as_found(environment: Mapping[str, str]) -> Iterator[None]:
    """Undo what a command does to a process that it has for itself: variables, signals, garbage collection."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    thresholds = gc.get_threshold()
    try:
        with patch.dict(os.environ, {**_ALLOCATORS, **environment}):
            yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        for number, handler in handlers.items():
            signal.signal(number, handler)
