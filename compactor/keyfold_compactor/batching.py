"""How much of the backlog one batch claims, so that several compactors share it.

A batch is the most urgent logs, as many as this cluster cleans in a minute, and at most an eighth of what was due when
the run began. So a compactor that starts beside this one, or later, finds logs that are free. A batch costs some 0.2 s
beside its logs, and tasks idle at its end: where an eighth takes less than two seconds it is up to a quarter, and it
has two logs for each task that runs at once. `log.cleaner.batch.bytes` and `LOGS_MAX` bound it in any case.

The work of a log is its stored bytes and a constant for its requests. What a cluster does of it in a second is expected
from its cores and from the byte rate at first, and then measured: batch by batch, kept from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from keyfold_compactor.plan import LOG_COST_BYTES

MIB: Final = 1024 * 1024
CLAIM_S: Final = 60.0
SHARES: Final = 8
SHORT_S: Final = 2.0
LOGS_PER_SLOT: Final = 2
LOGS_MAX: Final = 500
CORE_BYTES_PER_S: Final = 32 * MIB
"""The work of small logs that one core does in a second (`tests.bench.bench_partitions`: 31 to 47 MiB)."""
MOVED_PER_BYTE: Final = 2
"""A byte of a log is read and written once at most, and both count for the byte rate."""
EXPECTED_S: Final = 10.0
"""The expectation weighs as much as a measurement of this length: a first batch also waits for Spark's workers."""
MEASURED_S: Final = 300.0
"""A measurement weighs as much as one of this length at most, so a change of the cluster shows itself."""


def work_bytes(size_bytes: int) -> int:
    """Return the work of cleaning a log of this stored size."""
    return size_bytes + LOG_COST_BYTES


@dataclass(slots=True)
class CleaningRate:
    """How much work the batches of this process have done, in how many seconds."""

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
        """The work of a second with `slots` tasks at once and a byte rate: first as expected, then as measured."""
        expected = float(slots * CORE_BYTES_PER_S)
        if io_bytes_per_second is not None:
            expected = min(expected, io_bytes_per_second / MOVED_PER_BYTE)
        return (expected * EXPECTED_S + self.done_bytes) / (EXPECTED_S + self.seconds)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch may claim: stored bytes, logs, and work. The first `least_logs` may exceed `share_bytes` of work."""

    size_bytes: int
    logs: int
    minute_bytes: float
    share_bytes: float
    least_logs: int

    @classmethod
    def of(cls, work_per_second: float, share_bytes: float, slots: int, *, size_bytes: int, logs: int) -> Self:
        """The limits of a cluster that does so much work in a second; `share_bytes` is one share of all that is due."""
        share_bytes = max(share_bytes, min(2 * share_bytes, work_per_second * SHORT_S))
        return cls(size_bytes, logs, work_per_second * CLAIM_S, share_bytes, LOGS_PER_SLOT * slots)

    def fitting(self, sizes: Sequence[int], claimed: Sequence[int] = ()) -> int:
        """How many of the next logs, of `sizes` in stored bytes, fit beside the claimed ones. A batch has one at least.

        None is left out for a smaller one behind it: the most urgent log is always the next.
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
