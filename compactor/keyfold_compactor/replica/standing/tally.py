"""What a process that replicates has done since it began: sums that only grow, for metrics and reports.

`Tally` is shared by all partitions and threads of a replica: `tally.add(Totals(commits=1))` wherever something is done.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes are stored bytes of objects.

    `objects_sent` went through this process (`sent_bytes`), `objects_copied` were copied by a store that is both sides'
    (`copied_bytes`), `objects_found` were at the replica already and were not sent again. `rounds` counts also those
    that found nothing to do. `plans_repeated`: the source had replaced an object before it was copied. `failures` are
    rounds that failed, by code.
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

    def __add__(self, other: Totals) -> Totals:
        codes = sorted({*self.failures, *other.failures})
        summed: dict[str, Any] = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in _NUMBERS}
        return Totals(**summed, failures={c: self.failures.get(c, 0) + other.failures.get(c, 0) for c in codes})

    def document(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {**{f.name: getattr(self, f.name) for f in _NUMBERS}, "failures": dict(self.failures)}


_NUMBERS = tuple(f for f in fields(Totals) if f.name != "failures")


class Tally:
    """Sums up. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()

    def add(self, done: Totals) -> None:
        """Count what was done."""
        with self._lock:
            self._totals += done

    @property
    def totals(self) -> Totals:
        """All of it up to now."""
        with self._lock:
            return self._totals
