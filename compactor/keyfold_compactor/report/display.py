"""What `keyfold compact run` shows on standard error while it works.

    TerminalDisplay    the current stage, with a bar or a clock. It is cleared before anything else is printed
    LoggedDisplay      events of the log: the start and the result of each run, and progress now and then

A terminal that cannot move its cursor (`TERM=dumb`) and `--json` get the events.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Final, Protocol

import structlog
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from keyfold.runtime.clock import Clock
from keyfold.runtime.live_console import LiveConsole, can_show_live
from keyfold.runtime.terminal import echo, escaped
from keyfold_compactor.report.progress import LoggedProgress, LoggedRuns, RunProgress
from keyfold_compactor.report.report import RunObserver

STOP_SEEN_WITHIN_S: Final = 0.1
WAITING: Final = "waiting"
"""The stage between two runs."""
_BESIDE_THE_BAR: Final = 42
_CLEAR_LINE: Final = b"\r\x1b[2K"

log = structlog.get_logger(__name__)


class RunDisplay(RunProgress, Protocol):
    """Progress of runs, and other lines that must not be mixed with it."""

    def observed(self, observer: RunObserver) -> RunObserver:
        """Return the observer for runs: `observer`, or one that also logs runs."""

    def say(self, line: str) -> None:
        """Print a line to standard error. May be called by many threads."""

    def clear(self) -> None:
        """Clear the terminal's line for output. The next stage shows it again."""

    def stopping(self) -> None:
        """The process was asked to stop."""

    def end_at_once(self) -> None:
        """The process is about to end by a signal. Called in the signal's handler, so it takes no lock."""


class LoggedDisplay(LoggedProgress):
    """Events of the log."""

    def observed(self, observer: RunObserver) -> RunObserver:
        """See `RunDisplay.observed`."""
        return LoggedRuns(observer)

    def say(self, line: str) -> None:
        """See `RunDisplay.say`."""
        echo(line, err=True)

    def clear(self) -> None:
        """See `RunDisplay.clear`."""

    def stopping(self) -> None:
        """See `RunDisplay.stopping`."""
        log.info("stopping after the current step; the same signal again ends the process at once")

    def end_at_once(self) -> None:
        """See `RunDisplay.end_at_once`."""


class TerminalDisplay:
    """One line on a terminal: the stage, a bar with counted steps or a moving one, and the stage's clock."""

    def __init__(self) -> None:
        console = LiveConsole()
        columns = (
            TextColumn("{task.description:18}", markup=False),
            BarColumn(max(4, min(40, console.width - _BESIDE_THE_BAR))),
            _Steps(),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, console=console, transient=True, redirect_stdout=False)
        self._lock = threading.Lock()
        self._task = self._bar.add_task("", total=None)

    def begin_stage(self, stage: str, total: int) -> None:
        """See `RunProgress.begin_stage`."""
        with self._lock:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(stage, total=total or None)
            self._bar.start()

    def advance(self, count: int = 1) -> None:
        """See `RunProgress.advance`."""
        with self._lock:
            self._bar.advance(self._task, count)

    def observed(self, observer: RunObserver) -> RunObserver:
        """See `RunDisplay.observed`."""
        return observer

    def say(self, line: str) -> None:
        """See `RunDisplay.say`."""
        self._bar.console.print(Text(escaped(line)))

    def clear(self) -> None:
        """See `RunDisplay.clear`."""
        with self._lock:
            self._bar.stop()

    def stopping(self) -> None:
        """See `RunDisplay.stopping`."""
        self.say("stopping after the current step; Ctrl-C again ends at once")

    def end_at_once(self) -> None:
        """See `RunDisplay.end_at_once`."""
        os.write(sys.stderr.fileno(), _CLEAR_LINE + b"ended at once; its leases expire by themselves\r\n")


class _Steps(ProgressColumn):
    """The steps that are done and all steps; nothing for a stage whose steps cannot be counted."""

    def render(self, task: Task) -> Text:
        """Return the column's text."""
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)}")


@contextlib.contextmanager
def run_display(clock: Clock, *, as_json: bool) -> Iterator[RunDisplay]:
    """Yield the display for this process."""
    if as_json or not can_show_live():
        yield LoggedDisplay(clock)
        return
    display = TerminalDisplay()
    display.begin_stage("starting", 0)
    try:
        yield display
    finally:
        display.clear()


@contextlib.contextmanager
def announcing_stop(stop: threading.Event, display: RunDisplay) -> Iterator[None]:
    """Say on the display when `stop` was set."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(STOP_SEEN_WITHIN_S):
            if stop.is_set():
                display.stopping()
                return

    watcher = threading.Thread(target=watch, name="keyfold-stop", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
