"""A command in a terminal session of its own: keys that are pressed there, and what it shows.

The command leads a session whose controlling terminal is a pty, so the kernel does with Ctrl-C and with a terminal that
goes away what it does for a person: it signals every process of the foreground group.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyte

CTRL_C: Final = b"\x03"
WAIT_TIMEOUT_S: Final = 150.0

# Takes its standard input as the controlling terminal, and becomes the command. What `nohup` and a shell's `&` ignore
# counts again.
_TAKE_TERMINAL: Final = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def screen(shown: bytes, *, columns: int = 80, lines: int = 1000) -> list[str]:
    """Return what a person sees after `shown`: lines without trailing spaces, with nothing that was cleared since."""
    display = pyte.Screen(columns, lines)
    pyte.ByteStream(display).feed(shown)
    return "\n".join(line.rstrip() for line in display.display).rstrip().split("\n")


class Terminal:
    """Runs one command; what it shows is written to a file until the terminal hangs up."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], shown: Path, *, columns: int = 80, lines: int = 24
    ) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        try:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                [sys.executable, "-c", _TAKE_TERMINAL, *command],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                text=True,
                env=dict(environment),
                start_new_session=True,
            )
        finally:
            os.close(slave)
        self._hangs_up, self._end = os.pipe()
        shown.touch()
        self._reader = threading.Thread(target=self._copy, args=(shown,), daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def hang_up(self) -> None:
        """Close the terminal, as a window or a connection is closed. Twice is no error."""
        if self._reader.is_alive() or self._master >= 0:
            os.write(self._end, b"x")
            self._reader.join()  # the kernel keeps a terminal open while somebody reads it
            for fd in (self._master, self._hangs_up, self._end):
                os.close(fd)
            self._master = -1

    def _copy(self, shown: Path) -> None:
        with shown.open("ab", buffering=0) as file:
            while True:
                ready, _, _ = select.select([self._master, self._hangs_up], [], [])
                if self._hangs_up in ready:
                    return
                try:
                    piece = os.read(self._master, 65_536)
                except OSError:  # nobody has the other side open any more
                    return
                file.write(piece)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s, f"waited for {what}"
        time.sleep(0.02)


class Shown:
    """A command at a terminal, and what that shows."""

    def __init__(self, terminal: Terminal, file: Path, columns: int) -> None:
        self.terminal = terminal
        self._file = file
        self._columns = columns

    @property
    def raw(self) -> bytes:
        return self._file.read_bytes()

    @property
    def lines(self) -> list[str]:
        return screen(self.raw, columns=self._columns)

    def sees(self, text: str) -> None:
        def is_there() -> bool:
            return text.encode() in self.raw

        wait_for(is_there, f"{text!r} among {self.raw!r}")

    def ends(self) -> tuple[int, list[str]]:
        """Return the exit code and the screen. Fails with all that was shown, and stacks of Python, if it stays."""
        try:
            code = self.terminal.process.wait(WAIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.terminal.process.send_signal(signal.SIGABRT)  # makes Python write its stacks
            self.terminal.process.wait()
            self._wait_for_reader()
            shown = self.raw.decode(errors="replace")
            raise AssertionError(f"the command did not end in {WAIT_TIMEOUT_S:g} s; it showed\n{shown}") from None
        self._wait_for_reader()
        return code, self.lines

    def _wait_for_reader(self) -> None:
        size = -1
        while size != (size := len(self.raw)):  # the reader of the terminal may be behind
            time.sleep(0.2)


@contextmanager
def at_terminal(
    folder: Path, *arguments: str, columns: int = 80, environment: Mapping[str, str] | None = None
) -> Iterator[Shown]:
    file = folder / "shown"
    variables = {**os.environ, "TERM": "xterm", "PYTHONFAULTHANDLER": "1", **(environment or {})}
    variables.pop("COLUMNS", None)
    with Terminal([sys.executable, *arguments], variables, file, columns=columns) as terminal:
        try:
            yield Shown(terminal, file, columns)
        finally:
            if terminal.process.poll() is None:
                terminal.process.kill()
            terminal.process.wait()
