"""The console of output that changes in place: progress bars and views.

The cursor stays visible, because SIGKILL and a second Ctrl-C leave no time to show it again.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console


class LiveConsole(Console):
    """A console that leaves the cursor visible, on standard error or standard output."""

    def __init__(self, *, is_stderr: bool = True) -> None:
        super().__init__(stderr=is_stderr)

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - as rich has it
        """Do nothing."""
        return False


def can_show_live(*, is_stderr: bool = True) -> bool:
    """Return whether standard error or standard output is a terminal that can move its cursor."""
    stream = sys.stderr if is_stderr else sys.stdout
    return stream.isatty() and os.environ.get("TERM", "") not in {"dumb", "unknown"}
