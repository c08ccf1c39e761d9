"""Errors that stop a restore.

RestoreRefused      the target, the source or an earlier run does not allow it; nothing was written by this run
TargetMoved         the target has records that this restore did not write
RestoreFenced       another run has taken this restore over
RestoreBusy         another run is active
RestoreStopped      this run was asked to stop
RecordRefused       Kafka rejects a record permanently
"""

from __future__ import annotations

from keyfold.errors import KeyfoldError


class RestoreRefused(KeyfoldError):
    """The restore cannot continue without losing, repeating or changing records."""


class TargetMoved(KeyfoldError):
    """The target partition has unknown records, or lost some."""


class RestoreFenced(KeyfoldError):
    """Another run of the same restore has taken over: this one stops."""


class RestoreBusy(KeyfoldError):
    """Another run of the same restore is at work."""


class RestoreStopped(KeyfoldError):
    """The run was asked to stop. Landed records stay, and another run continues after them."""


class RecordRefused(KeyfoldError):
    """Kafka refuses the record that was to land at `target_offset`."""

    def __init__(self, message: str, *, target_offset: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.target_offset = target_offset
