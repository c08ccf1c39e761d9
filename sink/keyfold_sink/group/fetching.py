"""Which partitions the client fetches: those that are claimed, unless there is a reason to pause.

Reasons are independent, and fetching continues when none is left. Reasons of the whole task are kept here. Those of one
partition are kept with it (`AssignedPartition.holds`), and end with its attempt. The client remembers a pause beyond
unassigning (seen with librdkafka 2.16), so each partition is paused or resumed when fetching of it begins.

A pause discards records that the client has fetched and not returned; they are fetched again. A pause longer than the
time for which a tombstone stays in the topic has the effect of an absence. So the source is checked after it as after a
claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from confluent_kafka import KafkaException, TopicPartition

from keyfold.runtime.clock import Clock
from keyfold_sink.group.assignment import AssignedPartition, PauseReason
from keyfold_sink.kafka.client import GroupConsumer
from keyfold_sink.kafka.source import Resumed, was_away
from keyfold_sink.status import UNKNOWN
from keyfold_sink.topic_partition import TopicPartitionKey


class PartitionFetching:
    """The fetching of one task. Only the main thread uses it. `reasons` pause the whole task."""

    def __init__(self, assigned: Mapping[TopicPartitionKey, AssignedPartition], clock: Clock) -> None:
        self.reasons: set[PauseReason] = set()
        self._assigned = assigned
        self._clock = clock
        self._consumer: GroupConsumer | None = None

    @property
    def has_joined(self) -> bool:
        """Whether a client has subscribed."""
        return self._consumer is not None

    @property
    def consumer(self) -> GroupConsumer:
        """The client."""
        assert self._consumer is not None
        return self._consumer

    def set_consumer(self, consumer: GroupConsumer) -> None:
        """Set the client."""
        self._consumer = consumer

    def start_fetching(self, owner: AssignedPartition, start: TopicPartition) -> None:
        """Start fetching at `start` once the partition is not paused."""
        self.consumer.incremental_assign([start])
        owner.is_fetched = True
        self._tell([owner], pause=bool(self.reasons or owner.holds))

    def stop_fetching(self, owners: Iterable[AssignedPartition]) -> None:
        """Stop fetching these partitions."""
        fetched = [owner for owner in owners if owner.is_fetched]
        for owner in fetched:
            owner.is_fetched = False
        if fetched:
            self.consumer.incremental_unassign([TopicPartition(*owner.key) for owner in fetched])

    def pause(self, reason: PauseReason) -> None:
        """Pause fetching of all partitions, also of those claimed later; the group membership continues."""
        was_on = bool(self.reasons)
        self.reasons.add(reason)
        if not was_on:
            self._tell(self._free(), pause=True)

    def resume(self, reason: PauseReason) -> None:
        """Resume fetching, unless there is another reason to pause."""
        was_on = bool(self.reasons)
        self.reasons.discard(reason)
        if was_on and not self.reasons:
            self._tell(self._free(), pause=False)

    def hold(self, owner: AssignedPartition, reason: PauseReason) -> None:
        """Pause fetching of one partition."""
        was_held = bool(owner.holds)
        owner.holds.add(reason)
        if not was_held and owner.is_fetched and not self.reasons:
            self._tell([owner], pause=True)

    def release(self, owner: AssignedPartition, reason: PauseReason) -> None:
        """Resume fetching of one partition, unless there is another reason to pause."""
        was_held = bool(owner.holds)
        owner.holds.discard(reason)
        if was_held and not owner.holds and owner.is_fetched and not self.reasons:
            self._tell([owner], pause=False)

    def end_offset(self, owner: AssignedPartition) -> int:
        """Return the high watermark of the client's last fetch, `UNKNOWN` before. Makes no request."""
        if not owner.is_fetched:
            return UNKNOWN
        try:
            _, high = self.consumer.get_watermark_offsets(owner.place, cached=True)
        except KafkaException:
            return UNKNOWN
        return high if high >= 0 else UNKNOWN

    def _free(self) -> list[AssignedPartition]:
        return [owner for owner in self._assigned.values() if owner.is_fetched and not owner.holds]

    def _tell(self, owners: Sequence[AssignedPartition], *, pause: bool) -> None:
        if owners:
            places = [TopicPartition(*owner.key) for owner in owners]
            (self.consumer.pause if pause else self.consumer.resume)(places)
        for owner in owners:
            if not pause:
                self._goes_on(owner)
            elif owner.paused_s is None:
                owner.paused_s = self._clock.monotonic_s()

    def _goes_on(self, owner: AssignedPartition) -> None:
        """Record where and when reading resumes after a pause."""
        paused_s, owner.paused_s = owner.paused_s, None
        nothing_read = not owner.has_read and owner.resumed is None
        if paused_s is None or owner.writer is None or nothing_read:
            return
        now_ms, took_ms = self._clock.now_ms(), round((self._clock.monotonic_s() - paused_s) * 1000)
        settings = owner.writer.manifest.settings
        at = Resumed(*owner.key, owner.writer.position, now_ms - took_ms, now_ms, settings)
        if was_away(at):
            before = owner.resumed  # an earlier absence that no record has followed yet began before this pause
            owner.resumed = at if before is None or not was_away(before) else replace(before, now_ms=now_ms)
