"""Backpressure: keep a task within `buffer.memory` by finishing the largest segments, then by pausing reading.

Reading pauses only if finishing segments did not free enough memory within a moment. A pause discards what the client
has already fetched, and the store often needs only that moment. If the uploads of one partition are slow (its prefix is
throttled, a commit's result is unknown), that partition is paused alone before it takes the memory of all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from keyfold_sink.config.rolling import RollReason
from keyfold_sink.group.assignment import AssignedPartition, PauseReason
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.metrics import names
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.write import memory_budget

_PAUSE_WAIT_S: Final = 1.0


class Backpressure:
    """The backpressure of one task.

    `waiting_bytes` are the bytes of records that wait for validation. `large_record_bytes` is about the size of the
    largest recent record.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        in_flight: memory_budget.InFlight,
        limit_bytes: int,
        meter: TaskMeter,
        waiting_bytes: Callable[[], int] = lambda: 0,
        large_record_bytes: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._large_record_bytes = large_record_bytes
        self._reserved_bytes = 0
        self._group = group
        self._in_flight = in_flight
        self._limit_bytes = limit_bytes
        self._threshold = memory_budget.PauseThreshold(limit_bytes)
        self._meter = meter
        self._clock = meter.clock
        self._paused_s = 0.0
        self._waiting_bytes = waiting_bytes
        self._stuck: list[AssignedPartition] = []
        self._events = structlog.get_logger("keyfold.sink")

    def limit_memory(self, stop: threading.Event) -> None:
        """Finish segments, and pause or resume reading, as the budget requires."""
        self._reserved_bytes = memory_budget.reserve(self._large_record_bytes(), self._limit_bytes)
        held_bytes = self._roll_largest()
        pauses = PauseReason.MEMORY in self._group.fetching.reasons
        must_pause = self._must_pause(held_bytes)
        began_s = self._clock.monotonic_s()
        if pauses:
            self._meter.count(names.PAUSED_SECONDS, by=began_s - self._paused_s)
            self._paused_s = began_s
        if must_pause and not pauses:
            deadline_s = began_s + _PAUSE_WAIT_S
            while must_pause and self._clock.monotonic_s() < deadline_s and not stop.is_set():
                self._clock.sleep(0.005)
                must_pause = self._must_pause(held_bytes)
            self._paused_s = self._clock.monotonic_s()
            self._meter.count(names.PAUSED_SECONDS, by=self._paused_s - began_s)
            if must_pause:
                self._meter.count(names.PAUSES)
                self._events.warning("reading paused until the store catches up", buffer_memory=True)
                self._group.fetching.pause(PauseReason.MEMORY)
        elif pauses and not must_pause:
            self._group.fetching.resume(PauseReason.MEMORY)

    def _roll_largest(self) -> int:
        """Finish the largest segments if memory is short, and return the bytes of the others."""
        # Most of thousands of partitions are idle, and this runs in every round.
        writers = {
            key: o.writer for key, o in self._group.assigned.items() if o.writer is not None and o.writer.held_bytes
        }
        held = {key: writer.held_bytes for key, writer in writers.items()}
        stuck_bytes = self._hold_stuck(sum(held.values()))
        in_flight_bytes = self._in_flight.size_bytes - stuck_bytes
        left_bytes = max(self._limit_bytes - stuck_bytes - self._reserved_bytes, self._limit_bytes // 8)
        for key in memory_budget.to_roll(held, in_flight_bytes, left_bytes):
            held[key] = 0
            writers[key].roll(RollReason.MEMORY)
        return sum(held.values())

    def _hold_stuck(self, held_bytes: int) -> int:
        """Pause partitions that take too much memory, as long as they do, and return their bytes in flight."""
        group, limit_bytes = self._group, self._limit_bytes
        free_bytes = limit_bytes - self._used_bytes(held_bytes)
        stuck = self._stuck = [owner for owner in self._stuck if group.assigned.get(owner.key) is owner]
        for owner in list(stuck):
            if owner.writer is None or memory_budget.takes_little_again(
                owner.writer.sent_bytes, free_bytes, limit_bytes
            ):
                stuck.remove(owner)
                group.fetching.release(owner, PauseReason.MEMORY)
        if free_bytes < limit_bytes // 2 and len(group.assigned) > 1:
            for owner in group.assigned.values():
                if owner.writer is None or not owner.is_fetched or PauseReason.MEMORY in owner.holds:
                    continue
                if memory_budget.takes_too_much(owner.writer.sent_bytes, free_bytes, limit_bytes):
                    stuck.append(owner)
                    group.fetching.hold(owner, PauseReason.MEMORY)
                    topic, partition = owner.key
                    self._events.info(
                        "partition paused", topic=topic, partition=partition, why="its commits lag behind"
                    )
        return sum(owner.writer.sent_bytes for owner in stuck if owner.writer is not None)

    def _must_pause(self, held_bytes: int) -> bool:
        return self._threshold.update(self._used_bytes(held_bytes))

    def _used_bytes(self, held_bytes: int) -> int:
        return held_bytes + self._in_flight.size_bytes + self._waiting_bytes() + self._reserved_bytes
