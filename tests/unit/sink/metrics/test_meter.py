"""Counts of a task: recent figures as Kafka defines them, histograms, and requests by result."""

from __future__ import annotations

import contextlib
import threading

import pytest

from keyfold.errors import (
    AlreadyExists,
    ConditionUndecided,
    KeyfoldError,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from keyfold.metrics.metric import Metric
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import MIN_PART_BYTES, Blob, Create, Update
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.rolling import RollReason
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.definitions import TASK
from keyfold_sink.metrics.meter import TaskMeter, sample_key
from keyfold_sink.metrics.metered_store import MeteredStore, error_code
from keyfold_sink.metrics.names import METRICS, SECONDS_BOUNDS
from keyfold_sink.metrics.recent import SAMPLE_S, Recent
from keyfold_sink.metrics.worker_figures import metric_of
from keyfold_sink.validate.convert.metered_registry import MeteredRegistry
from keyfold_sink.validate.convert.registry_api import (
    AVRO,
    RegisteredSchema,
    RegistryRefused,
    RegistryUnavailable,
    SchemaKey,
    SchemaUnknown,
)
from tests.support.manifests import entry, sink_name


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def meter(clock: ManualClock) -> TaskMeter:
    return TaskMeter(clock)


def value(meter: TaskMeter, metric: Metric, *labels: str) -> float:
    return meter.values({})[sample_key(metric.name, labels)]


# The last while


def test_a_rate_treats_the_time_before_the_first_sample_as_idle() -> None:
    recent = Recent(1_000.0)
    recent.record(60, 1_001.0)
    assert recent.rate(1_001.0) == 60 / SAMPLE_S
    assert recent.rate(1_029.0) == 60 / SAMPLE_S


def test_a_rate_uses_the_last_two_windows_only() -> None:
    recent = Recent(0.0)
    recent.record(30, 1.0)
    recent.record(90, 31.0)
    assert recent.mean(31.0) == 60.0
    assert recent.largest(31.0) == 90.0
    assert recent.rate(40.0) == 120 / 40
    assert recent.mean(62.0) == 90.0, "the first has gone"
    assert recent.largest(62.0) == 90.0
    assert recent.mean(125.0) is None, "nothing has happened for two minutes"
    assert recent.largest(125.0) is None
    assert recent.rate(125.0) == 0.0


def test_the_mean_and_the_maximum_of_recent_samples() -> None:
    recent = Recent(0.0)
    recent.record(5, 1.0)
    recent.record(2, 2.0)
    assert (recent.mean(3.0), recent.largest(3.0)) == (3.5, 5.0)


# Counting


def test_every_count_starts_at_0_and_is_declared(meter: TaskMeter) -> None:
    found = meter.values({})
    foreign = [key for key in found if metric_of(key) is None]
    assert foreign == []
    plain = [m for m in METRICS if m.subject == TASK and m.adds_up and not m.own_labels and m.kind != "histogram"]
    assert {m.name for m in plain} <= set(found)
    counts = {key: n for key, n in found.items() if (known := metric_of(key)) and known[0].adds_up}
    assert {key for key, n in counts.items() if n} == {names.CPU.name}


def test_a_batch_updates_record_counts_rates_sizes_and_times(meter: TaskMeter, clock: ManualClock) -> None:
    began_s = clock.monotonic_s()
    clock.advance(40)
    meter.batch(300, 9_000, began_s)
    meter.sent(299)
    clock.advance(10)
    meter.batch(100, 1_000, clock.monotonic_s())
    assert value(meter, connect_names.READ) == 400
    assert value(meter, connect_names.SENT) == 299
    assert value(meter, names.VALUE_BYTES) == 10_000
    assert value(meter, connect_names.READ_RATE) == pytest.approx(400 / 30)
    assert (value(meter, connect_names.BATCH_AVG), value(meter, connect_names.BATCH_MAX)) == (200, 300)
    assert value(meter, connect_names.PUT_AVG) == pytest.approx(20)
    assert value(meter, connect_names.PUT_MAX) == pytest.approx(40)


def test_records_are_active_until_their_job_is_done(meter: TaskMeter, clock: ManualClock) -> None:
    meter.rolled(RollReason.TIME, 70)
    assert meter.values({connect_names.ACTIVE.name: 5.0})[connect_names.ACTIVE.name] == 75
    assert value(meter, connect_names.ACTIVE_MAX) == 75
    meter.in_flight(-70)
    assert meter.values({connect_names.ACTIVE.name: 5.0})[connect_names.ACTIVE.name] == 5
    assert value(meter, names.ROLLS, "time") == 1
    assert value(meter, names.ROLLS, "memory") == 0


def test_a_commit_counts_its_objects_and_its_duration(meter: TaskMeter, clock: ManualClock) -> None:
    rolled_s = meter.rolled(RollReason.BYTES, 10)
    clock.advance(300)
    committed = entry(sink_name(0), 0, 10)
    meter.committed(committed, rolled_s)
    meter.committed(None, clock.monotonic_s())
    assert value(meter, names.COMMITS) == 2, "the second moved the end over a hole"
    assert value(meter, names.COMMITTED) == committed.record_count
    assert value(meter, names.OBJECTS, "segment") == value(meter, names.OBJECTS, "index") == 1
    assert value(meter, names.OBJECT_BYTES, "segment") == committed.size_bytes
    assert value(meter, names.OBJECT_BYTES, "index") == committed.index_size_bytes
    found = meter.values({})
    assert found["keyfold_sink_flush_seconds_bucket|0.25"] == 1
    assert found["keyfold_sink_flush_seconds_bucket|0.5"] == 2
    assert found["keyfold_sink_flush_seconds_bucket|+Inf"] == 2
    assert found["keyfold_sink_flush_seconds_sum"] == pytest.approx(0.3)


def test_a_value_at_a_bound_is_in_its_bucket_and_larger_values_are_only_in_the_last(meter: TaskMeter) -> None:
    meter.observe(names.FLUSH_SECONDS, SECONDS_BOUNDS[0])
    meter.observe(names.FLUSH_SECONDS, SECONDS_BOUNDS[-1] + 1)
    found = meter.values({})
    assert found[f"keyfold_sink_flush_seconds_bucket|{SECONDS_BOUNDS[0]}"] == 1
    assert found[f"keyfold_sink_flush_seconds_bucket|{SECONDS_BOUNDS[-1]}"] == 1
    assert found["keyfold_sink_flush_seconds_bucket|+Inf"] == 2


def test_offset_commits_have_success_shares_and_durations_and_late_answers_count_as_neither(
    meter: TaskMeter, clock: ManualClock
) -> None:
    assert connect_names.OFFSETS_GOOD.name not in meter.values({}), "there was none"
    sent_s = clock.monotonic_s()
    for _ in range(4):
        meter.offsets_sent()
    clock.advance(20)
    meter.offsets_answered(sent_s, good=True)
    meter.offsets_answered(sent_s, good=False)
    meter.offsets_answered(None, good=True)
    meter.offsets_answered(None, good=True, late=True)
    assert value(meter, connect_names.OFFSET_COMMITS) == 4
    assert value(meter, connect_names.OFFSETS_COMMITTED) == 2
    assert value(meter, connect_names.OFFSETS_LATE) == 1
    assert value(meter, connect_names.OFFSETS_GOOD) == pytest.approx(2 / 3)
    assert value(meter, connect_names.OFFSETS_BAD) == pytest.approx(1 / 3)
    assert value(meter, connect_names.OFFSETS_AVG) == pytest.approx(20)


def test_a_rebalance_lasts_from_the_first_callback_until_every_partition_is_claimed(
    meter: TaskMeter, clock: ManualClock
) -> None:
    meter.rebalance_is_over()
    assert value(meter, connect_names.REBALANCES) == 0, "none was under way"
    meter.rebalance_began()
    clock.advance(1_000)
    meter.rebalance_began()
    assert value(meter, connect_names.REBALANCING) == 1
    clock.advance(500)
    meter.rebalance_is_over()
    clock.advance(2_000)
    meter.rebalance_is_over()
    assert (value(meter, connect_names.REBALANCES), value(meter, connect_names.REBALANCING)) == (1, 0)
    assert (
        value(meter, connect_names.REBALANCE_AVG) == value(meter, connect_names.REBALANCE_MAX) == pytest.approx(1_500)
    )
    assert value(meter, connect_names.SINCE_REBALANCE) == pytest.approx(2_000)


def test_no_count_from_many_threads_is_lost(meter: TaskMeter) -> None:
    def count() -> None:
        for _ in range(2_000):
            meter.count(names.ROLLS, "time")
            meter.observe(names.FLUSH_SECONDS, 0.01)
            meter.in_flight(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(meter, names.ROLLS, "time") == value(meter, connect_names.ACTIVE) == 8_000
    assert meter.values({})["keyfold_sink_flush_seconds_bucket|+Inf"] == 8_000


# The store


def test_requests_bytes_and_seconds_of_calls_are_counted(meter: TaskMeter, clock: ManualClock) -> None:
    class Slow(MemoryStore):
        def get(self, key: str, max_bytes: int | None = None) -> Blob:
            clock.advance(400)
            return super().get(key, max_bytes)

    store = MeteredStore(Slow(), meter)
    etag = store.put("a/m", b"12345", Create()).etag
    store.put("a/m", b"123", Update(etag))
    store.get("a/m")
    store.get_range("a/m", 0, 2)
    upload = store.start_upload("a/s")
    upload.write(bytes(MIN_PART_BYTES))
    upload.write(b"x")
    upload.complete()
    assert [row.key for row in store.list("a/")] == ["a/m", "a/s"]
    requests = {"create": 1, "update": 1, "get": 1, "get_range": 1, "start_upload": 1}
    requests |= {"upload_part": 2, "complete_upload": 1, "list": 1}
    for operation, count in requests.items():
        assert value(meter, names.REQUESTS, operation) == count
    assert value(meter, names.SENT_BYTES) == 5 + 3 + MIN_PART_BYTES + 1
    assert value(meter, names.RECEIVED_BYTES) == 3 + 2
    found = meter.values({})
    assert found["keyfold_sink_store_request_seconds_bucket|get|0.25"] == 0
    assert found["keyfold_sink_store_request_seconds_bucket|get|0.5"] == 1
    assert found["keyfold_sink_store_request_seconds_sum|get"] == pytest.approx(0.4)
    assert not any(key.startswith(names.STORE_ERRORS.name) for key in found)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("k", "slow", code="SlowDown"), "SlowDown"),
        (StoreUnavailable("k", "time-out"), "NoAnswer"),
        (PreconditionFailed("k", "412", code="PreconditionFailed"), "PreconditionFailed"),
        (AlreadyExists("k", "there"), "AlreadyExists"),
        (ConditionUndecided("k", "409", code="Conditional|Request\nConflict"), "Conditional_Request_Conflict"),
        (StoreError("k", "odd", code="x" * 200), "x" * 60),
    ],
)
def test_errors_are_counted_by_the_stores_code(meter: TaskMeter, error: KeyfoldError, code: str) -> None:
    class Failing(MemoryStore):
        def get(self, key: str, max_bytes: int | None = None) -> Blob:
            raise error

    assert error_code(error) == code
    store = MeteredStore(Failing(), meter)
    with pytest.raises(type(error)):
        store.get("k")
    assert value(meter, names.STORE_ERRORS, "get", code) == 1
    assert value(meter, names.REQUESTS, "get") == 1
    assert meter.values({})["keyfold_sink_store_request_seconds_bucket|get|+Inf"] == 1, "a failed call took time, too"


