"""Turn batches of the Kafka client into columns: the sink's hot loop.

The client returns one Python object per record. The functions here process a whole batch with `map` over the objects'
own methods, so that no Python bytecode runs per record. That makes most of the speed-up over a loop with a dozen calls.

    slices(messages)     pieces: the records of one partition each, and messages that are no records (errors, ends)
    columns(records)     records of one partition as `RecordColumns`

All pieces of one partition keep their order; there is no order between partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from keyfold.errors import SourceError
from keyfold.log.record import NO_LEADER_EPOCH, Header, RecordColumns
from keyfold_sink.topic_partition import TopicPartitionKey

NO_TIMESTAMP_MS: Final = -1
UNREADABLE_HEADERS: Final = "a header whose name is not UTF-8, which the Kafka client cannot return"
_NOT_TEXT: Final = (SystemError, UnicodeDecodeError)  # the client raises SystemError (seen with 2.16)


class UnreadableHeaders(SourceError):
    """Records with a header whose name is not UTF-8: the client returns them without their headers.

    `batch` holds all records, these with headers None; `places` are their indexes.
    """

    def __init__(self, topic: str, partition: int, batch: RecordColumns, places: Sequence[int]) -> None:
        super().__init__(
            topic,
            partition,
            f"the record at offset {batch.offsets[places[0]]} has {UNREADABLE_HEADERS}",
            hint="set errors.tolerance=all to skip such records",
        )
        self.batch = batch
        self.places = places


@dataclass(frozen=True, slots=True)
class MessageSlice:
    """Records of one partition, in offset order."""

    key: TopicPartitionKey
    records: Sequence[Message]


def slices(messages: list[Message]) -> Iterator[MessageSlice | Message]:
    """Split a batch by partition; yield a message with an error or a partition's end unchanged."""
    errors = list(map(Message.error, messages))
    if not any(errors):
        yield from _by_partition(messages)
        return
    begin = 0
    for at in compress(count(), errors):
        yield from _by_partition(messages[begin:at])
        yield messages[at]
        begin = at + 1
    yield from _by_partition(messages[begin:])


def _by_partition(records: list[Message]) -> Iterator[MessageSlice]:
    """Join the runs of each partition; the client returns records in runs of one partition."""
    if not records:
        return
    topics = list(map(Message.topic, records))
    partitions = list(map(Message.partition, records))
    cuts = [0]
    if topics.count(topics[0]) == len(topics):
        if partitions.count(partitions[0]) < len(partitions):
            cuts += compress(count(1), map(ne, partitions, partitions[1:]))
    else:
        keys = list(zip(topics, partitions, strict=True))
        cuts += compress(count(1), map(ne, keys, keys[1:]))
    runs: dict[TopicPartitionKey, list[list[Message]]] = {}
    for begin, end in zip(cuts, [*cuts[1:], len(records)], strict=True):
        runs.setdefault((topics[begin] or "", partitions[begin] or 0), []).append(records[begin:end])
    for key, parts in runs.items():
        yield MessageSlice(key, parts[0] if len(parts) == 1 else [record for part in parts for record in part])


def columns(records: Sequence[Message]) -> RecordColumns:
    """Return records of one partition as columns, byte for byte as in Kafka. Raise `UnreadableHeaders`."""
    times = list(map(Message.timestamp, records))
    timestamp_types, timestamps = zip(*times, strict=True) if times else ((), ())
    if TIMESTAMP_NOT_AVAILABLE in timestamp_types:
        timestamps = tuple(NO_TIMESTAMP_MS if k == TIMESTAMP_NOT_AVAILABLE else t for k, t in times)
    leader_epochs = list(map(Message.leader_epoch, records))
    if None in leader_epochs:
        leader_epochs = [NO_LEADER_EPOCH if epoch is None else epoch for epoch in leader_epochs]
    headers, unreadable = _headers(records)
    batch = RecordColumns(
        offsets=list(map(Message.offset, records)),  # type: ignore[arg-type]  # None only for errors
        timestamps=timestamps,
        timestamp_types=timestamp_types,
        keys=list(map(Message.key, records)),
        values=list(map(Message.value, records)),
        headers=headers,
        leader_epochs=leader_epochs,  # type: ignore[arg-type]  # None has gone from them
    )
    if unreadable:
        raise UnreadableHeaders(records[0].topic() or "", records[0].partition() or 0, batch, unreadable)
    return batch


def _headers(records: Sequence[Message]) -> tuple[list[list[Header] | None], list[int]]:
    """Return headers, and the indexes of records whose headers cannot be read.

    The headers of a message that has failed must not be read again: the client then returns a list with a null pointer
    in it, and the process crashes when it uses the list (seen with confluent-kafka 2.16).
    """
    found: list[list[Header] | None] = []
    unreadable: list[int] = []
    while len(found) < len(records):
        try:
            found.extend(map(Message.headers, records[len(found) :] if found else records))  # type: ignore[arg-type]  # the client returns lists of pairs
        except _NOT_TEXT:
            unreadable.append(len(found))  # the headers before it were read
            found.append(None)
    return found, unreadable


def cut(batch: RecordColumns, begin: int, end: int) -> RecordColumns:
    """Return records `begin` to `end` of a batch."""
    if begin == 0 and end >= len(batch):
        return batch
    return RecordColumns(
        batch.offsets[begin:end],
        batch.timestamps[begin:end],
        batch.timestamp_types[begin:end],
        batch.keys[begin:end],
        batch.values[begin:end],
        batch.headers[begin:end],
        batch.leader_epochs[begin:end],
    )


def without(batch: RecordColumns, places: Iterable[int]) -> RecordColumns:
    """Return a batch without the records at these indexes."""
    keeps = bytearray(b"\x01") * len(batch)
    for place in places:
        keeps[place] = 0
    columns_kept = (list(compress(getattr(batch, field), keeps)) for field in RecordColumns.__slots__)
    return RecordColumns(*columns_kept)


def value_bytes(records: Sequence[Message]) -> int:
    """Return the bytes of the values, by which the next batch is sized."""
    return sum(map(len, records))
