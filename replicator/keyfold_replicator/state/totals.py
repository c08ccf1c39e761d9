"""Counts of a replicator's work since it started, for metrics and reports; they only grow.

All partitions and threads of a replica share a `Tally`: they call `tally.add(RoundTotals(commits=1))` and the like.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from keyfold.runtime.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class RoundTotals:
    """Counts. Bytes are stored bytes of objects.

    `objects_sent` went through this process (`sent_bytes`). `objects_copied` were copied by the store of both sides
    (`copied_bytes`). `objects_found` were already at the replica and were not sent again. `rounds` includes those that
    found nothing to do. `plans_repeated`: the source had replaced an object before it was copied. `failures` are failed
    rounds, by code.
    """

    rounds: int = 0
    commits: int = 0
    pins: int = 0
    plans_repeated: int = 0
    objects_sent: int = 0
    sent_bytes: int = 0
    objects_copied: int = 0
    copied_bytes: int = 0
    objects_found: int = 0
    schemas_sent: int = 0
    objects_deleted: int = 0
    orphans_deleted: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: RoundTotals) -> RoundTotals:
        codes = sorted({*self.failures, *other.failures})
        summed: dict[str, int] = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in _NUMBERS}
        return RoundTotals(**summed, failures={c: self.failures.get(c, 0) + other.failures.get(c, 0) for c in codes})

    def document(self) -> JsonObject:
        """Return the counts as JSON."""
        return {**{f.name: getattr(self, f.name) for f in _NUMBERS}, "failures": dict(self.failures)}


_NUMBERS = tuple(f for f in fields(RoundTotals) if f.name != "failures")


class Tally:
    """Sum of counts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = RoundTotals()

    def add(self, done: RoundTotals) -> None:
        """Add counts."""
        with self._lock:
            self._totals += done

    @property
    def totals(self) -> RoundTotals:
        """The current sums."""
        with self._lock:
            return self._totals