def test_the_number_of_error_code_series_is_bounded(meter: TaskMeter) -> None:
    class Inventive(MemoryStore):
        calls = 0

        def get(self, key: str, max_bytes: int | None = None) -> Blob:
            self.calls += 1
            raise StoreUnavailable(key, "?", code=f"Request{self.calls}")

    store = MeteredStore(Inventive(), meter)
    for _ in range(1_000):
        with pytest.raises(StoreUnavailable):
            store.get("k")
    errors = {key: n for key, n in meter.values({}).items() if key.startswith(names.STORE_ERRORS.name)}
    assert len(errors) <= 41
    assert sum(errors.values()) == 1_000


# The registry


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "found"),
        (SchemaUnknown("7"), "unknown"),
        (RegistryUnavailable("503"), "unavailable"),
        (RegistryRefused("401"), "refused"),
        (ValueError("a defect"), "failed"),
    ],
)
def test_registry_requests_are_counted_by_result(meter: TaskMeter, error: Exception | None, result: str) -> None:
    class Fake:
        url = "mock://"

        def schema(self, key: SchemaKey) -> RegisteredSchema:
            if error is not None:
                raise error
            return RegisteredSchema(AVRO, "")

        def close(self) -> None:
            """Do nothing."""

    registry = MeteredRegistry(Fake(), meter)
    with pytest.raises(type(error)) if error is not None else contextlib.nullcontext():
        assert registry.schema(7).kind == AVRO
    assert value(meter, names.SCHEMA_LOOKUPS, result) == 1
    asked = [n for key, n in meter.values({}).items() if key.startswith(names.SCHEMA_LOOKUPS.name)]
    assert sum(asked) == 1
