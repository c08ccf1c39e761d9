"""Decide when a task with `--until-caught-up` may end, from the logs of all partitions and from Kafka.

    every log has reached its target                                             done
    all remaining partitions are blocked by open transactions, for too long      `TransactionOpen`

The time limit counts from the last progress of any remaining partition. Every task checks all partitions, including
those of other tasks. So all tasks come to the same result at about the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from keyfold.errors import LogNotFound
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import Clock
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.group.catchup import CatchUp, HeldUp, still_open
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.kafka.cluster import AdminSource
from keyfold_sink.task.background import Background, Timers
from keyfold_sink.topic_partition import TopicPartitionKey

_ELSEWHERE_INTERVAL_S: Final = 1.0
_STABLE_INTERVAL_S: Final = 1.0

OpenLog = Callable[[TopicPartitionKey], PartitionLog]


class CatchingUp:
    """The check of one task. Only the main thread uses it."""

    def __init__(
        self,
        catch_up: CatchUp,
        group: ConsumerGroup,
        source: AdminSource,
        open_log: OpenLog,
        background: Background,
        clock: Clock,
        transaction_timeout_s: float,
    ) -> None:
        self._catch_up = catch_up
        self._group = group
        self._source = source
        self._open_log = open_log
        self._background = background
        self._timers = Timers(clock)
        self._clock = clock
        self._limit_s = transaction_timeout_s
        self._held_up: list[HeldUp] = []
        self._said: set[HeldUp] = set()
        self._since_s = clock.monotonic_s()
        self._events = structlog.get_logger("keyfold.sink")

    def is_done(self) -> bool:
        """Whether every log has reached its target. Raise `TransactionOpen` if transactions block it for too long."""
        catch_up = self._catch_up
        catch_up.saw(self._group.log_ends)
        running = {k: o for k, o in self._group.assigned.items() if o.is_fetched and o.writer is not None}
        writers = {key: owner.writer for key, owner in running.items() if owner.writer is not None}
        positions = {key: writer.position for key, writer in writers.items()}
        at_end = {key for key, position in positions.items() if running[key].eof_offset == position}
        for key in catch_up.to_flush(positions, at_end):
            if not writers[key].is_rolled:
                writers[key].roll(RollReason.CAUGHT_UP)
        elsewhere = catch_up.elsewhere(running)
        if elsewhere and self._timers.due("elsewhere", _ELSEWHERE_INTERVAL_S):
            self._background.start_call("elsewhere", lambda: self._look_at(elsewhere))
        catch_up.saw(self._background.take_result("elsewhere") or {})
        asked = [key for key in catch_up.left if key in at_end or key not in running]
        if asked and self._timers.due("stable", _STABLE_INTERVAL_S):
            self._background.start_call("stable", lambda: self._source.stable_end_offsets(asked))
        stable = self._background.take_result("stable")
        if stable is not None:
            self._wait(stable, running)
        return catch_up.is_done

    def _wait(self, stable: Mapping[TopicPartitionKey, int], mine: Iterable[TopicPartitionKey]) -> None:
        """Log open transactions. Raise `TransactionOpen` if they have blocked all that is left for too long."""
        now_s = self._clock.monotonic_s()
        held_up = self._catch_up.held_up(stable)
        for one in held_up:
            if one not in self._said and one.key in mine:
                self._said.add(one)
                self._events.warning(
                    "waiting for an open transaction",
                    topic=one.key[0],
                    partition=one.key[1],
                    last_stable_offset=one.stable_offset,
                    end_offset=one.end_offset,
                    at_most_s=self._limit_s,
                )
        is_all = len(held_up) == len(self._catch_up.left)
        if held_up != self._held_up or not is_all:
            self._since_s = now_s
        self._held_up = held_up
        if held_up and is_all and now_s - self._since_s >= self._limit_s:
            raise still_open(held_up, now_s - self._since_s)

    def _look_at(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        found: dict[TopicPartitionKey, int] = {}
        for key in keys:
            try:
                found[key] = self._open_log(key).load().manifest.next_offset
            except LogNotFound:
                continue
        return found
