"""Count rejected records as Connect does, and by cause.

A record that is read again after a reset of its partition counts again: these are counts of work, as in Connect. The
log's manifest has the exact gaps.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyfold.log.gaps import MAX_REASONS, OTHER_REASONS
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.meter import BAR, TaskMeter


class ErrorCounts:
    """The counts of one task. Causes beyond `MAX_REASONS` count as one, because each becomes a label."""

    def __init__(self, meter: TaskMeter) -> None:
        self._meter = meter
        self._causes: set[str] = set()

    def rejected(self, count: int) -> None:
        """Count records that failed their validation."""
        self._meter.count(connect_names.RECORD_FAILURES, by=count)
        self._meter.count(connect_names.RECORD_ERRORS, by=count)
        self._meter.mark(connect_names.LAST_ERROR, self._meter.clock.now_ms())

    def logged(self) -> None:
        """Count a logged failure."""
        self._meter.count(connect_names.ERRORS_LOGGED)

    def skipped(self, counts: Mapping[str, int]) -> None:
        """Count skipped records by cause."""
        for cause, count in counts.items():
            label = cause.replace(BAR, "/")
            if label not in self._causes and len(self._causes) >= MAX_REASONS:
                label = OTHER_REASONS
            self._causes.add(label)
            self._meter.count(connect_names.RECORDS_SKIPPED, by=count)
            self._meter.count(names.SKIPPED, label, by=count)

    def dead_letters_sent(self, count: int) -> None:
        """Count dead letters passed to the producer."""
        self._meter.count(connect_names.DEAD_LETTERS, by=count)

    def dead_letter_refused(self) -> None:
        """Count a dead letter that Kafka refused."""
        self._meter.count(connect_names.DEAD_LETTERS_FAILED)
