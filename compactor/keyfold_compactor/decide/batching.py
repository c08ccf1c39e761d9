"""Decide how much of the backlog one batch claims, so that several compactors share it.

A batch has the most urgent logs: as many as this cluster cleans in a minute, and at most an eighth of what was due when
the run started. So a compactor that starts at the same time or later finds free logs. A batch costs some 0.2 s in
addition to its logs, and tasks are idle at its end. If an eighth takes less than two seconds, a batch has up to a
quarter. It also has two logs for each task that runs at once. `log.cleaner.batch.bytes` and `LOGS_MAX` always limit it.

The work of a log is its stored bytes plus a constant for its requests. The work that a cluster does in a second is
first estimated from its cores and the byte rate. Then it is measured, batch by batch, across runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from keyfold_compactor.decide.plan import LOG_COST_BYTES

MIB: Final = 1024 * 1024
CLAIM_S: Final = 60.0
SHARES: Final = 8
SHORT_S: Final = 2.0
LOGS_PER_SLOT: Final = 2
LOGS_MAX: Final = 500
CORE_BYTES_PER_S: Final = 32 * MIB
"""Work on small logs that one core does per second (`tests.bench.bench_partitions`: 31 to 47 MiB)."""
MOVED_PER_BYTE: Final = 2
"""A byte of a log is read and written at most once, and both count for the byte rate."""
EXPECTED_S: Final = 10.0
"""The estimate weighs as much as a measurement of this length: a first batch also waits for Spark's workers."""
MEASURED_S: Final = 300.0
"""A measurement weighs at most as much as one of this length, so a change of the cluster shows soon."""


def work_bytes(size_bytes: int) -> int:
    """Return the work of cleaning a log of this stored size."""
    return size_bytes + LOG_COST_BYTES


@dataclass(slots=True)
class CleaningRate:
    """The work that the batches of this process have done, and the seconds that it took."""

    done_bytes: float = 0.0
    seconds: float = 0.0

    def learn(self, done_bytes: int, seconds: float) -> None:
        """Add one batch."""
        self.done_bytes += done_bytes
        self.seconds += seconds
        if self.seconds > MEASURED_S:
            self.done_bytes *= MEASURED_S / self.seconds
            self.seconds = MEASURED_S

    def per_second(self, slots: int, io_bytes_per_second: float | None) -> float:
        """Return the work per second for `slots` tasks and a byte rate: first estimated, then measured."""
        expected = float(slots * CORE_BYTES_PER_S)
        if io_bytes_per_second is not None:
            expected = min(expected, io_bytes_per_second / MOVED_PER_BYTE)
        return (expected * EXPECTED_S + self.done_bytes) / (EXPECTED_S + self.seconds)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a batch: stored bytes, logs and work. The first `least_logs` may exceed `share_bytes` of work."""

    size_bytes: int
    logs: int
    minute_bytes: float
    share_bytes: float
    least_logs: int

    @classmethod
    def of(cls, work_per_second: float, share_bytes: float, slots: int, *, size_bytes: int, logs: int) -> Self:
        """Return the limits of a cluster with this much work per second; `share_bytes` is one share of the backlog."""
        share_bytes = max(share_bytes, min(2 * share_bytes, work_per_second * SHORT_S))
        return cls(size_bytes, logs, work_per_second * CLAIM_S, share_bytes, LOGS_PER_SLOT * slots)

    def fitting(self, sizes: Sequence[int], claimed: Sequence[int] = ()) -> int:
        """Return how many of the next logs fit beside the claimed ones, by stored bytes; at least one in a batch.

        No log is skipped in favour of a smaller one behind it: the most urgent log is always the next.
        """
        count, total_bytes = len(claimed), sum(claimed)
        for size_bytes in sizes:
            if count and not self._has_room(count + 1, total_bytes + size_bytes):
                break
            count, total_bytes = count + 1, total_bytes + size_bytes
        return count - len(claimed)

    def _has_room(self, count: int, size_bytes: int) -> bool:
        done_bytes = size_bytes + count * LOG_COST_BYTES
        return (
            count <= self.logs
            and size_bytes <= self.size_bytes
            and done_bytes <= self.minute_bytes
            and (count <= self.least_logs or done_bytes <= self.share_bytes)
        )
