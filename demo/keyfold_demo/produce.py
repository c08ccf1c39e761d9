"""Load records into a topic fast, and know that every one of them arrived.

The client's queue is finite: where it is full, we wait; at the end we flush and raise the first error of any delivery.
Partitions are chosen by the caller, or by a hash of the key as Kafka's own producer does it (murmur2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from keyfold.errors import KeyfoldError
from keyfold_demo.treeproof import Change

Headers = list[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, int | None, int | None]

_PROGRESS_EVERY: Final = 10_000
_FLUSH_TIMEOUT_S: Final = 120


def produce_changes(
    bootstrap_servers: str,
    topic: str,
    changes: Iterable[Change],
    *,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Load a changelog: key, value, timestamp, partition by key. Returns how many records were acknowledged."""
    rows = ((change.key, change.value, change.timestamp_ms, None) for change in changes)
    return produce_all(bootstrap_servers, topic, rows, config=config, progress=progress)


def produce_all(
    bootstrap_servers: str,
    topic: str,
    rows: Iterable[Row],
    *,
    headers: Headers | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Produce rows of (key, value, timestamp in ms or None, partition or None); they keep their order per partition.

    Returns the number of acknowledged records. Raises `KeyfoldError` where one was refused or not answered.
    """
    delivery = _Delivery()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.num.messages": 10_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
            "partitioner": "murmur2_random",
            **(config or {}),
        }
    )
    sent = 0
    for row in rows:
        _send(producer, topic, _arguments(row, headers) | {"on_delivery": delivery})
        sent += 1
        if sent % _PROGRESS_EVERY == 0:
            producer.poll(0)
            delivery.check(topic)
            if progress is not None:
                progress(sent)
    producer.flush(_FLUSH_TIMEOUT_S)
    delivery.check(topic, expected=sent)
    if progress is not None:
        progress(sent)
    return sent


class _Delivery:
    """Counts what the broker acknowledged, and keeps the first refusal."""

    def __init__(self) -> None:
        self._acknowledged = 0
        self._error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._acknowledged += 1
        elif self._error is None:
            self._error = error

    def check(self, topic: str, expected: int = 0) -> None:
        """Raise for a refusal, or where fewer than `expected` are acknowledged."""
        if self._error is not None:
            raise KeyfoldError(f"topic {topic} refused a record: {self._error.str()}")
        if self._acknowledged < expected:
            missing = expected - self._acknowledged
            raise KeyfoldError(f"topic {topic}: {missing} of {expected} records got no answer in {_FLUSH_TIMEOUT_S} s")


def _arguments(row: Row, headers: Headers | None) -> dict[str, Any]:
    key, value, timestamp_ms, partition = row
    arguments: dict[str, Any] = {"key": key, "value": value}
    if timestamp_ms is not None:
        arguments["timestamp"] = timestamp_ms
    if partition is not None:
        arguments["partition"] = partition
    if headers is not None:
        arguments["headers"] = headers
    return arguments


def _send(producer: Producer, topic: str, arguments: dict[str, Any]) -> None:
    """Wait for room where the queue is full."""
    while True:
        try:
            producer.produce(topic, **arguments)
        except BufferError:
            producer.poll(0.1)
        else:
            return
