"""The conversion of the client's messages to columns."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from keyfold.errors import SourceError
from keyfold.log.record import NO_LEADER_EPOCH
from keyfold_sink.write import batch as batch_module
from keyfold_sink.write.batch import MessageSlice, columns, cut, slices, value_bytes


def message(topic: str, partition: int, offset: int, *, error: KafkaError | None = None) -> Message:
    return Message(
        topic=topic, partition=partition, offset=offset, key=b"k", value=b"%d" % offset, timestamp=(1, 5), error=error
    )


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(20))
def test_every_record_is_in_exactly_one_piece_and_in_order(seed: int) -> None:
    random = Random(seed)
    topics = ["a", "b", "c"][: random.randint(1, 3)]
    nexts: dict[tuple[str, int], int] = defaultdict(int)
    batch: list[Message] = []
    for _ in range(random.randint(1, 40)):
        key = (random.choice(topics), random.randrange(3))
        for _ in range(random.randint(1, 5)):
            error = KafkaError(KafkaError._PARTITION_EOF) if random.random() < 0.1 else None
            batch.append(message(*key, nexts[key], error=error))
            nexts[key] += 1
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    for piece in slices(batch):
        if isinstance(piece, MessageSlice):
            assert {(m.topic(), m.partition()) for m in piece.records} == {piece.key}
            seen[piece.key] += [m.offset() or 0 for m in piece.records]
        else:
            assert piece.error() is not None
            seen[piece.topic() or "", piece.partition() or 0].append(piece.offset() or 0)
    assert seen == {key: list(range(end)) for key, end in nexts.items()}


def test_columns_have_the_messages_values() -> None:
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None)]
    batch = columns(
        [
            Message(topic="t", partition=0, offset=7, key=b"", value=None, timestamp=(1, 11), leader_epoch=4),
            Message(topic="t", partition=0, offset=9, key=None, value=b"", timestamp=(2, 12), headers=headers),
            Message(topic="t", partition=0, offset=10, timestamp=(0, 0)),
        ]
    )
    assert list(batch.offsets) == [7, 9, 10]
    assert list(batch.keys) == [b"", None, None]
    assert list(batch.values) == [None, b"", None]
    assert list(batch.timestamp_types) == [1, 2, 0]
    assert list(batch.timestamps) == [11, 12, -1]
    assert list(batch.headers) == [None, headers, None]
    assert list(batch.leader_epochs) == [4, NO_LEADER_EPOCH, NO_LEADER_EPOCH]


def test_a_slice_has_all_columns() -> None:
    batch = columns([message("t", 0, offset) for offset in range(5)])
    part = cut(batch, 2, 4)
    assert list(part.offsets) == [2, 3]
    assert list(part.values) == [b"2", b"3"]
    assert len(part.headers) == len(part.leader_epochs) == len(part.timestamps) == 2
    assert cut(batch, 0, 9) is batch


def test_the_size_of_a_batch_is_that_of_its_values() -> None:
    assert value_bytes([message("t", 0, 1000), Message(topic="t", partition=0, offset=1, value=None)]) == 4
    assert list(slices([])) == []


def test_an_unreadable_header_name_is_an_error_that_names_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client raises SystemError for a header name that is not UTF-8 (seen with confluent-kafka 2.16)."""

    class Unreadable(Message):
        def headers(self) -> Any:
            if self.offset() == 8:
                raise SystemError("returned a result with an exception set")
            return super().headers()

    monkeypatch.setattr(batch_module, "Message", Unreadable)
    records = [Unreadable(topic="t", partition=3, offset=n, timestamp=(1, 1)) for n in (7, 8, 9)]
    with pytest.raises(SourceError, match=r"t-3: the record at offset 8 has a header whose name is not UTF-8"):
        columns(records)
