"""The demo's output: steps with their seconds, tables, command lines and what they print.

On a terminal a line moves while something runs; elsewhere each step is one plain line when it is done. With `--json`
all of this goes to stderr, and stdout is for the summary alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from keyfold.runtime.text import size_text
from keyfold_demo.numbers import Snapshot

_PLAIN_WIDTH: Final = 140


class Step:
    """One step while it runs; `note` updates its line, `result` is shown at its end."""

    def __init__(self, narrator: Narrator, title: str) -> None:
        self._narrator = narrator
        self._title = title
        self.result = ""
        self.seconds = 0.0

    def note(self, text: str) -> None:
        """Say how far it is."""
        self._narrator.move(f"{self._title}  {text}")


class Narrator:
    """Writes to one console."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        self._console = Console(stderr=to_stderr, highlight=False)
        if not self._console.is_terminal:
            self._console = Console(stderr=to_stderr, highlight=False, width=_PLAIN_WIDTH)
        self._status = self._console.status("")

    @property
    def is_live(self) -> bool:
        """Whether a line can move."""
        return self._console.is_terminal

    def say(self, text: str = "", style: str = "") -> None:
        """A line as it is."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def move(self, text: str) -> None:
        """Change the line that moves."""
        self._status.update(escape(text))

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Something that takes time; its line is written when it is done."""
        step = Step(self, title)
        started_s = time.monotonic()
        if self.is_live:
            self.move(title)
            self._status.start()
        try:
            yield step
        except BaseException:
            self._status.stop()
            self.say(f"✗ {title}", "red")
            raise
        self._status.stop()
        step.seconds = time.monotonic() - started_s
        line = Text.assemble(("✓ ", "green"), title, (f"  {step.seconds:.1f} s", "dim"))
        self._console.print(line, soft_wrap=True)
        if step.result:
            self.say(f"    {step.result}", "dim")

    def command(self, line: str, output: Iterable[str] = ()) -> None:
        """A command line, and what it printed."""
        self.say(f"    $ {line}", "bold")
        for row in output:
            self.say(f"    {row}", "dim")

    def conclusion(self, sentence: str, *, holds: bool) -> None:
        """One thing that was checked."""
        mark = ("  ✓ ", "green") if holds else ("  ✗ ", "bold red")
        self._console.print(Text.assemble(mark, sentence), soft_wrap=True)

    def table(self, snapshots: Sequence[Snapshot]) -> None:
        """Moments of the log side by side."""
        table = Table(box=None, pad_edge=True, padding=(0, 2))
        table.add_column("")
        for snapshot in snapshots:
            table.add_column(snapshot.title, justify="right")
        rows = {
            "records": [f"{s.records:,}" for s in snapshots],
            "of them tombstones": [f"{s.tombstones:,}" for s in snapshots],
            "segments": [f"{s.segments:,}" for s in snapshots],
            "segment bytes": [size_text(s.segment_bytes) for s in snapshots],
            "index bytes": [size_text(s.index_bytes) for s in snapshots],
            "objects in the bucket": [f"{s.bucket_objects:,}" for s in snapshots],
            "bytes in the bucket": [size_text(s.bucket_bytes) for s in snapshots],
            "git tree of the latest state": [s.tree[:12] for s in snapshots],
        }
        for title, cells in rows.items():
            table.add_row(title, *cells)
        self._console.print(table)
