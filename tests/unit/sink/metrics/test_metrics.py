"""Metrics that the sink serves, read by Prometheus' own parsers: exactly the names of the table and of the docs."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Final

import pytest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from keyfold.errors import ConfigError
from keyfold.runtime.clock import ManualClock
from keyfold_sink.metrics import connect_names, names
from keyfold_sink.metrics.collector import SinkMetrics, own_port
from keyfold_sink.metrics.definitions import TASK
from keyfold_sink.metrics.meter import TaskMeter
from keyfold_sink.metrics.metered_store import NO_ANSWER
from keyfold_sink.metrics.names import BY_NAME, METRICS, SECONDS_BOUNDS
from keyfold_sink.status import PartitionStatus, RunState, TaskStatus
from tests.support.metrics_docs import COMMAND, PAGE, page, printed, sections

OPEN: Final = "application/openmetrics-text; version=1.0.0"

# What Kafka's documentation lists under "Connect Monitoring", as far as a sink has it.
CONNECT: Final = {
    "sink-task-metrics": """offset-commit-completion-rate offset-commit-completion-total offset-commit-seq-no
        offset-commit-skip-rate offset-commit-skip-total partition-count put-batch-avg-time-ms put-batch-max-time-ms
        sink-record-active-count sink-record-active-count-avg sink-record-active-count-max sink-record-lag-max
        sink-record-read-rate sink-record-read-total sink-record-send-rate sink-record-send-total""",
    "connector-task-metrics": """batch-size-avg batch-size-max offset-commit-avg-time-ms
        offset-commit-failure-percentage offset-commit-max-time-ms offset-commit-success-percentage pause-ratio
        running-ratio status""",
    "task-error-metrics": """deadletterqueue-produce-failures deadletterqueue-produce-requests last-error-timestamp
        total-errors-logged total-record-errors total-record-failures total-records-skipped total-retries""",
    "connector-metrics": "connector-class connector-type connector-version status",
    "connect-worker-metrics": """connector-count connector-startup-attempts-total connector-startup-failure-percentage
        connector-startup-failure-total connector-startup-success-percentage connector-startup-success-total task-count
        task-startup-attempts-total task-startup-failure-percentage task-startup-failure-total
        task-startup-success-percentage task-startup-success-total connector-destroyed-task-count
        connector-failed-task-count connector-paused-task-count connector-restarting-task-count
        connector-running-task-count connector-total-task-count connector-unassigned-task-count""",
    "connect-worker-rebalance-metrics": """completed-rebalances-total connect-protocol epoch leader-name
        rebalance-avg-time-ms rebalance-max-time-ms rebalancing time-since-last-rebalance-ms""",
}
NOT_HERE: Final = {
    "kafka_connect_connect_worker_rebalance_metrics_leader_name",
    "kafka_connect_connect_worker_rebalance_metrics_connect_protocol",
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(clock: ManualClock) -> Callable[..., SinkMetrics]:
    def build(connector: str = "users", **changes: bool) -> SinkMetrics:
        return SinkMetrics(
            connector=connector,
            connector_class="io.Sink",
            version="1.2",
            clock=clock,
            state=lambda: RunState.RUNNING,
            place=lambda: (4, 7),
            **changes,
        )

    return build


def full(clock: ManualClock) -> list[TaskStatus]:
    """Return tasks that have a value for every metric."""
    meter = TaskMeter(clock)
    meter.batch(10, 100, clock.monotonic_s())
    meter.sent(10)
    meter.offsets_sent()
    meter.offsets_answered(clock.monotonic_s(), good=True)
    meter.rebalance_began()
    meter.rebalance_is_over()
    meter.observe(names.REQUEST_SECONDS, 0.2, "create")
    for metric in METRICS:
        if (metric.kind == "counter" and metric.subject == TASK and metric.own_labels) or metric is names.HELD:
            meter.count(metric, *(["x"] * len(metric.own_labels)))
    gauges = (names.BUFFERED, names.IN_FLIGHT, names.BUFFER_LIMIT, names.OPEN_SEGMENTS, names.QUEUE_JOBS, names.PAUSED)
    values = meter.values({metric.name: 1.0 for metric in (*gauges, names.UNSENT_SECONDS)})
    now_ms = clock.now_ms()
    partitions = (
        PartitionStatus(
            "t", 0, RunState.RUNNING, 5, 8, 12, now_ms - 9_000, now_ms - 8_000, "slow", now_ms, now_ms - 100
        ),
        PartitionStatus("t", 1, RunState.FAILED, error="bad", error_ms=now_ms),
    )
    return [
        TaskStatus(0, RunState.RUNNING, "", 11, now_ms, now_ms, partitions, values),
        TaskStatus(1, RunState.FAILED, "no right", 12, now_ms, now_ms),
    ]


def families(metrics: SinkMetrics) -> dict[str, Family]:
    text, content_type = metrics.text()
    assert content_type.startswith("text/plain; version=0.0.4")
    found = list(parse_plain(text.decode()))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def own_families(metrics: SinkMetrics) -> dict[str, Family]:
    """The sink's own: without those that every service has."""
    of_every_service = ("keyfold_build_info", "process_")
    return {name: family for name, family in families(metrics).items() if not name.startswith(of_every_service)}


