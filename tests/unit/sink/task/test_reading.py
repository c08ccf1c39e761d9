"""The batch size requested from the client if small and large records alternate."""

from __future__ import annotations

from typing import Any, cast

from keyfold.runtime.clock import ManualClock
from keyfold_sink.config.memory_plan import LARGEST_BATCH, plan_memory
from keyfold_sink.config.options import GapPolicy
from keyfold_sink.group.group import ConsumerGroup
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.task.reading import BatchReader
from keyfold_sink.validate.record_validation import RecordValidation

MIB = 1024 * 1024
SMALL, LARGE = b"x" * 100, b"x" * (20 * MIB)


class Nobody:
    """A group that no longer has any of the partitions."""

    class client_errors:  # noqa: N801 - the name of a module
        @staticmethod
        def moves() -> None: ...

    @staticmethod
    def running(_key: object) -> None: ...


class Read:
    """The part of a record that is read before its partition is known."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __len__(self) -> int:
        return len(self.value)


def reading(monkeypatch: Any) -> BatchReader:
    monkeypatch.setattr("keyfold_sink.task.reading.slices", lambda _messages: iter(()))
    group = cast("ConsumerGroup", cast("Any", Nobody))
    return BatchReader(group, GapPolicy.FAIL, cast("RecordValidation", None), TaskMeter(ManualClock()))


def take(found: BatchReader, *values: bytes) -> int:
    """Hand over a batch and return the requested size of the next one."""
    found.accept_messages(cast("Any", [Read(value) for value in values]))
    return plan_memory(256 * MIB).batch_records(found.expected_record_bytes)


def test_batches_are_small_after_large_records(monkeypatch: Any) -> None:
    found = reading(monkeypatch)
    assert take(found, *[SMALL] * 100) == LARGEST_BATCH
    assert take(found, LARGE, *[SMALL] * 50) <= 40
    assert take(found, *[SMALL] * 40) <= 45, "small ones in between"
    assert found.large_record_bytes > 0.9 * len(LARGE)
    for _ in range(200):
        asked = take(found, *[SMALL] * 40)
    assert asked == LARGEST_BATCH
    assert found.large_record_bytes == 0
