"""Whoever wants to watch a run: stages, and steps within them."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Whoever wants to watch a run."""

    def begin(self, stage: str, total: int) -> None:
        """A stage begins; `total` steps."""

    def step(self, count: int = 1) -> None:
        """Steps of the stage are done."""


class NoProgress:
    """Nobody watches."""

    def begin(self, stage: str, total: int) -> None:
        """See `Progress.begin`."""

    def step(self, count: int = 1) -> None:
        """See `Progress.step`."""
