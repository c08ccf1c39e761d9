"""Whether a loop works, as the probes of its supervisor ask: is it alive, is it ready.

    alive    something has moved within `quiet_max_s`: a turn of the loop, a step of its work. A long pass that goes on
             is alive; a store that is away kills nobody, for waiting has an end and then the loop turns
    ready    alive, begun and not about to end, the store has answered, and is not away now; the last turn did not fail
             as a whole

`Vitals` keeps the moments; whoever works tells it, from any thread. Nothing is decided before somebody asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from keyfold.clock import Clock

AWAY_S: Final = 10.0
"""A store that has given no answer for so long, and has been asked, is away. One lost answer is no outage."""


@dataclass(frozen=True, slots=True)
class Health:
    """An answer to a probe, and why."""

    is_good: bool
    why: str


class Checked(Protocol):
    """Whoever can be probed. Any thread may ask; the answer costs nothing."""

    def live(self) -> Health:
        """Whether it works at all; if not it must be started anew."""

    def ready(self) -> Health:
        """Whether it does what it is for."""


class Vitals:
    """Signs of life of a process: see `Checked`, and the module for what they mean.

    A process has one loop or several (`part`); it is as alive as the one that has been silent longest.
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
        """Something went on."""
        with self._lock:
            self._moved_s[part] = self._clock.monotonic_s()

    def begun(self) -> None:
        """What comes before the first turn is done."""
        with self._lock:
            self._moved_s[""] = self._clock.monotonic_s()
            self._has_begun = True

    def over(self, part: str) -> None:
        """A loop has ended as it should, and gives no more signs."""
        with self._lock:
            self._moved_s.pop(part, None)

    def turned(self, failure: str = "") -> None:
        """A turn of the loop is over; `failure` says why it failed as a whole."""
        with self._lock:
            self._moved_s[""] = self._clock.monotonic_s()
            self._failure = failure

    def answered(self) -> None:
        """The store has answered, be it with a refusal."""
        with self._lock:
            self._answered_s, self._silence = self._clock.monotonic_s(), ""

    def unanswered(self, why: str) -> None:
        """The store was asked, and did not answer."""
        with self._lock:
            self._silence = why

    def live(self) -> Health:
        """See `Checked.live`."""
        with self._lock:
            quiet = {part: self._clock.monotonic_s() - moved_s for part, moved_s in self._moved_s.items()}
        part = max(quiet, key=lambda each: quiet[each])
        who = f"{part}: " if part else ""
        if quiet[part] <= self._quiet_max_s:
            return Health(True, f"{who}last progress {quiet[part]:.0f} s ago")
        return Health(False, f"{who}no progress for {quiet[part]:.0f} s; the limit is {self._quiet_max_s:.0f} s")

    def ready(self) -> Health:
        """See `Checked.ready`."""
        if self._is_ending():
            return Health(False, "the process is stopping")
        live = self.live()
        if not live.is_good:
            return live
        with self._lock:
            return self._store() or self._work()

    def _store(self) -> Health | None:
        if self._answered_s is None:
            return Health(False, f"the store has not answered yet{_because(self._silence)}")
        silent_s = self._clock.monotonic_s() - self._answered_s
        if self._silence and silent_s > AWAY_S:
            return Health(False, f"the store has not answered for {silent_s:.0f} s{_because(self._silence)}")
        return None

    def _work(self) -> Health:
        if not self._has_begun:
            return Health(False, "the process is starting")
        if self._failure:
            return Health(False, f"the last run failed{_because(self._failure)}")
        return Health(True, "the store answers")


def _because(why: str) -> str:
    return f": {why}" if why else ""