def read_open(text: bytes) -> list[Family]:
    return list(parse_open(text.decode()))  # type: ignore[no-untyped-call]  # the library does not annotate it


def sample_names(found: Iterable[Family]) -> set[str]:
    return {sample.name for family in found for sample in family.samples}


# Prometheus reads it


def test_prometheus_own_parser_reads_every_metric_with_its_kind_its_help_and_its_labels(
    make: Callable[..., SinkMetrics], clock: ManualClock
) -> None:
    metrics = make()
    metrics.observe(full(clock), {"crashed": 1})
    clock.advance(1_000)
    found = own_families(metrics)
    assert {name.removesuffix("_total") for name in BY_NAME} == {name.removesuffix("_total") for name in found}
    for metric in METRICS:
        family = found.get(metric.name) or found[metric.name.removesuffix("_total")]
        assert family.type == metric.kind, metric.name
        assert family.documentation.startswith(metric.help)
        assert metric.equivalent in family.documentation
        assert family.samples, f"{metric.name} has no sample although there is something to say"
        if metric is not connect_names.CONNECTOR:
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(metric.labels)


def test_a_strict_openmetrics_parser_reads_the_same_samples(
    make: Callable[..., SinkMetrics], clock: ManualClock
) -> None:
    metrics = make()
    metrics.observe(full(clock), {})
    text, content_type = metrics.text(OPEN)
    assert content_type.startswith("application/openmetrics-text")
    assert sample_names(read_open(text)) == sample_names(families(metrics).values())


def test_all_metrics_exist_before_any_task_has_reported(
    make: Callable[..., SinkMetrics],
) -> None:
    found = own_families(make())
    assert len(found) == len(METRICS)
    assert found[connect_names.TASKS.name].samples[0].value == 0
    assert found[names.BUFFERED.name].samples == []


def test_any_sink_name_is_a_valid_label(make: Callable[..., SinkMetrics], clock: ManualClock) -> None:
    odd = 'a"b\\c\nd{e="f"} ü'
    metrics = make(odd)
    metrics.observe(full(clock), {})
    for family in families(metrics).values():
        for sample in family.samples:
            assert sample.labels.get("connector", odd) == odd
    text, _ = metrics.text(OPEN)
    assert all(s.labels.get("connector", odd) == odd for family in read_open(text) for s in family.samples)


def test_histograms_are_cumulative_and_complete(make: Callable[..., SinkMetrics], clock: ManualClock) -> None:
    metrics = make()
    meter = TaskMeter(clock)
    for seconds in (0.001, 0.2, 0.2, 7.0, 1_000.0):
        meter.observe(names.REQUEST_SECONDS, seconds, "create")
    metrics.on_status(TaskStatus(0, RunState.RUNNING, pid=1, values=meter.values({})))
    samples = [s for s in families(metrics)[names.REQUEST_SECONDS.name].samples if s.labels["operation"] == "create"]
    buckets = {sample.labels["le"]: sample.value for sample in samples if sample.name.endswith("_bucket")}
    assert list(buckets) == [*map(str, SECONDS_BOUNDS), "+Inf"]
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets["0.01"], buckets["0.25"], buckets["10.0"], buckets["300.0"], buckets["+Inf"]) == (1, 3, 4, 4, 5)
    assert {s.name: s.value for s in samples if not s.name.endswith("_bucket")} == {
        "keyfold_sink_store_request_seconds_count": 5,
        "keyfold_sink_store_request_seconds_sum": pytest.approx(1_007.401),
    }


def test_one_metric_can_be_asked_for_by_name(make: Callable[..., SinkMetrics]) -> None:
    restricted = make().registry.restricted_registry([connect_names.TASKS.name])
    assert [family.name for family in restricted.collect()] == [connect_names.TASKS.name]


