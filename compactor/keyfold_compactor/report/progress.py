"""Progress of a run: stages, and steps within a stage."""

from __future__ import annotations

import threading
from typing import Final, Protocol

import structlog

from keyfold.runtime.clock import Clock

FIRST_STAGE: Final = "reading manifests"
"""The first stage of every run."""

LOG_EVERY_S: Final = 10.0

log = structlog.get_logger(__name__)


class RunProgress(Protocol):
    """An observer of a run's progress."""

    def begin_stage(self, stage: str, total: int) -> None:
        """A stage with `total` steps starts."""

    def advance(self, count: int = 1) -> None:
        """`count` steps of the stage are done."""


class LoggedProgress:
    """Log an event at most every `LOG_EVERY_S`. A run that is shorter than that logs nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said_s = clock.monotonic_s()
        self._stage = ""
        self._total = self._done = 0

    def begin_stage(self, stage: str, total: int) -> None:
        """See `RunProgress.begin_stage`."""
        with self._lock:
            self._stage, self._total, self._done = stage, total, 0
            if stage == FIRST_STAGE:  # the pause between two runs does not count as work
                self._said_s = self._clock.monotonic_s()
            self._say()

    def advance(self, count: int = 1) -> None:
        """See `RunProgress.advance`. May be called by many threads."""
        with self._lock:
            self._done += count
            self._say()

    def _say(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._said_s >= LOG_EVERY_S:
            self._said_s = now_s
            log.info("progress", stage=self._stage, done=self._done, total=self._total)


class NoProgress:
    """An observer that does nothing."""

    def begin_stage(self, stage: str, total: int) -> None:
        """See `RunProgress.begin_stage`."""

    def advance(self, count: int = 1) -> None:
        """See `RunProgress.advance`."""
