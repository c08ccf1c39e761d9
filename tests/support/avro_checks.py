"""The check for Avro over a registry, for tests: open it, wait for it, close it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from keyfold.log.record import RecordColumns
from keyfold.runtime.clock import SystemClock
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.registry_settings import RegistrySettings
from keyfold_sink.validate.convert.api import Checks, Rejected, SchemasPending
from keyfold_sink.validate.convert.converter_checks import checks_of
from keyfold_sink.validate.convert.registry_api import SchemaRegistry
from keyfold_sink.validate.convert.schemas import SchemaTimings
from tests.support.columns import batch

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "mail", "type": ["null", "string"], "default": None}],
}
QUICK = SchemaTimings(look_again_s=0.02)
ALICE = {"id": 1, "mail": ("string", "alice@example.org")}


@contextmanager
def opened(
    url: str,
    *,
    store: MemoryStore | None = None,
    key: bool = False,
    open_registry: Callable[[RegistrySettings], SchemaRegistry] | None = None,
    more: dict[str, str] | None = None,
    timings: SchemaTimings = QUICK,
) -> Iterator[Checks]:
    own = {"schema.registry.url": url, "http.read.timeout.ms": "300", **(more or {})}
    options: Any = SimpleNamespace(
        topics_dir="logs",
        key_converter="avro" if key else "bytes",
        key_converter_settings=own if key else {},
        value_converter="avro",
        value_converter_settings=own,
        header_converter="bytes",
        header_converter_settings={},
        errors_retry_timeout_ms=-1,
        errors_retry_delay_max_ms=10_000,
    )
    checks = checks_of(
        options,
        store=MemoryStore() if store is None else store,
        clock=SystemClock(),
        random=Random(1),
        open_registry=open_registry,
        schema_timings=timings,
    )
    assert checks is not None
    try:
        yield checks
    finally:
        checks.close()


def wait(checks: Checks, timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while checks.pending():
        assert time.monotonic() < deadline_s, "the registry's answer does not come"
        time.sleep(0.002)


def judged(checks: Checks, columns: RecordColumns, partition: int = 0) -> list[Rejected]:
    while True:
        try:
            return list(checks.judge("users", partition, columns))
        except SchemasPending:
            wait(checks)


def causes(checks: Checks, *column: bytes | None) -> list[tuple[int, str]]:
    return [(r.index, r.cause) for r in judged(checks, batch(column))]


def names(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("")]
