"""Commands to a running task, given by any thread; the main loop takes them once per round.

    pause      stop reading, commit what was read, stay in the group
    resume     read again
    flush      commit what was read
    stop       commit what was read, and end
    renew      look up again what was cached: credentials, topics and their settings

Of pause and resume only the last command counts. Several pending flush commands count as one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum


class TaskCommand(StrEnum):
    """The commands, spelt as on the wire (`keyfold_sink.worker.wire`)."""

    PAUSE = "pause"
    RESUME = "resume"
    FLUSH = "flush"
    RENEW = "renew"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class PendingCommands:
    """The commands for one round: whether to pause, and what to do once."""

    pause: bool
    flush: bool
    renew: bool = False


class TaskCommands:
    """The pending commands of one task.

    The stop command sets `stop`; setting it directly has the same effect. With `pause` the task begins paused, so that
    it reads nothing before the first command.
    """

    def __init__(self, stop: threading.Event, *, pause: bool = False) -> None:
        self.stop = stop
        self._lock = threading.Lock()
        self._pause = pause
        self._flush = False
        self._renew = False

    def add(self, command: TaskCommand) -> None:
        """Add a command. Thread-safe; never blocks."""
        with self._lock:
            if command in {TaskCommand.PAUSE, TaskCommand.RESUME}:
                self._pause = command is TaskCommand.PAUSE
            self._flush |= command is TaskCommand.FLUSH
            self._renew |= command is TaskCommand.RENEW
        if command is TaskCommand.STOP:
            self.stop.set()

    def take_pending(self) -> PendingCommands:
        """Return the commands, and clear flush and renew."""
        with self._lock:
            wanted = PendingCommands(self._pause, self._flush, self._renew)
            self._flush = self._renew = False
            return wanted
