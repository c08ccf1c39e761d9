"""What Spark's JVM prints: every error, but not the lines that it prints at every start.

The JVM gets a pipe for its standard output and standard error, so that it can garble neither a progress line nor a
report. A thread reads the pipe, and passes on what is not noise (`is_noise`). If the start of Spark fails, `failed`
returns the lines for the error.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import Final

from keyfold.runtime.terminal import echo

FAILED_LINES: Final = 20
"""An error shows this many lines: the last ones, which have the cause."""
LAST_LINES_S: Final = 2.0

# What the launcher, the JVM, log4j and Ivy print at every start. None of it needs an action.
_NOISE: Final = re.compile(
    r"WARNING: (Using incubator modules|A (restricted|terminally deprecated) method in |sun\.misc\.Unsafe::|"
    r"java\.lang\.System::|Restricted methods will be blocked|Use --enable-native-access|Please consider reporting)"
    r"|(WARNING: )?Picked up (_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS)"
    r"|Using Spark's default log4j profile|Setting (default|Spark) log level to |To adjust logging level use "
    r"|.* WARN (NativeCodeLoader|Utils: (Your hostname|Set SPARK_LOCAL_IP))"
    r"|:: |Ivy Default Cache set to|The jars for packages stored in|\t(confs: |found |\[|-{5,}|\|)"
    r"|.* added as a dependency$|\s*$"
)
# log4j's format in Spark's default profile, below ERROR.
_BELOW_ERROR: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|INFO|DEBUG|TRACE) ")
_FRAME: Final = re.compile(r"\s+at .*\)$|\s+\.\.\. \d+ more$")


class JvmOutput:
    """The lines that one JVM prints. They are held back while it starts.

    `is_quiet`: hold them back until Spark has started, too, and drop what log4j prints below ERROR until then. That is
    for a local Spark of ours: it logs errors only, but the level applies after its context has started. The start on a
    cluster may wait for the cluster, and says for what.
    """

    def __init__(self, say: Callable[[str], None], *, is_quiet: bool) -> None:
        self._say = say
        self._is_quiet = is_quiet
        self._lock = threading.Lock()
        self._held: list[str] | None = []
        self._read_fd, self.write_fd = os.pipe()
        self._reader = threading.Thread(target=self._read, name="keyfold-jvm-output", daemon=True)
        self._reader.start()

    def launched(self) -> None:
        """Pass on what comes, unless this is a quiet start. The JVM is there."""
        self._close()
        if not self._is_quiet:
            self._pass_on()

    def started(self) -> None:
        """Pass on what comes. Spark is there."""
        self._close()
        self._pass_on()

    def failed(self) -> Sequence[str]:
        """Return the last lines that were held back, without noise and without the frames of stack traces."""
        self._close()
        self._reader.join(LAST_LINES_S)  # until the JVM's end
        with self._lock:
            held, self._held = self._held or [], None
        lines = [line for line in held if not is_noise(line) and not _FRAME.match(line)]
        return lines[-FAILED_LINES:]

    def _close(self) -> None:
        """Close this process's copy of the pipe's other end, so that the pipe ends with the JVM."""
        fd, self.write_fd = self.write_fd, -1
        if fd >= 0:
            os.close(fd)

    def _pass_on(self) -> None:
        with self._lock:
            held, self._held = self._held or [], None
            for line in held:
                if not is_noise(line) and not (self._is_quiet and _BELOW_ERROR.match(line)):
                    self._say(line)

    def _read(self) -> None:
        with os.fdopen(self._read_fd, encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                self._take(line.rstrip("\r\n"))

    def _take(self, line: str) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(line)
            elif not is_noise(line):
                self._say(line)


def echo_error(line: str) -> None:
    """Print a line to standard error."""
    echo(line, err=True)


def is_noise(line: str) -> bool:
    """Whether a line is printed at every start, whatever happens."""
    return bool(_NOISE.match(line))
