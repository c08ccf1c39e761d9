"""A task's metrics over a whole run, compared with the log, the store and the group."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from keyfold.log.record import RecordColumns
from keyfold.metrics.metric import Metric
from keyfold.runtime.clock import SystemClock
from keyfold.store.memory import MemoryStore
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.collector import SinkMetrics
from keyfold_sink.metrics.meter import sample_key
from keyfold_sink.status import RunState
from keyfold_sink.validate.convert.api import ConnectStage, Rejected, SchemasPending
from tests.support.sink_rig import T0, T1, MakeRig, Rig, rigs


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs() as make:
        yield make


def value(rig: Rig, metric: Metric, *labels: str) -> float:
    """Return a metric's value in the last report."""
    return rig.statuses[-1].values.get(sample_key(metric.name, labels), 0.0) if rig.statuses else 0.0


def stored(store: MemoryStore) -> dict[str, int]:
    """Return the sizes of all objects but manifests, by key."""
    return {row.key: row.size_bytes for row in store.list("topics/") if not row.key.endswith("_manifest.avro")}


def test_counts_of_read_sent_committed_and_written_records_match_the_log(make: MakeRig) -> None:
    store = MemoryStore()
    rig = make(store, flush__size="100")
    rig.kafka.produce(T0, range(250), b"x" * 10)
    rig.kafka.produce(T1, range(70), b"y")
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.runs(T0) and rig.runs(T1) and value(rig, connect_names.SENT) == 320)
    rig.until(lambda: value(rig, names.COMMITTED) == 200)
    rig.wait_for_report()
    assert value(rig, connect_names.ACTIVE) == 120
    assert value(rig, names.OPEN_SEGMENTS) == 2
    assert value(rig, names.BUFFERED) > 0
    assert value(rig, names.UNSENT_SECONDS) > 0
    rig.end()

    assert value(rig, connect_names.READ) == value(rig, connect_names.SENT) == value(rig, names.COMMITTED) == 320
    assert value(rig, names.VALUE_BYTES) == 250 * 10 + 70
    assert (value(rig, names.ROLLS, "records"), value(rig, names.ROLLS, "shutdown")) == (2, 2)
    assert value(rig, names.COMMITS) == value(rig, names.OBJECTS, "segment") == value(rig, names.OBJECTS, "index") == 4
    objects = stored(store)
    indexes = sum(size for key, size in objects.items() if "/_index/" in key)
    assert value(rig, names.OBJECT_BYTES, "index") == indexes
    assert value(rig, names.OBJECT_BYTES, "segment") == sum(objects.values()) - indexes
    assert rig.statuses[-1].values["keyfold_sink_flush_seconds_bucket|+Inf"] == 4
    assert (value(rig, names.CLAIMS), value(rig, connect_names.REBALANCES), value(rig, connect_names.REBALANCING)) == (
        2,
        1,
        0,
    )
    assert value(rig, connect_names.ACTIVE) == value(rig, names.OPEN_SEGMENTS) == value(rig, names.QUEUE_JOBS) == 0
    assert value(rig, names.UNSENT_SECONDS) == 0
    assert value(rig, names.BUFFER_LIMIT) > 0
    assert value(rig, connect_names.OFFSETS_COMMITTED) >= 2


def test_a_fence_and_the_following_reset_are_counted_and_records_are_committed_once(make: MakeRig) -> None:
    rig = make(flush__size="10")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: value(rig, connect_names.SENT) == 5)
    rival = rig.log()
    rival.claim_sink(rival.load())
    rig.kafka.produce(T0, range(5, 10))
    rig.until(lambda: value(rig, names.COMMITTED) == 10)
    rig.wait_for_report()
    assert (value(rig, names.FENCES), value(rig, names.SET_BACKS, "fenced")) == (1, 1)
    assert value(rig, names.CLAIMS) == 2
    assert (value(rig, connect_names.READ), value(rig, connect_names.SENT)) == (20, 20), "read again, and counted again"
    assert value(rig, connect_names.ACTIVE) == 0, "what was given up is not on its way any more"


