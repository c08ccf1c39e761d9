"""The figures of a storm: a table for people, JSON for machines, and which figures must not be zero.

A storm in which something never happened proves nothing about it. Of a run of ten minutes or more each figure of
`MUST_HAPPEN` must be above zero; the run fails otherwise.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

FULL_S: Final = 600.0
Figures = Mapping[str, int]
MUST_HAPPEN: Final[Mapping[str, Sequence[str]]] = {
    "records": (
        "committed in Kafka",
        "transactions committed",
        "transactions aborted",
        "records of aborted transactions",
    ),
    "processes": (
        *(f"{what} {whom}" for what in ("kill", "terminate", "freeze") for whom in ("sink", "compactor", "replicator")),
        "kill tasks sink",
        "freeze broker",
    ),
    "store": (
        "refused",
        "dropped",
        "delayed",
        "applied, answer lost",
        "applied, answered by an error",
        "applied late",
        "late, and landed",
    ),
    "sinks": ("segments committed", "partitions claimed"),
    "compactor": ("passes", "superseded records removed", "tombstones purged", "segments expired"),
    "replicas": (
        "promotions with the source (switch-over)",
        "promotions without the source (fail-over)",
        "demotions",
        "resyncs",
        "partitions resynced",
    ),
    "readers": (
        "accepted by plain fastavro",
        "accepted by latest",
        "accepted by batches",
        "accepted by follow",
    ),
}


@dataclass(slots=True)
class Summary:
    """Figures by part of the system."""

    seed: int
    seconds: float
    parts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, part: str, figures: Figures) -> None:
        """Add figures of a part."""
        self.parts.setdefault(part, Counter()).update(figures)

    def missing(self) -> list[str]:
        """Return what should have happened in a full run, and did not."""
        return [
            f"{part}: {name}" for part, names in MUST_HAPPEN.items() for name in names if not self._figure(part, name)
        ]

    def document(self) -> str:
        """Return all of it as one JSON object."""
        return json.dumps({"seed": self.seed, "seconds": round(self.seconds), **self.parts})

    def table(self) -> str:
        """Return the table of docs/testing.md."""
        lines = [f"Seed {self.seed}, {self.seconds:,.0f} s.", "", "| part | what | count |", "| --- | --- | ---: |"]
        for part, figures in self.parts.items():
            known = [name for name in MUST_HAPPEN.get(part, ()) if name in figures]
            names = [*known, *sorted(figures.keys() - set(known))]
            lines += [f"| {part} | {name} | {figures[name]:,} |" for name in names]
        return "\n".join(lines)

    def _figure(self, part: str, name: str) -> int:
        return self.parts.get(part, Counter())[name]
