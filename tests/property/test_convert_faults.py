"""A registry and a store that fail at random, with many partitions and new schemas: a checked schema is archived."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from random import Random

import pytest

from keyfold.errors import ConditionUndecided, StoreUnavailable
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.log.names import schema_key
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import Blob, PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold_sink.validate.convert.api import SchemasPending
from keyfold_sink.validate.convert.avro_check import VALUE_HEADER, AvroCheck
from keyfold_sink.validate.convert.registry_api import (
    RegisteredSchema,
    RegistryRefused,
    RegistryUnavailable,
    SchemaKey,
    SchemaUnknown,
)
from keyfold_sink.validate.convert.schemas import RegistryRetry, Schemas, SchemaTimings

SCHEMAS = 60
UNKNOWN = 1000
PARTITIONS = 7
BATCHES = 12


class FaultyRegistry:
    """A registry of fixed types with their size as id; unreachable, slow, lagging, or refusing now and then."""

    url = "http://faulty"

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._seen: Counter[SchemaKey] = Counter()
        self._main_thread = threading.get_ident()
        self._lock = threading.Lock()

    def schema(self, key: SchemaKey) -> RegisteredSchema:
        assert threading.get_ident() != self._main_thread, "the main thread asks, and waits"
        with self._lock:
            chance, self._seen[key] = self._random.random(), self._seen[key] + 1
        time.sleep(chance * 0.002)
        if chance < 0.3:
            raise RegistryUnavailable("away")
        if chance < 0.32:
            raise RegistryRefused("no rights just now")
        assert isinstance(key, int)
        if key >= UNKNOWN or (chance > 0.95 and self._seen[key] == 1):
            raise SchemaUnknown("nobody has registered it")
        return RegisteredSchema("AVRO", json.dumps({"type": "fixed", "name": "F", "size": key % 5}))

    def close(self) -> None:
        """Do nothing."""


class FaultyStore(MemoryStore):
    """A store whose writes fail before or after they have landed, and whose reads fail."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)
        self._chance = threading.Lock()
        self._main_thread = threading.get_ident()

    def _fails(self) -> float:
        assert threading.get_ident() != self._main_thread, "the main thread asks, and waits"
        with self._chance:
            return self._random.random()

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        chance = self._fails()
        if chance < 0.1:
            raise ConditionUndecided(key, "409")
        if chance < 0.2:
            raise StoreUnavailable(key, "503")
        done = super().put(key, data, mode)
        if chance < 0.4:
            raise StoreUnavailable(key, "the answer is lost")
        return done

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        if self._fails() < 0.2:
            raise StoreUnavailable(key, "503")
        return super().get(key, max_bytes)


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(8))
def test_every_batch_is_checked_eventually_and_no_record_passes_before_its_schema_is_archived(
    seed: int,
) -> None:
    random, store = Random(seed), FaultyStore(seed)
    schemas = Schemas(
        FaultyRegistry(seed),
        SchemaArchive(store, "logs"),
        clock=SystemClock(),
        random=Random(seed),
        cache_size=random.choice([1, 5, 200]),
        retry=RegistryRetry(Backoff(first_ms=1, cap_ms=3)),
        timings=SchemaTimings(look_again_s=0.001, refused_for_s=0.05),
    )
    check = AvroCheck(schemas, VALUE_HEADER)
    left = {partition: [_batch(random) for _ in range(BATCHES)] for partition in range(PARTITIONS)}
    deadline_s = time.monotonic() + 60
    try:
        while any(left.values()):
            assert time.monotonic() < deadline_s, "some batch waits for ever"
            partition = random.choice([partition for partition, batches in left.items() if batches])
            column, expected = left[partition][0]
            try:
                found = check.failures(("t", partition, len(left[partition]), 0, len(column)), column, ())
            except (SchemasPending, RegistryRefused):
                schemas.pending()
                time.sleep(0.0005)
                continue
            assert {failure.index: failure.cause for failure in found} == expected
            for index, value in enumerate(column):
                if value is not None and index not in expected:
                    assert store._objects[schema_key("logs", int.from_bytes(value[1:5]))]
            left[partition].pop(0)
    finally:
        check.close()


def _batch(random: Random) -> tuple[list[bytes | None], dict[int, str]]:
    """Return a column and the records in it that fail."""
    column: list[bytes | None] = []
    expected: dict[int, str] = {}
    for index in range(random.randrange(1, 30)):
        key = random.randrange(SCHEMAS)
        kind = random.choice(["good", "good", "good", "null", "long", "short", "unknown", "none"])
        size = key % 5 + (kind == "long") - (kind == "short")
        if kind == "null":
            column.append(None)
        elif kind == "none":
            column.append(b"\x07")
            expected[index] = "no magic byte"
        elif kind == "unknown":
            column.append(b"\0" + (UNKNOWN + key % 3).to_bytes(4))
            expected[index] = "unknown schema"
        elif size < 0:
            column.append(None)
        else:
            column.append(b"\0" + key.to_bytes(4) + bytes(size))
            if kind in {"long", "short"}:
                expected[index] = "bytes left over" if kind == "long" else "does not decode"
    return column, expected
