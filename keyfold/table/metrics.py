"""The metrics of `keyfold table sync --follow`: their table, and their values in this process."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Final

from keyfold.metrics.metric import Metric, Samples, samples_of
from keyfold.metrics.prometheus import MetricsCollector
from keyfold.table.sync import SyncResult

_SUBJECT: Final = ("topic", "table")

SYNCS: Final = Metric(
    "keyfold_table_syncs_total",
    "counter",
    "Syncs of a table that the process has finished, with or without a new snapshot.",
    "-",
    _SUBJECT,
)
LAST_SYNC: Final = Metric(
    "keyfold_table_last_sync_timestamp_seconds",
    "gauge",
    "Unix time in seconds at which the process finished its last sync of a table; before that, of the newest snapshot, "
    "or of the creation of a table that has none.",
    "falls behind the time: syncs fail or do not end",
    _SUBJECT,
)
LAST_SYNC_SECONDS: Final = Metric(
    "keyfold_table_last_sync_seconds",
    "gauge",
    "Seconds that the process took for its last sync of a table, without upkeep.",
    "more has changed, or the store or the catalog is slow",
    _SUBJECT,
)
FAILURES: Final = Metric(
    "keyfold_table_failures_total",
    "counter",
    "Syncs of a table, and turns of its upkeep, that failed in the process and are tried again.",
    "the store or the catalog does not answer: see the log",
    _SUBJECT,
    ("step",),
)
ROWS: Final = Metric(
    "keyfold_table_rows_total",
    "counter",
    "Rows that the process has added to a table or hidden in a table.",
    "records arrive; a jump far above them: all rows were rebuilt",
    _SUBJECT,
    ("change",),
)
MISMATCHES: Final = Metric(
    "keyfold_table_mismatches_total",
    "counter",
    "Records that the process could not decode for a table, by what became of them: skipped, or null.",
    "records have another format than the table's options say",
    _SUBJECT,
    ("outcome",),
)
METRICS: Final = (SYNCS, LAST_SYNC, LAST_SYNC_SECONDS, FAILURES, ROWS, MISMATCHES)

STEPS: Final = ("sync", "upkeep")


class TableMeter(MetricsCollector):
    """Counts what is done to one table. `synced_ms` is when it was last synchronised before. Thread-safe."""

    def __init__(self, topic: str, table: str, synced_ms: int, installed: str | None = None) -> None:
        self._subject = (topic, table)
        self._lock = Lock()
        self._syncs = 0
        self._last_sync_ms = synced_ms
        self._last_sync_s: float | None = None
        self._failures = Counter(dict.fromkeys(STEPS, 0))
        self._rows = Counter({"added": 0, "hidden": 0})
        self._mismatches = Counter({"skipped": 0, "null": 0})
        super().__init__(METRICS, "table", installed)

    def synced(self, found: SyncResult, took_s: float, now_ms: int) -> None:
        """Count a sync that has ended."""
        with self._lock:
            self._syncs += 1
            self._last_sync_ms, self._last_sync_s = now_ms, took_s
            for each in found.partitions:
                self._rows.update(added=each.added, hidden=each.hidden)
                self._mismatches.update(skipped=each.mismatches.skipped, null=each.mismatches.nulled)

    def failed(self, step: str) -> None:
        """Count a failure in one of `STEPS`."""
        with self._lock:
            self._failures[step] += 1

    def samples(self) -> Samples:
        """See `MetricsCollector.samples`."""
        with self._lock:
            return samples_of(
                {
                    SYNCS: {self._subject: self._syncs},
                    LAST_SYNC: {self._subject: self._last_sync_ms / 1000},
                    LAST_SYNC_SECONDS: {} if self._last_sync_s is None else {self._subject: self._last_sync_s},
                    FAILURES: self._labelled(self._failures),
                    ROWS: self._labelled(self._rows),
                    MISMATCHES: self._labelled(self._mismatches),
                }
            )

    def _labelled(self, counts: Counter[str]) -> dict[tuple[str, ...], float]:
        return {(*self._subject, label): count for label, count in counts.items()}
