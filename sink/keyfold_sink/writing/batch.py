"""From what the Kafka client hands over to columns: the sink's hot loop.

The client gives one Python object per record. Everything here goes over a whole batch with `map` over the object's own
methods, so that no Python bytecode runs per record; that is most of the difference to a loop with a dozen calls.

    slices(messages)     consecutive pieces: records of one partition each, and what is not a record (errors, ends)
    columns(records)     records of one partition as `RecordColumns`

Pieces come in an order in which everything of one partition keeps its order; between partitions there is none to keep.
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

TopicPartitionKey = tuple[str, int]

NO_TIMESTAMP_MS: Final = -1
UNREADABLE_HEADERS: Final = "a header whose name is not UTF-8; the Kafka client cannot hand it over"
_NOT_TEXT: Final = (SystemError, UnicodeDecodeError)  # the former is what the client raises (seen with 2.16)


class UnreadableHeaders(SourceError):
    """Records with a header whose name is not UTF-8: the client hands over all of them but their headers.

    `batch` holds all records, these with headers None; `places` says which they are.
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
class Slice:
    """Records of one partition, in offset order."""

    key: TopicPartitionKey
    records: Sequence[Message]


def slices(messages: list[Message]) -> Iterator[Slice | Message]:
    """Cut a batch into pieces by partition; a message that carries an error or a partition's end comes as it is."""
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


def _by_partition(records: list[Message]) -> Iterator[Slice]:
    """The client hands over records in runs of one partition. Runs of the same partition are joined."""
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
        yield Slice(key, parts[0] if len(parts) == 1 else [record for part in parts for record in part])


def columns(records: Sequence[Message]) -> RecordColumns:
    """Records of one partition as columns, every byte as Kafka had it. Raises `UnreadableHeaders`."""
    times = list(map(Message.timestamp, records))
    timestamp_types, timestamps = zip(*times, strict=True) if times else ((), ())
    if TIMESTAMP_NOT_AVAILABLE in timestamp_types:
        timestamps = tuple(NO_TIMESTAMP_MS if k == TIMESTAMP_NOT_AVAILABLE else t for k, t in times)
    leader_epochs = list(map(Message.leader_epoch, records))
    if None in leader_epochs:
        leader_epochs = [NO_LEADER_EPOCH if epoch is None else epoch for epoch in leader_epochs]
    headers, unreadable = _headers(records)
    batch = RecordColumns(
        offsets=list(map(Message.offset, records)),  # type: ignore[arg-type]  # None only where there is an error
        timestamps=timestamps,
        timestamp_types=timestamp_types,
        keys=list(map(Message.key, records)),
        values=list(map(Message.value, records)),
        headers=headers,
        leader_epochs=leader_epochs,  # type: ignore[arg-type]
    )
    if unreadable:
        raise UnreadableHeaders(records[0].topic() or "", records[0].partition() or 0, batch, unreadable)
    return batch


def _headers(records: Sequence[Message]) -> tuple[list[list[Header] | None], list[int]]:
    """Headers, and the places where they cannot be read.

    A message that has failed must not be asked again: the client then returns a list with a null pointer in it, and
    the process dies where it is looked at (seen with confluent-kafka 2.16).
    """
    found: list[list[Header] | None] = []
    unreadable: list[int] = []
    while len(found) < len(records):
        try:
            found.extend(map(Message.headers, records[len(found) :] if found else records))  # type: ignore[arg-type]
        except _NOT_TEXT:
            unreadable.append(len(found))  # what came before it was taken
            found.append(None)
    return found, unreadable


def cut(batch: RecordColumns, begin: int, end: int) -> RecordColumns:
    """Records `begin` to `end` of a batch."""
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
    """The other records of a batch."""
    keeps = bytearray(b"\x01") * len(batch)
    for place in places:
        keeps[place] = 0
    columns_kept = (list(compress(getattr(batch, field), keeps)) for field in RecordColumns.__slots__)
    return RecordColumns(*columns_kept)


def value_bytes(records: Sequence[Message]) -> int:
    """Bytes of the values: what the size of the next batch is judged by."""
    return sum(map(len, records))
