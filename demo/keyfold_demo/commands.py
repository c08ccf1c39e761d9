"""Run `keyfold` and other programs as a person would, each a process of its own that leaves nothing behind.

A command gets a session of its own: Ctrl-C is for whoever tells the story, and he ends the whole group, the JVM that a
Spark job starts included. Its output goes to files, so that the end of it can be shown when it fails.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold_demo.children import death_with_parent

_LOOK_EVERY_S: Final = 0.25
GROUP_RETRY_TIMEOUT_S: Final = 10.0
_TAIL_LINES: Final = 25

Watch = Callable[[], None]
"""Called a few times a second while a command runs."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command answered. `seconds` is its wall time."""

    exit_code: int
    out: str
    err: str
    seconds: float


class Commands:
    """Starts programs in `folder`, with `environment` on top of ours. Call from the main thread only.

    A program's processes have `retry_timeout_s` to end after SIGTERM, before they get SIGKILL.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, retry_timeout_s: float = GROUP_RETRY_TIMEOUT_S
    ) -> None:
        self._folder = folder
        self._retry_timeout_s = retry_timeout_s
        self._environment = {**os.environ, **environment}
        self._count = 0

    def keyfold(self, *arguments: str, watch: Watch = lambda: None, may_fail: bool = False) -> Finished:
        """Run `keyfold <arguments>` with this interpreter. Raises `KeyfoldError` where it fails."""
        name = " ".join(("keyfold", *arguments))
        return self.run(name, [sys.executable, "-m", "keyfold.cli", *arguments], watch=watch, may_fail=may_fail)

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        stdin: str = "",
        watch: Watch = lambda: None,
        may_fail: bool = False,
    ) -> Finished:
        """Run to the end. Raises `KeyfoldError` with the end of its output where the exit code is not 0."""
        running = self.start(command, stdin=stdin)
        finished = running.wait(watch)
        if finished.exit_code != 0 and not may_fail:
            tail = "\n".join((finished.out + finished.err).strip().splitlines()[-_TAIL_LINES:])
            raise KeyfoldError(f"`{name}` ended with exit code {finished.exit_code}:\n{tail}")
        return finished

    def start(self, command: Sequence[str], *, stdin: str = "") -> Running:
        """Start the command without waiting; `wait` or `end` it."""
        self._count += 1
        base = self._folder / f"command-{self._count}"
        base.with_suffix(".in").write_text(stdin)
        with (
            base.with_suffix(".in").open("rb") as in_file,
            base.with_suffix(".out").open("wb") as out_file,
            base.with_suffix(".err").open("wb") as err_file,
        ):
            process = subprocess.Popen(
                [*death_with_parent(), *command],
                stdin=in_file,
                stdout=out_file,
                stderr=err_file,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
        return Running(process, base, self._retry_timeout_s)


class Running:
    """A command on its way."""

    def __init__(self, process: subprocess.Popen[bytes], base: Path, retry_timeout_s: float) -> None:
        self._process = process
        self._retry_timeout_s = retry_timeout_s
        self._base = base
        self._started_s = time.monotonic()

    def wait(self, watch: Watch = lambda: None) -> Finished:
        """Its answer. When we are interrupted, the whole group is ended first."""
        try:
            while True:
                try:
                    code = self._process.wait(_LOOK_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    watch()
        finally:
            self.end()
        seconds = time.monotonic() - self._started_s
        out, err = (self._base.with_suffix(end).read_text(errors="replace") for end in (".out", ".err"))
        return Finished(code, out, err, seconds)

    def end(self) -> None:
        """SIGTERM to the whole group, SIGKILL later to what is left of it. Ending twice is no error."""
        group = self._process.pid
        _signal_group(group, signal.SIGTERM)
        deadline = time.monotonic() + self._retry_timeout_s
        while _is_alive(group) and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(0.02)
        _signal_group(group, signal.SIGKILL)
        self._process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        return


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def shown(*arguments: str) -> str:
    """A command line as a person would type it."""
    return shlex.join(("keyfold", *arguments))
