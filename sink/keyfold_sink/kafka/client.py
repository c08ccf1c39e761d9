"""The part of the Kafka client's consumer that the sink uses, as a protocol, so that tests can use a fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from confluent_kafka import KafkaError, Message, TopicPartition

OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]
"""Called with the answer to a commit."""
OnPartitions: TypeAlias = "Callable[[GroupConsumer, list[TopicPartition]], None]"
"""Called with partitions that are assigned or taken away."""


class GroupConsumer(Protocol):
    """The methods of `confluent_kafka.Consumer` that the sink uses, as documented there."""

    def subscribe(self, topics: list[str], **callbacks: OnPartitions) -> None: ...  # noqa: D102 - the class is documented as a whole
    def consume(self, num_messages: int, timeout: float) -> list[Message]: ...  # noqa: D102 - the class is documented as a whole
    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...  # noqa: D102 - the class is documented as a whole
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...  # noqa: D102 - the class is documented as a whole
    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> object: ...  # noqa: D102 - the class is documented as a whole
    def pause(self, partitions: list[TopicPartition]) -> None: ...  # noqa: D102 - the class is documented as a whole
    def resume(self, partitions: list[TopicPartition]) -> None: ...  # noqa: D102 - the class is documented as a whole
    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool) -> tuple[int, int]: ...  # noqa: D102 - the class is documented as a whole
    def close(self) -> None: ...  # noqa: D102 - the class is documented as a whole
