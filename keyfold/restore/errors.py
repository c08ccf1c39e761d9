"""What stops a restore.

RestoreRefused      the target, the source or an earlier run does not allow it; nothing was written by this run
TargetMoved         records are in the target that this restore did not write
RestoreFenced       another run has taken this restore over
RestoreBusy         another run is at work
RestoreStopped      this run was asked to stop
RecordRefused       Kafka does not take a record, and never will
"""

from __future__ import annotations

from keyfold.errors import KeyfoldError


class RestoreRefused(KeyfoldError):
    """Something does not allow this restore, and going on would lose, repeat or change records."""


class TargetMoved(KeyfoldError):
    """The target partition has records, or lost some, that this restore knows nothing of."""


class RestoreFenced(KeyfoldError):
    """Another run of the same restore has taken over: this one stops."""


class RestoreBusy(KeyfoldError):
    """Another run of the same restore is at work."""


class RestoreStopped(KeyfoldError):
    """The run was asked to stop; what has landed stays, and another run goes on from there."""


class RecordRefused(KeyfoldError):
    """Kafka refuses the record that was to land at `target_offset`."""

    def __init__(self, message: str, *, target_offset: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.target_offset = target_offset
