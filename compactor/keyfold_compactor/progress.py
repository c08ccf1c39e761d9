"""Whoever wants to watch a run: stages, and steps within them."""

from __future__ import annotations

import threading
from typing import Final, Protocol

import structlog

from keyfold.clock import Clock

FIRST_STAGE: Final = "reading manifests"
"""What every run begins with."""

LOG_EVERY_S: Final = 10.0

log = structlog.get_logger(__name__)


class Progress(Protocol):
    """Whoever wants to watch a run."""

    def begin(self, stage: str, total: int) -> None:
        """A stage begins; `total` steps."""

    def step(self, count: int = 1) -> None:
        """Steps of the stage are done."""


class LoggedProgress:
    """An event in the log each `LOG_EVERY_S` at the most: a run that is done sooner than that says nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said_s = clock.monotonic_s()
        self._stage = ""
        self._total = self._done = 0

    def begin(self, stage: str, total: int) -> None:
        """See `Progress.begin`."""
        with self._lock:
            self._stage, self._total, self._done = stage, total, 0
            if stage == FIRST_STAGE:  # the pause between two runs is no work
                self._said_s = self._clock.monotonic_s()
            self._say()

    def step(self, count: int = 1) -> None:
        """See `Progress.step`. May be called by many threads."""
        with self._lock:
            self._done += count
            self._say()

    def _say(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._said_s >= LOG_EVERY_S:
            self._said_s = now_s
            log.info("progress", stage=self._stage, done=self._done, total=self._total)


class NoProgress:
    """Nobody watches."""

    def begin(self, stage: str, total: int) -> None:
        """See `Progress.begin`."""

    def step(self, count: int = 1) -> None:
        """See `Progress.step`."""
