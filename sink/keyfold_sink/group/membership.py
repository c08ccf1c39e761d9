"""Confirm that this process is a member of the group's current generation, by committing a group offset with a token.

The coordinator accepts a commit only from a member. So a process that was suspended and has lost its partitions does
not pass this stage (see `keyfold_sink.group.assignment`). Partitions are confirmed together, and again until there is
an answer. An answer to an older attempt has another token, and is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog
from confluent_kafka import KafkaError, TopicPartition

from keyfold.runtime.clock import Clock
from keyfold_sink.group.assignment import AssignedPartition, Claims, PartitionStage, PartitionStopped
from keyfold_sink.kafka.cluster import FORBIDDEN, GONE
from keyfold_sink.kafka.source import SourceForbidden, TopicForbidden
from keyfold_sink.topic_partition import TopicPartitionKey

_CONFIRM_AGAIN_S: Final = 10.0
_REFUSED_AGAIN_S: Final = 0.5


class Membership:
    """The confirmations of one task. Only the main thread uses it.

    `commit` sends group offsets, `stopped` ends a partition's work with an error.
    """

    def __init__(
        self,
        assigned: Mapping[TopicPartitionKey, AssignedPartition],
        claims: Claims,
        commit: Callable[[list[TopicPartition]], None],
        stopped: Callable[[PartitionStopped], None],
        clock: Clock,
    ) -> None:
        self._assigned = assigned
        self._claims = claims
        self._commit = commit
        self._stopped = stopped
        self._clock = clock
        self._attempts = 0
        self._events = structlog.get_logger("keyfold.sink")

    def confirm(self) -> None:
        """Send commits for all partitions that are due."""
        now_s = self._clock.monotonic_s()
        offsets = []
        for owner in self._assigned.values():
            if owner.stage is PartitionStage.CONFIRMING and owner.confirm_at_s <= now_s:
                self._attempts += 1
                owner.token = f"keyfold claim {self._attempts}"
                owner.confirm_at_s = now_s + _CONFIRM_AGAIN_S
                offsets.append(TopicPartition(*owner.key, owner.next_offset, metadata=owner.token))
        if offsets:
            self._commit(offsets)

    def answered(self, offset: TopicPartition, refused: KafkaError | None) -> None:
        """Handle the group's answer for one partition."""
        owner = self._assigned.get((offset.topic, offset.partition))
        if owner is None or owner.stage is not PartitionStage.CONFIRMING or offset.metadata != owner.token:
            return
        if refused is None:
            owner.stage = PartitionStage.CLAIMING
            owner.queue.submit(lambda: self._claims.claim(owner))
        elif refused.code() in FORBIDDEN:
            kind = TopicForbidden if refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else SourceForbidden
            self._stopped(
                PartitionStopped(owner, kind(f"{owner.key[0]}: Kafka refuses to commit group offsets: {refused.str()}"))
            )
        else:
            self._refused(owner, refused)

    def _refused(self, owner: AssignedPartition, refused: KafkaError) -> None:
        """Handle a refusal: the process is no longer a member, or the group is rebalancing; the next answer decides."""
        owner.confirm_at_s = self._clock.monotonic_s() + _REFUSED_AGAIN_S
        owner.health.failed(f"group membership not confirmed: {refused.str()}")
        self._events.info(
            "group membership not confirmed yet", topic=owner.key[0], partition=owner.key[1], error=refused.str()
        )
        if refused.code() in GONE:
            owner.queue.submit(lambda: self._claims.require_topic(owner))
