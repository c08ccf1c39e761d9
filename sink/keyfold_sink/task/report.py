"""What a task says of itself, made in its main loop: values that are read off, nothing is asked and nothing waited for.

RUNNING is said of a task that is a member of its group and has partitions that it may write, or rightly none. Whether
it idles or is held up shows in each partition: `lag_records` with `blocked_ms` and `error`; in the trace there is what
is in the way of all of them. It is not said where the store refuses all that there is to do: that will not pass by
itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from keyfold.clock import Clock, Moment
from keyfold_sink.group.assignment import Assigned, PauseReason, Stage
from keyfold_sink.group.group import Group
from keyfold_sink.status import UNKNOWN, PartitionStatus, State, TaskStatus
from keyfold_sink.task.timings import REPORT_INTERVAL_S
from keyfold_sink.writing.batch import TopicPartitionKey

_NAMED_FAILURES: Final = 10

Send = Callable[[TaskStatus], None]
Values = Callable[[], Mapping[str, float]]


def no_values() -> Mapping[str, float]:
    """For a task whose metrics nobody counts."""
    return {}


class Voice:
    """Sends a task's statuses: who it is, and when it last said something. `values` gives the metrics to be told."""

    def __init__(
        self,
        number: int,
        clock: Clock,
        send: Send,
        values: Values = no_values,
        *,
        interval_s: float = REPORT_INTERVAL_S,
    ) -> None:
        self.number = number
        self._interval_s = interval_s
        self._clock = clock
        self._send = send
        self.values = values
        self._pid = os.getpid()
        self._started_ms = clock.now_ms()
        self._due_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """The time by the clock that statuses go by."""
        return self._clock.now_ms()

    def moment(self) -> Moment:
        """The present moment, by the clock that statuses go by."""
        return Moment(self._clock)

    def is_due(self) -> bool:
        """Whether it is time to say something again."""
        return self._clock.monotonic_s() >= self._due_s

    def say(self, state: State, trace: str = "", partitions: Sequence[PartitionStatus] = ()) -> None:
        """Send a status now."""
        self._due_s = self._clock.monotonic_s() + self._interval_s
        self._send(
            TaskStatus(
                self.number,
                state,
                trace,
                self._pid,
                self._started_ms,
                self._clock.now_ms(),
                tuple(partitions),
                self.values(),
            )
        )


