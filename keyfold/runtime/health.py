"""Liveness and readiness of a process, for the probes of its supervisor.

    alive    a loop has made progress within `quiet_max_s`: a turn of the loop, or a step of its work. A long pass that
             makes progress is alive. An unavailable store does not end a process: each wait ends, and the loop turns
    ready    alive, started and not stopping; the store has answered and is available; the last turn did not fail
             as a whole

`Liveness` keeps the times, and working threads report to it. It decides when a probe asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from keyfold.runtime.clock import Clock

AWAY_S: Final = 10.0
"""A store that has not answered requests for this time is unavailable. One lost answer is not an outage."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer to a probe, and the reason."""

    is_good: bool
    why: str


class Probed(Protocol):
    """A process that can be probed, from any thread and at no cost."""

    def live(self) -> ProbeAnswer:
        """Return whether the process makes progress; if not, it must be restarted."""

    def ready(self) -> ProbeAnswer:
        """Return whether the process does its work."""


class Liveness:
    """Times of the last progress of a process; the module describes the rules.

    A process has one or more loops (`part`). The loop without progress for the longest time decides.
    """

    def __init__(self, clock: Clock, quiet_max_s: float, is_ending: Callable[[], bool] = lambda: False) -> None:
        self._clock = clock
        self._quiet_max_s = quiet_max_s
        self._is_ending = is_ending
        self._lock = threading.Lock()
        self._moved_s = {"": clock.monotonic_s()}
        self._answered_s: float | None = None
        self._silence = ""
        self._failure = ""
        self._has_begun = False

    def moved(self, part: str = "") -> None:
        """Report progress."""
        with self._lock:
            self._moved_s[part] = self._clock.monotonic_s()

    def begun(self) -> None:
        """Report that the start is complete and the first turn begins."""
        with self._lock:
            self._moved_s[""] = self._clock.monotonic_s()
            self._has_begun = True

    def over(self, part: str) -> None:
        """Report that a loop has ended normally and will make no more progress."""
        with self._lock:
            self._moved_s.pop(part, None)

    def turned(self, failure: str = "") -> None:
        """Report the end of a turn of the loop; `failure` is the reason if it failed as a whole."""
        with self._lock:
            self._moved_s[""] = self._clock.monotonic_s()
            self._failure = failure

    def answered(self) -> None:
        """Report that the store has answered, even with a refusal."""
        with self._lock:
            self._answered_s, self._silence = self._clock.monotonic_s(), ""

    def unanswered(self, why: str) -> None:
        """Report that the store did not answer a request."""
        with self._lock:
            self._silence = why

    def live(self) -> ProbeAnswer:
        """See `Probed.live`."""
        with self._lock:
            quiet = {part: self._clock.monotonic_s() - moved_s for part, moved_s in self._moved_s.items()}
        part = max(quiet, key=lambda each: quiet[each])
        who = f"{part}: " if part else ""
        if quiet[part] <= self._quiet_max_s:
            return ProbeAnswer(True, f"{who}last progress {quiet[part]:.0f} s ago")
        return ProbeAnswer(False, f"{who}no progress for {quiet[part]:.0f} s; the limit is {self._quiet_max_s:.0f} s")

    def ready(self) -> ProbeAnswer:
        """See `Probed.ready`."""
        if self._is_ending():
            return ProbeAnswer(False, "the process is stopping")
        live = self.live()
        if not live.is_good:
            return live
        with self._lock:
            return self._store() or self._work()

    def _store(self) -> ProbeAnswer | None:
        if self._answered_s is None:
            return ProbeAnswer(False, f"the store has not answered yet{_because(self._silence)}")
        silent_s = self._clock.monotonic_s() - self._answered_s
        if self._silence and silent_s > AWAY_S:
            return ProbeAnswer(False, f"the store has not answered for {silent_s:.0f} s{_because(self._silence)}")
        return None

    def _work(self) -> ProbeAnswer:
        if not self._has_begun:
            return ProbeAnswer(False, "the process is starting")
        if self._failure:
            return ProbeAnswer(False, f"the last run failed{_because(self._failure)}")
        return ProbeAnswer(True, "the store answers")


def _because(why: str) -> str:
    return f": {why}" if why else ""
