"""What a person at a terminal sees while the sink runs: one line that changes."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from keyfold.clock import Clock
from keyfold_sink.partition import Committed


class Progress:
    """Counts commits and shows them on stderr, if that is a terminal."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._records = self._segments = self._size_bytes = 0
        self._partitions: set[tuple[str, int]] = set()
        self._console = Console(stderr=True)
        self._live = Live(self._line(), console=self._console, refresh_per_second=4, transient=True)

    @property
    def is_shown(self) -> bool:
        """Whether somebody is looking."""
        return self._console.is_terminal

    def __enter__(self) -> Self:
        if self.is_shown:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_shown:
            self._live.stop()
            self._console.print(self._line())

    def committed(self, event: Committed) -> None:
        """Count a commit."""
        self._records += event.record_count
        self._segments += event.record_count > 0
        self._size_bytes += event.size_bytes
        self._partitions.add(event.key)
        if self.is_shown:
            self._live.update(self._line())

    def _line(self) -> Text:
        seconds = max(self._clock.monotonic_s() - self._started_s, 0.001)
        return Text(
            f"{self._name}: {self._records:,} records in {self._segments:,} segments, "
            f"{self._size_bytes / 1e6:,.1f} MB, {len(self._partitions)} partitions, {self._records / seconds:,.0f}/s"
        )