def test_concurrent_scrapes_and_reports_do_not_interfere(make: Callable[..., SinkMetrics], clock: ManualClock) -> None:
    metrics = make(all_partitions=True)
    tasks = full(clock)
    metrics.observe(tasks, {})
    failed: list[BaseException] = []

    def report() -> None:
        try:
            for n in range(200):
                metrics.observe([] if n % 10 == 0 else tasks, {"hung": n})
                metrics.on_status(tasks[0])
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    threads = [threading.Thread(target=report) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert len(own_families(metrics)) == len(METRICS)
    for thread in threads:
        thread.join()
    assert failed == []


# Connect's names


def test_each_connect_metric_has_the_jmx_exporters_name(make: Callable[..., SinkMetrics], clock: ManualClock) -> None:
    metrics = make()
    metrics.observe(full(clock), {})
    served = sample_names(families(metrics).values())
    expected = {
        f"kafka_connect_{bean}_{attribute}".replace("-", "_")
        for bean, attributes in CONNECT.items()
        for attribute in attributes.split()
    }
    assert expected - served == NOT_HERE
    assert {name for name in served if name.startswith("kafka_")} - expected == {connect_names.CONNECTOR.name}


def test_the_relabelling_rule_gives_strimzis_names() -> None:
    text = PAGE.read_text(encoding="utf-8")
    regex = re.search(r"regex: (\S+)", text)
    replacement = re.search(r"replacement: (\S+)", text)
    assert regex is not None
    assert replacement is not None
    to = replacement[1].replace("${1}", r"\1").replace("${2}", r"\2")
    renamed = {metric.name: re.sub(f"^(?:{regex[1]})$", to, metric.name) for metric in METRICS if metric.equivalent}
    assert renamed[connect_names.READ.name] == "kafka_connect_sink_task_sink_record_read_total"
    assert renamed[connect_names.TASKS_FAILED.name] == "kafka_connect_worker_connector_failed_task_count"
    assert renamed[connect_names.REBALANCING.name] == "kafka_connect_worker_rebalance_rebalancing"
    assert renamed[connect_names.STATUS.name] == "kafka_connect_connector_status"
    assert renamed[connect_names.TASK_STATUS.name] == "kafka_connect_connector_task_status"
    assert renamed[connect_names.RETRIES.name] == "kafka_connect_task_error_total_retries"


# The page


def test_the_page_is_what_the_table_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), f"run `{COMMAND}`"
    assert printed(text) == list(sections()), "a table is missing, or in another place"


def test_the_page_lists_every_metric_once_and_no_others() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:kafka_connect|keyfold_sink)_\w+)`", text, re.MULTILINE)
    assert sorted(rows) == sorted(BY_NAME)
    known = {*BY_NAME, *(f"{m.name}{part}" for m in METRICS for part in ("_bucket", "_sum", "_count"))}
    named = set(re.findall(r"\b(?:kafka_connect|keyfold_sink)_\w+", text))
    patterns = {"kafka_connect_", "kafka_connect_worker_", "kafka_connect_connect_worker_metrics_"}
    patterns |= {"kafka_connect_cluster_id"}  # a label
    assert named - known - patterns == set()


def test_queries_use_only_existing_labels() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Questions and alerts")[2]
    for name, selected in re.findall(r"((?:kafka_connect|keyfold_sink)_\w+)\{([^}]*)\}", text):
        metric = BY_NAME.get(name) or BY_NAME[name.removesuffix("_bucket")]
        assert set(re.findall(r"(\w+)(?:=|!)", selected)) <= {*metric.labels, "le"}
    for by, name in re.findall(r"by \(([\w, ]+)\) \(?(?:rate|increase)?\(?((?:kafka_connect|keyfold_sink)_\w+)", text):
        metric = BY_NAME.get(name) or BY_NAME[name.removesuffix("_bucket")]
        assert {label.strip() for label in by.split(",")} <= {*metric.labels, "le"}, name


def test_every_metric_has_a_help_text() -> None:
    for metric in METRICS:
        assert metric.help.endswith((".", "?")), metric.name
        assert metric.rises
        assert "|" not in metric.help + metric.rises, "it stands in a table"


def test_no_label_value_of_the_code_contains_a_bar() -> None:
    assert "|" not in NO_ANSWER + "".join((*names.ROLL_REASONS, *names.SET_BACK_CAUSES))


# A port of its own


def test_a_dedicated_port_serves_the_same_metrics(make: Callable[..., SinkMetrics], clock: ManualClock) -> None:
    metrics = make()
    metrics.observe(full(clock), {})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        own_port(metrics, "127.0.0.1", port),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer,
    ):
        served = answer.read().decode()
    assert sample_names(parse_plain(served)) == sample_names(families(metrics).values())


def test_no_port_means_no_listener_and_a_port_in_use_names_its_key(make: Callable[..., SinkMetrics]) -> None:
    with own_port(make(), "127.0.0.1", 0):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"metrics\.port"), own_port(make(), "127.0.0.1", taken.getsockname()[1]):
            pass
