"""A task's blocks: large ones, but small ones if its partitions share little memory."""

from __future__ import annotations

import pytest

from keyfold.log.avro import StoredBlock, read_blocks
from keyfold.store.memory import MemoryStore
from keyfold_sink.task.commands import TaskCommand
from tests.support.proof import manifest_of
from tests.support.sink_rig import T0, rigs

RECORDS, VALUE_BYTES = 600, 1000


@pytest.mark.parametrize(("partitions", "block_bytes"), [(1, 256 * 1024), (50, 64 * 1024)])
def test_blocks_follow_the_number_of_partitions(partitions: int, block_bytes: int) -> None:
    store = MemoryStore()
    with rigs() as build:
        rig = build(store, buffer__memory=str(16 * 1024 * 1024))
        rig.kafka.produce(T0, range(RECORDS), b"v" * VALUE_BYTES)
        rig.kafka.tell("on_assign", *[("t", number) for number in range(partitions)])
        rig.until(lambda: rig.kafka.fetched.get(T0) == RECORDS)
        rig.commands.add(TaskCommand.FLUSH)
        rig.until(lambda: rig.next_offset() == RECORDS)
    (entry,) = manifest_of(store, *T0).segments
    blocks = read_blocks(store.get(f"topics/t/partition=0/{entry.name}").data)
    most = max(block.record_count for block in blocks if isinstance(block, StoredBlock))
    assert 0.9 * block_bytes < most * VALUE_BYTES < block_bytes
