"""How long a Schema Registry may be unreachable: `errors.retry.timeout`, `errors.retry.delay.max.ms`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from keyfold.errors import StoreUnavailable
from keyfold.formats.schema_archive import SchemaArchive
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.runtime.retry import Backoff
from keyfold.store.api import PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.group.error_scope import ErrorScope, scope_of
from keyfold_sink.status import RunState
from keyfold_sink.validate.convert.api import Checks
from keyfold_sink.validate.convert.converter_checks import checks_of
from keyfold_sink.validate.convert.registry_api import (
    AVRO,
    RegisteredSchema,
    RegistryGivenUp,
    RegistryUnavailable,
    SchemaKey,
    SchemaUnknown,
)
from keyfold_sink.validate.convert.schemas import (
    KnownSchema,
    RefusedSchema,
    RegistryRetry,
    Schemas,
    _Outage,
    registry_retry,
)
from tests.support.avro_checks import QUICK
from tests.support.sink_rig import T0, MakeRig, rigs

DELAYS = Backoff(first_ms=1, cap_ms=3)
MINIMAL = {"name": "users", "topics": "t", "bootstrap.servers": "x", "s3.bucket.name": "b", "topics.dir": "topics"}
AVRO_VALUES = {"value.converter": "avro", "value.converter.schema.registry.url": "http://127.0.0.1:1"}


class AwayRegistry:
    """A registry that does not answer while `is_away`."""

    url = "http://registry"

    def __init__(self) -> None:
        self.is_away = True
        self.asked = 0

    def schema(self, key: SchemaKey) -> RegisteredSchema:
        self.asked += 1
        if self.is_away:
            raise RegistryUnavailable("the Schema Registry at http://registry does not answer")
        if key == 404:
            raise SchemaUnknown("no")
        return RegisteredSchema(AVRO, '"long"')

    def close(self) -> None:
        pass


def schemas(registry: AwayRegistry, give_up_after_s: float | None, store: MemoryStore | None = None) -> Schemas:
    return Schemas(
        registry,
        SchemaArchive(store or MemoryStore(), "topics"),
        clock=SystemClock(),
        random=Random(1),
        cache_size=100,
        retry=RegistryRetry(DELAYS, give_up_after_s),
        timings=QUICK,
    )


def wait(opened: Schemas, within_s: float = 10) -> bool:
    """Wait until all requests are answered; return False if they are not."""
    deadline_s = time.monotonic() + within_s
    while opened.pending():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.005)
    return True


def test_retry_keys_are_read() -> None:
    options = SinkOptions.parse(MINIMAL)
    assert registry_retry(options.errors_retry_timeout_ms, options.errors_retry_delay_max_ms) == RegistryRetry()
    assert registry_retry(-1, 60_000) == RegistryRetry(Backoff(100, 60_000), None)
    assert registry_retry(300_000, 20) == RegistryRetry(Backoff(20, 20), 300.0)
    assert registry_retry(0, 0) == RegistryRetry(Backoff(1, 1), 0.0)


def test_an_unreachable_registry_is_awaited_without_limit_by_default() -> None:
    registry = AwayRegistry()
    opened = schemas(registry, RegistryRetry().give_up_after_s)
    opened.request([1])
    assert not wait(opened, 0.3)
    assert registry.asked > 5
    registry.is_away = False
    assert wait(opened)
    assert isinstance(opened.find(1), KnownSchema)
    opened.close()


def test_a_registry_unreachable_for_too_long_is_an_error_and_rejects_no_record() -> None:
    registry = AwayRegistry()
    opened = schemas(registry, 0.2)
    began_s = time.monotonic()
    opened.request([1])
    assert wait(opened)
    assert time.monotonic() - began_s >= 0.2
    with pytest.raises(RegistryGivenUp, match=r"does not answer; .*errors\.retry\.timeout") as given_up:
        opened.find(1)
    assert not given_up.value.retriable
    assert scope_of(given_up.value) is ErrorScope.PARTITION
    asked = registry.asked
    opened.request([2])  # another partition's: it does not wait as long once more
    assert wait(opened, 0.15)
    assert registry.asked == asked + 1
    with pytest.raises(RegistryGivenUp):
        opened.find(2)
    registry.is_away = False
    opened.request([1, 2])
    assert wait(opened)
    assert isinstance(opened.find(1), KnownSchema)
    opened.close()


def test_a_limit_of_zero_means_one_request() -> None:
    registry = AwayRegistry()
    opened = schemas(registry, 0.0)
    opened.request([1])
    assert wait(opened)
    assert registry.asked == 1
    opened.close()


@pytest.mark.parametrize("key", [1, 404])
def test_an_answer_ends_an_outage(key: int) -> None:
    """An answer that there is no such schema also ends an outage."""
    registry = AwayRegistry()
    opened = schemas(registry, 0.4)
    for other in (10, 11, 12):  # three outages that are longer than what is allowed, together
        registry.is_away = True
        opened.request([other])
        assert not wait(opened, 0.2)
        registry.is_away = False
        opened.request([key])
        assert wait(opened)
        assert isinstance(opened.find(other), KnownSchema)
    assert isinstance(opened.find(key), KnownSchema if key == 1 else RefusedSchema)
    opened.close()


def test_failures_far_apart_count_as_separate_outages() -> None:
    clock = ManualClock()
    outage = _Outage(clock)
    assert outage.goes_on(10) == 0
    clock.advance(60_000)
    assert outage.goes_on(10) == 60
    clock.advance(3_600_000)
    assert outage.goes_on(10) == 0
    clock.advance(60_000)
    outage.over()
    assert outage.goes_on(10) == 0


def test_an_unreachable_store_is_awaited_while_a_schema_is_archived() -> None:
    class Away(MemoryStore):
        is_away = True

        def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
            if self.is_away:
                raise StoreUnavailable(key, "away")
            return super().put(key, data, mode)

    registry, store = AwayRegistry(), Away()
    registry.is_away = False
    opened = schemas(registry, 0.0, store)
    opened.request([1])
    assert not wait(opened, 0.3)
    store.is_away = False
    assert wait(opened)
    assert isinstance(opened.find(1), KnownSchema)
    opened.close()


# A task


MakeChecks = Callable[[AwayRegistry, dict[str, str]], Checks]


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as build:
        yield build


@pytest.fixture
def make_checks() -> Iterator[MakeChecks]:
    made: list[Checks] = []

    def build(registry: AwayRegistry, keys: dict[str, str]) -> Checks:
        options = SinkOptions.parse({**MINIMAL, **AVRO_VALUES, **keys})
        found = checks_of(
            options, store=MemoryStore(), clock=SystemClock(), random=Random(1), open_registry=lambda _: registry
        )
        assert found is not None
        made.append(found)
        return found

    yield build
    for checks in made:
        checks.close()


@pytest.mark.parametrize("tolerance", ["none", "all"])
def test_a_partition_whose_registry_is_given_up_fails_and_skips_nothing(
    make: MakeRig, make_checks: MakeChecks, tolerance: str
) -> None:
    registry = AwayRegistry()
    keys = {"errors.tolerance": tolerance, "errors.retry.timeout": "100", "errors.retry.delay.max.ms": "10"}
    rig = make(checks=make_checks(registry, keys), segment__ms="100", errors__tolerance=tolerance)
    rig.kafka.produce(T0, range(3), b"\0\0\0\0\1\2")
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: rig.says(RunState.FAILED))
    assert "errors.retry.timeout" in rig.statuses[-1].trace
    assert "t-0" in rig.statuses[-1].trace
    assert rig.next_offset(T0) == 0
    assert rig.log().load().manifest.gaps == ()
