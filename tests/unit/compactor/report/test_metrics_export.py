"""Metrics on their way out: served text, a Pushgateway that may be away, what a failing run leaves."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keyfold.errors import AccessDenied, ConfigError, StoreUnavailable
from keyfold.log.names import Place
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.metrics_server import serving
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.metric_names import IN_PROGRESS, METRICS, PARTS
from keyfold_compactor.report.metrics_export import measuring
from keyfold_compactor.report.metrics_push import push
from keyfold_compactor.report.report import NoRunObserver, PartitionOutcome, PartitionReport, RunReport
from keyfold_compactor.report.run_meter import RunMeter
from tests.support.cleaning import PLACE, load, memory_log, record, retry_policy

CONFIG = {"s3.bucket.name": "b", "min.cleanable.dirty.ratio": "0", "log.cleaner.backoff.ms": "0"}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def job(store: ObjectStore, clock: ManualClock, meter: RunMeter, **config: str) -> Job:
    options = CompactOptions.parse({**CONFIG, **{key.replace("_", "."): value for key, value in config.items()}})
    return Job(
        options,
        RunSelection(),
        store,
        lambda _: LocalExecutor(store, retry_policy(clock, Random(1))),
        clock=clock,
        random=Random(2),
        observer=meter,
    )


def parsed(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(port: int, path: str = "/metrics") -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        assert answer.status == 200
        return parsed(answer.read().decode())


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_served_metrics_match_the_runs(clock: ManualClock) -> None:
    store, _ = memory_log([record(0, "a", "1" * 100), record(1, "a", "2"), record(2, "b", None)], clock=clock)
    before = load(store).size_bytes
    meter = RunMeter(clock)
    with serving(meter.registry, "127.0.0.1", 0) as port:
        first = scraped(port)
        assert value(first, "keyfold_compactor_runs_total") == 0
        assert ("keyfold_compactor_last_run_timestamp_seconds", ()) not in first, "there was none"
        runs = job(store, clock, meter)
        runs.once()
        clock.advance(4_000)
        found = scraped(port)
        assert value(found, "keyfold_compactor_runs_total") == 1
        assert value(found, "keyfold_compactor_records_removed_total") == 1
        assert value(found, "keyfold_compactor_records_kept_total") == 2
        assert value(found, "keyfold_compactor_freed_bytes_total") == before - load(store).size_bytes
        assert value(found, "kafka_log_logcleanermanager_time_since_last_run_ms") == 4_000
        assert value(found, "kafka_log_logcleanermanager_max_dirty_percent") == 0
        runs.once()
        again = scraped(port)
        assert value(again, "keyfold_compactor_runs_total") == 2
        assert value(again, "keyfold_compactor_read_bytes_total") == value(found, "keyfold_compactor_read_bytes_total")
        recopied = value(again, "kafka_log_logcleaner_cleaner_recopy_percent")
        assert recopied == value(found, "kafka_log_logcleaner_cleaner_recopy_percent") > 0


def test_every_metric_is_served_with_its_kind_and_help_and_can_be_asked_for_by_name(clock: ManualClock) -> None:
    meter = RunMeter(clock)
    with serving(meter.registry, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for metric in METRICS:
            assert f"# TYPE {metric.name} {metric.kind}" in text
            assert f"# HELP {metric.name} {metric.help}" in text
        one = scraped(port, "/metrics?name[]=kafka_log_logcleanermanager_uncleanable_bytes")
        assert list(one) == [("kafka_log_logcleanermanager_uncleanable_bytes", ())]


def test_any_topic_name_is_a_valid_label(clock: ManualClock) -> None:
    meter = RunMeter(clock)
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    run = job(store, clock, meter)
    odd = Place("topics", 'a"b\\c\nd', 7)
    run._backoff._delays[odd] = iter([1.0])
    run._backoff._until_s[odd] = clock.monotonic_s() + 60
    run.places = lambda: [PLACE, odd]  # type: ignore[method-assign]  # replaced for this test
    run.once()
    with serving(meter.registry, "127.0.0.1", 0) as port:
        found = scraped(port)
    assert value(found, "keyfold_compactor_partition_uncleanable", topic='a"b\\c\nd', partition="7") == 1


def test_a_failing_partition_stays_uncleanable_until_it_is_cleaned(
    clock: ManualClock,
) -> None:
    from keyfold.store.api import Create

    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    manifest = load(store)
    key = PLACE.key(manifest.segments[0].index_name)
    data = store.get(key).data
    store.delete(key)
    meter = RunMeter(clock)
    runs = job(store, clock, meter)
    with serving(meter.registry, "127.0.0.1", 0) as port:
        for expected_failures in (1, 1):  # the second run leaves it alone
            runs.once()
            found = scraped(port)
            assert value(found, "kafka_log_logcleanermanager_uncleanable_partitions_count") == 1
            assert value(found, "kafka_log_logcleanermanager_uncleanable_bytes") == manifest.size_bytes
            assert value(found, "keyfold_compactor_failures_total", kind="cleaning") == expected_failures
            assert value(found, "keyfold_compactor_partition_uncleanable", topic="users", partition="0") == 1
        store.put(key, data, Create())
        clock.advance(31_000)
        runs.once()
        found = scraped(port)
        assert value(found, "kafka_log_logcleanermanager_uncleanable_partitions_count") == 0
        assert value(found, "keyfold_compactor_passes_total") == 1
        assert ("keyfold_compactor_partition_uncleanable", (("partition", "0"), ("topic", "users"))) not in found


def test_a_partition_in_backoff_is_not_read_and_keeps_its_values(clock: ManualClock) -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    manifest = load(store)
    store.delete(PLACE.key(manifest.segments[0].index_name))
    counted = CountedStore(store)
    meter = RunMeter(clock)
    runs = job(counted, clock, meter)
    runs.once()
    before = counted.calls["get"]
    report = runs.once()
    assert counted.calls["get"] == before
    assert report.log_states[PLACE].cleanable_bytes == manifest.size_bytes
    runs.places = list  # type: ignore[method-assign]  # replaced for this test
    report = runs.once()
    assert (report.log_states, report.uncleanable) == ({}, frozenset()), "who is gone fails no more"


def test_counters_never_go_back_when_a_run_fails_with_parts_committed(clock: ManualClock) -> None:
    meter = RunMeter(clock)
    report = RunReport()
    meter.run_started(report)
    report.under_way[PLACE] = PartitionReport(PLACE, PartitionOutcome.CLEANED, parts=3, parts_committed=2)
    assert (meter.values()[PARTS], meter.values()[IN_PROGRESS]) == (2, 1)
    meter.run_failed()
    assert (meter.values()[PARTS], meter.values()[IN_PROGRESS]) == (2, 0)


def test_metrics_survive_a_run_that_fails_as_a_whole_and_the_loop_goes_on(clock: ManualClock) -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    meter = RunMeter(clock)
    runs = job(store, clock, meter)
    places = runs.places
    errors = [AccessDenied("b", "403"), StoreUnavailable("b", "503"), StoreUnavailable("b", "503")]

    def away() -> list[Place]:
        if runs._runs > 1:
            raise errors.pop()
        return places()

    runs.places = away  # type: ignore[method-assign]  # replaced for this test
    runs._delays = lambda: iter([0.0] * 9)  # type: ignore[method-assign]  # replaced for this test
    with serving(meter.registry, "127.0.0.1", 0) as port:
        with pytest.raises(AccessDenied):
            runs.loop(threading.Event(), lambda _report: None)
        found = scraped(port)
    assert value(found, "keyfold_compactor_runs_total") == 1
    assert value(found, "keyfold_compactor_passes_total") == 1
    assert value(found, "keyfold_compactor_failures_total", kind="run") == 3
    assert value(found, "keyfold_compactor_run_in_progress") == 0
    assert value(found, "keyfold_compactor_partitions") == 1, "what the last whole run saw"


def test_scrapes_from_many_threads_while_runs_work_are_whole_and_never_go_back(clock: ManualClock) -> None:
    store, sink = memory_log(clock=clock)
    meter = RunMeter(clock)
    runs = job(store, clock, meter)
    stop = threading.Event()
    faults: list[str] = []

    def scrape(port: int) -> None:
        last = 0.0
        while not stop.is_set():
            found = scraped(port)
            read = value(found, "keyfold_compactor_read_bytes_total")
            if read < last:
                faults.append(f"{read} after {last}")
            last = read

    with serving(meter.registry, "127.0.0.1", 0) as port:
        threads = [threading.Thread(target=scrape, args=(port,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(20):
            sink.append([record(2 * n, "a", "1"), record(2 * n + 1, "a", "2")])
            runs.once()
        stop.set()
        for thread in threads:
            thread.join()
    assert faults == []


# Where it cannot be served


def test_a_port_in_use_is_an_error_naming_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = CompactOptions.parse({**CONFIG, "metrics.port": str(port)})
        with (
            pytest.raises(ConfigError, match=rf"`metrics.port`: cannot listen on 127.0.0.1:{port}.*free port"),
            measuring(options, ManualClock(), is_once=False),
        ):
            raise AssertionError("it must not begin")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a..b"])
def test_a_foreign_address_is_an_error_naming_the_key(host: str) -> None:
    options = CompactOptions.parse({**CONFIG, "metrics.port": "1", "metrics.host": host})
    with (
        pytest.raises(ConfigError, match=r"`metrics\.host`: cannot listen on"),
        measuring(options, ManualClock(), is_once=False),
    ):
        raise AssertionError("it must not begin")


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_an_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.port"):
        CompactOptions.parse({**CONFIG, "metrics.port": port})


def test_the_port_is_free_again_when_the_context_ends() -> None:
    meter = RunMeter(ManualClock())
    before = set(threading.enumerate())
    with serving(meter.registry, "127.0.0.1", 0) as port:
        scraped(port)
    with serving(meter.registry, "127.0.0.1", port):
        scraped(port)
    assert not [t for t in set(threading.enumerate()) - before if "serve_forever" in t.name]


def test_without_a_port_and_a_gateway_nothing_is_measured() -> None:
    with measuring(CompactOptions.parse(CONFIG), ManualClock(), is_once=True) as watch:
        assert isinstance(watch, NoRunObserver)
    loop = CompactOptions.parse({**CONFIG, "metrics.push.url": "http://127.0.0.1:9"})
    with measuring(loop, ManualClock(), is_once=False) as watch:
        assert isinstance(watch, NoRunObserver), "a loop is scraped, not pushed"


# Pushes


class Gateway(HTTPServer):
    """The pushes that a Pushgateway receives; it answers `status`."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.got: list[tuple[str, str, str]] = []
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.got.append((self.command, self.path, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        """Nothing."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    running = Gateway()
    yield running
    running.stop()


def test_a_run_is_pushed_once_at_its_end_under_its_name(clock: ManualClock, gateway: Gateway) -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    options = CompactOptions.parse({**CONFIG, "metrics.push.url": gateway.url + "/", "name": "nightly/users"})
    with measuring(options, clock, is_once=True) as meter:
        assert isinstance(meter, RunMeter)
        job(store, clock, meter).once()
        assert gateway.got == []
    ((method, path, body),) = gateway.got
    assert (method, path) == ("PUT", "/metrics/job@base64/bmlnaHRseS91c2Vycw==")
    assert value(parsed(body), "keyfold_compactor_records_removed_total") == 1


def test_a_failed_run_is_pushed_too(clock: ManualClock, gateway: Gateway) -> None:
    store, _ = memory_log([record(0, "a", "1")], clock=clock)
    options = CompactOptions.parse({**CONFIG, "metrics.push.url": gateway.url})

    def fail() -> None:
        with measuring(options, clock, is_once=True) as meter:
            assert isinstance(meter, RunMeter)
            run = job(store, clock, meter)
            run.places = lambda: (_ for _ in ()).throw(StoreUnavailable("b", "503"))  # type: ignore[method-assign]  # replaced for this test
            run.once()

    with pytest.raises(StoreUnavailable):
        fail()
    ((_, _, body),) = gateway.got
    assert value(parsed(body), "keyfold_compactor_failures_total", kind="run") == 1
    assert "keyfold_build_info{" in body
    assert "process_" not in body, "the process has ended when somebody reads this"


def test_a_push_that_fails_is_a_warning_and_nothing_else(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    from keyfold.runtime.event_log import configure

    configure(json=True)
    meter = RunMeter(clock)
    refusing = Gateway(status=400)
    try:
        assert not push(meter.registry, refusing.url, "x")
    finally:
        refusing.stop()
    assert not push(meter.registry, refusing.url, "x"), "nobody listens any more"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        thread = threading.Thread(target=_answer_nonsense, args=(mute,))
        thread.start()
        assert not push(meter.registry, f"http://127.0.0.1:{mute.getsockname()[1]}", "x")
        thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all('"level": "warning"' in line and "pushing metrics failed" in line for line in lines)


def _answer_nonsense(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(b"what?\r\n\r\n")


@pytest.mark.parametrize(
    "url", ["pushgateway:9091", "ftp://host", "http://", "http://me:secret@host", "http://host:x", "http://host?a=b"]
)
def test_an_invalid_gateway_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.push\.url") as error:
        CompactOptions.parse({**CONFIG, "metrics.push.url": url})
    assert "secret" not in str(error.value)
