"""What goes wrong with records, counted as Connect counts it, and by cause.

A record that is read again, because its partition was set back, is counted again: these are counts of work, as in
Connect. What the log really misses is in its manifest.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyfold.log.gaps import MAX_REASONS, OTHER_REASONS
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import BAR, TaskMeter


class ErrorCounts:
    """One task's. Causes beyond `MAX_REASONS` are counted as one, for each becomes a label."""

    def __init__(self, meter: TaskMeter) -> None:
        self._meter = meter
        self._causes: set[str] = set()

    def rejected(self, count: int) -> None:
        """Records that failed their check."""
        self._meter.count(names.RECORD_FAILURES, by=count)
        self._meter.count(names.RECORD_ERRORS, by=count)
        self._meter.mark(names.LAST_ERROR, self._meter.clock.now_ms())

    def logged(self) -> None:
        """A failure was written to the log."""
        self._meter.count(names.ERRORS_LOGGED)

    def skipped(self, counts: Mapping[str, int]) -> None:
        """Records that the log will not have, by cause."""
        for cause, count in counts.items():
            label = cause.replace(BAR, "/")
            if label not in self._causes and len(self._causes) >= MAX_REASONS:
                label = OTHER_REASONS
            self._causes.add(label)
            self._meter.count(names.RECORDS_SKIPPED, by=count)
            self._meter.count(names.SKIPPED, label, by=count)

    def letters_sent(self, count: int) -> None:
        """Dead letters were given to the producer."""
        self._meter.count(names.DEAD_LETTERS, by=count)

    def letter_refused(self) -> None:
        """Kafka has refused a dead letter."""
        self._meter.count(names.DEAD_LETTERS_FAILED)