def test_a_workers_metrics_page_of_a_running_task(make: MakeRig) -> None:
    rig = make()
    rig.kafka.produce(T0, range(7))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: value(rig, connect_names.SENT) == 7)
    rig.wait_for_report()
    text = page(rig)
    task = 'connector="s",task="0"'
    assert f"kafka_connect_sink_task_metrics_sink_record_send_total{{{task}}} 7.0" in text
    assert f"kafka_connect_sink_task_metrics_sink_record_lag_max{{{task}}} 7.0" in text, "nothing is durable yet"
    assert f"keyfold_sink_lag_records{{{task}}} 7.0" in text
    assert 'keyfold_sink_partition_lag_records{connector="s",partition="0",topic="t"} 7.0' in text


class Checks:
    """Checks that reject values with `!`; those with `?` need a schema that arrives when the test says so."""

    def __init__(self) -> None:
        self.known = threading.Event()

    def judge(self, topic: str, partition: int, batch: RecordColumns) -> Sequence[Rejected]:
        if b"?" in batch.values and not self.known.is_set():
            raise SchemasPending
        return [
            Rejected(at, ConnectStage.VALUE_CONVERTER, "C", "not JSON", "is bad")
            for at, value in enumerate(batch.values)
            if value == b"!"
        ]

    def pending(self) -> bool:
        return not self.known.is_set()

    def close(self) -> None:
        """Do nothing."""


def page(rig: Rig) -> str:
    metrics = SinkMetrics(
        connector="s", connector_class="", version="1", clock=SystemClock(), state=lambda: RunState.RUNNING,
        place=lambda: (0, 0),
    )  # fmt: skip
    metrics.observe([rig.statuses[-1]], {})
    return metrics.text()[0].decode()


def test_skipped_records_are_counted_by_cause_and_the_rest_is_committed(make: MakeRig) -> None:
    rig = make(checks=Checks(), errors__tolerance="all", value__converter="json")
    rig.kafka.produce(T0, range(5))
    rig.kafka.produce(T0, range(5, 8), b"!")
    rig.kafka.produce(T0, range(8, 10))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: value(rig, connect_names.SENT) == 7)
    rig.end()
    assert (value(rig, connect_names.READ), value(rig, names.COMMITTED)) == (10, 7)
    assert value(rig, names.SKIPPED, "not JSON") == value(rig, connect_names.RECORDS_SKIPPED) == 3
    assert value(rig, connect_names.RECORD_FAILURES) == value(rig, connect_names.RECORD_ERRORS) == 3
    assert value(rig, connect_names.LAST_ERROR) > 1_700_000_000_000
    assert 'keyfold_sink_records_skipped_total{cause="not JSON",connector="s",task="0"} 3.0' in page(rig)
    gaps = rig.log().load().manifest.gaps
    assert sum(gap.to_offset - gap.from_offset for gap in gaps) == 3, "the log says the same"


def test_a_failed_partition_is_named_and_the_other_continues(make: MakeRig) -> None:
    rig = make(checks=Checks(), value__converter="json", flush__size="5")
    rig.kafka.produce(T0, range(1), b"!")
    rig.kafka.produce(T1, range(5))
    rig.kafka.tell("on_assign", T0, T1)
    rig.until(lambda: rig.says(RunState.FAILED) and value(rig, names.COMMITTED) == 5)
    rig.wait_for_report()
    text = page(rig)
    assert 'keyfold_sink_partition_failed{connector="s",partition="0",topic="t"} 1.0' in text
    assert 'keyfold_sink_partitions{connector="s",state="FAILED",task="0"} 1.0' in text
    assert 'kafka_connect_connector_task_metrics_status{connector="s",status="failed",task="0"} 1.0' in text
    assert 'kafka_connect_connect_worker_metrics_connector_failed_task_count{connector="s"} 1.0' in text
    assert f"{names.BLOCKED.name}{{" + 'connector="s",task="0"} 0.0' in text, "it waits for a person, not for an answer"


def test_a_partition_that_waits_for_a_schema_is_held_and_its_records_count_as_buffered(make: MakeRig) -> None:
    checks = Checks()
    rig = make(checks=checks, value__converter="json")
    rig.kafka.produce(T0, range(100), b"?")
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: value(rig, names.HELD, "schemas") == 1)
    assert value(rig, names.BUFFERED) > 0
    assert (value(rig, connect_names.READ) > 0, value(rig, connect_names.SENT)) == (True, 0)
    checks.known.set()
    rig.until(lambda: value(rig, connect_names.SENT) == 100)
    rig.until(lambda: value(rig, names.HELD, "schemas") == 0)
