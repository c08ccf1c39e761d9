"""The view of `keyfold sink status --watch`: in place at a terminal, otherwise one status after the other."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.text import Text

from keyfold.runtime.live_console import LiveConsole, can_show_live
from keyfold.runtime.terminal import echo, escaped


class StatusView(AbstractContextManager["StatusView"]):
    """Show one status after the other on standard output."""

    def __init__(self, *, is_plain: bool) -> None:
        """Prepare the view. With `is_plain` it never changes in place."""
        console = LiveConsole(is_stderr=False)
        self._is_live = not is_plain and can_show_live(is_stderr=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._live.stop()

    def show(self, lines: Iterable[str]) -> None:
        """Show a status in place of the last one."""
        if self._is_live:
            self._live.update(Text("\n".join(map(escaped, lines)), no_wrap=True, overflow="ellipsis"), refresh=True)
            return
        for line in lines:
            echo(line)

    def show_error(self, message: str) -> None:
        """Show that there is no status now."""
        if self._is_live:
            self.show([f"error: {message}"])
        else:
            echo(f"error: {message}", err=True)
