"""The progress line that a sink shows at a terminal.

The counts come from commits if the task runs in this process, else from the reports of the tasks' processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from keyfold.runtime.clock import Clock
from keyfold.runtime.terminal import escaped
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import sample_key
from keyfold_sink.status import TaskStatus

if TYPE_CHECKING:
    from keyfold_sink.write.partition import (
        Committed,  # a supervisor needs no segment writer, whose import takes 30 MB
    )

_RECORDS: Final = sample_key(names.COMMITTED.name)
_SEGMENTS: Final = sample_key(names.OBJECTS.name, ("segment",))
_BYTES: Final = sample_key(names.OBJECT_BYTES.name, ("segment",))


class SinkProgress:
    """Count commits, and show the counts on stderr if it is a terminal."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._records = self._segments = self._size_bytes = 0
        self._partitions: set[tuple[str, int]] = set()
        self._said: dict[int, tuple[float, ...]] = {}
        self._console = Console(stderr=True)
        self._live = Live(self._line(), console=self._console, refresh_per_second=4, transient=True)

    @property
    def is_shown(self) -> bool:
        """Whether stderr is a terminal."""
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

    def say(self, *lines: str) -> None:
        """Print lines above the progress line if stderr is a terminal."""
        if self.is_shown:
            for line in lines:
                self._console.print(Text(escaped(line)))

    def committed(self, event: Committed) -> None:
        """Count a commit."""
        self._partitions.add(event.key)
        self._add(event.record_count, event.record_count > 0, event.size_bytes)

    def reported(self, tasks: Iterable[TaskStatus]) -> None:
        """Add what tasks have committed since their last reports. A new task begins at 0."""
        for task in tasks:
            if task.values:
                now = tuple(task.values.get(key, 0.0) for key in (_RECORDS, _SEGMENTS, _BYTES))
                before = self._said.get(task.pid, (0.0, 0.0, 0.0))
                if now != before:
                    self._said[task.pid] = now
                    self._partitions.update((part.topic, part.partition) for part in task.partitions)
                    self._add(*(int(new - old) for new, old in zip(now, before, strict=True)))

    def _add(self, records: int, segments: int, size_bytes: int) -> None:
        self._records += records
        self._segments += segments
        self._size_bytes += size_bytes
        if self.is_shown:
            self._live.update(self._line())

    def _line(self) -> Text:
        seconds = max(self._clock.monotonic_s() - self._started_s, 0.001)
        return Text(
            f"{self._name}: {self._records:,} records in {self._segments:,} segments, "
            f"{self._size_bytes / 1e6:,.1f} MB, {len(self._partitions)} partitions, {self._records / seconds:,.0f}/s"
        )
