"""Orders to a running task, given by any thread; the main loop takes them once per round.

    pause      stop reading, commit what was read, stay in the group
    resume     read again
    flush      commit what was read
    stop       commit what was read, and end
    renew      look up again what was cached: credentials, topics and their settings

Of pause and resume only the last order counts. Several pending flush orders count as one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum


class TaskCommand(StrEnum):
    """The orders, spelt as on the wire (`keyfold_sink.worker.wire`)."""

    PAUSE = "pause"
    RESUME = "resume"
    FLUSH = "flush"
    RENEW = "renew"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class PendingCommands:
    """The orders for one round: whether to pause, and what to do once."""

    pause: bool
    flush: bool
    renew: bool = False


class TaskCommands:
    """The pending orders of one task.

    The stop order sets `stop`; setting it directly has the same effect. With `pause` the task begins paused, so that it
    reads nothing before the first order.
    """

    def __init__(self, stop: threading.Event, *, pause: bool = False) -> None:
        self.stop = stop
        self._lock = threading.Lock()
        self._pause = pause
        self._flush = False
        self._renew = False

    def give(self, order: TaskCommand) -> None:
        """Add an order. Thread-safe; never blocks."""
        with self._lock:
            if order in {TaskCommand.PAUSE, TaskCommand.RESUME}:
                self._pause = order is TaskCommand.PAUSE
            self._flush |= order is TaskCommand.FLUSH
            self._renew |= order is TaskCommand.RENEW
        if order is TaskCommand.STOP:
            self.stop.set()

    def take(self) -> PendingCommands:
        """Return the orders, and clear flush and renew."""
        with self._lock:
            wanted = PendingCommands(self._pause, self._flush, self._renew)
            self._flush = self._renew = False
            return wanted