class Report:
    """Reads a task's state off its group. `ends` are end offsets of partitions that the client does not fetch.

    A transaction lasts for a moment. One that is open for longer than `transaction_ms` is reported: it blocks all
    readers of committed records.
    """

    def __init__(self, group: Group, voice: Voice, transaction_ms: int) -> None:
        self.ends: Mapping[TopicPartitionKey, int] = {}
        self._group = group
        self._voice = voice
        self._transaction_ms = transaction_ms

    def tick(self) -> None:
        """Report if it is time to. Cheap enough to be called at every turn of a loop that waits."""
        if self._voice.is_due():
            self.now()

    def now(self) -> None:
        """Report."""
        owners = self._group.assigned.values()
        self._voice.say(self.state(), self.trace(), [self._partition(owner) for owner in owners])

    def unread(self) -> list[TopicPartitionKey]:
        """Partitions whose end nobody would see: they are not fetched now."""
        if self._group.fetching.reasons:
            return list(self._group.assigned)
        return [key for key, owner in self._group.assigned.items() if not owner.is_fetched or owner.holds]

    def state(self) -> State:
        """The task's state in Connect's words."""
        group = self._group
        stages = {owner.stage for owner in group.assigned.values()}
        if Stage.FAILED in stages:
            return State.FAILED
        if not group.is_member:
            return State.UNASSIGNED
        if PauseReason.ORDER in group.fetching.reasons:
            return State.PAUSED
        if Stage.RUNNING in stages:
            return State.UNASSIGNED if self._is_refused() else State.RUNNING
        return State.UNASSIGNED if stages else State.RUNNING

    def trace(self) -> str:
        """What has failed; where nothing has, what is in the way."""
        failed = [owner for owner in self._group.assigned.values() if owner.failure is not None]
        if failed:
            return failures(failed)
        fetching = self._group.fetching
        words = [f"reading pauses: {why.value}" for why in fetching.reasons if why is not PauseReason.ORDER]
        if not fetching.has_joined:
            words.append("no topic matches topics.regex")
        return "; ".join([*words, *self._refusals(), *self._group.troubles.words()])

    def _is_refused(self) -> bool:
        """Whether the store refuses each partition that has something to do."""
        owners = [owner for owner in self._group.assigned.values() if owner.stage is Stage.RUNNING]
        if not any(owner.health.is_refused for owner in owners):
            return False
        return all(owner.health.is_refused for owner in owners if self._partition(owner).lag_records != 0)

    def _refusals(self) -> list[str]:
        """What the store refuses, in its words."""
        refused = [owner.health.error for owner in self._group.assigned.values() if owner.health.is_refused]
        if not refused:
            return []
        return [f"{len(refused)} partitions wait for the right to go on: {refused[0]}"]

    def _partition(self, owner: Assigned) -> PartitionStatus:
        topic, number = owner.key
        writer = owner.writer
        end_offset = self._group.fetching.end_offset(owner)
        error, error_ms, blocked_ms = self._in_the_way(owner, end_offset)
        return PartitionStatus(
            topic,
            number,
            self._state(owner),
            owner.next_offset if writer is not None or owner.pinned is not None else UNKNOWN,
            UNKNOWN if writer is None else writer.position,
            max(end_offset, self.ends.get(owner.key, UNKNOWN), UNKNOWN if writer is None else owner.end_offset),
            UNKNOWN if writer is None else writer.oldest_record_ms,
            owner.committed_ms,
            error,
            error_ms,
            blocked_ms,
        )

    def _in_the_way(self, owner: Assigned, end_offset: int) -> tuple[str, int, int]:
        """A partition's last error, when it was, and since when it blocks."""
        if owner.failure is not None:
            return str(owner.failure), owner.failed_ms, owner.failed_ms
        since_ms = self._waits_since_ms(owner, end_offset)
        health = owner.health
        if since_ms == UNKNOWN or health.blocked_ms != UNKNOWN:
            return health.error, health.error_ms, health.blocked_ms
        words = f"{end_offset - owner.eof_offset} offsets wait for a transaction in the topic that is still open"
        return words, self._voice.now_ms(), since_ms

    def _waits_since_ms(self, owner: Assigned, end_offset: int) -> int:
        """Since when Kafka has more than a reader of committed records may have, if that is no matter of a moment."""
        reads = owner.is_fetched and not owner.holds and not self._group.fetching.reasons
        if not reads or owner.writer is None or not owner.eof_offset == owner.writer.position < end_offset:
            owner.waits_since = None
            return UNKNOWN
        if owner.waits_since is None:
            owner.waits_since = self._voice.moment()
        return owner.waits_since.wall_ms if owner.waits_since.age_ms >= self._transaction_ms else UNKNOWN

    def _state(self, owner: Assigned) -> State:
        if owner.stage is Stage.FAILED:
            return State.FAILED
        if owner.stage is not Stage.RUNNING:
            return State.UNASSIGNED
        return State.PAUSED if PauseReason.ORDER in self._group.fetching.reasons else State.RUNNING


def failures(failed: Sequence[Assigned]) -> str:
    """The trace of a task with partitions that have failed."""
    named = [_named(owner) for owner in failed[:_NAMED_FAILURES]]
    if len(failed) == 1:
        return named[0]
    more = [f"and {len(failed) - _NAMED_FAILURES} more"] * (len(failed) > _NAMED_FAILURES)
    return "\n".join([f"{len(failed)} partitions have failed; restart the task to begin them anew", *named, *more])


def _named(owner: Assigned) -> str:
    words, name = str(owner.failure), "{}-{}".format(*owner.key)
    return words if name in words else f"{name}: {words}"
