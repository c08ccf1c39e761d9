"""Metrics of a real `keyfold compact`: scraped while the loop works, pushed by a single run.

Mostly without Spark: a partition whose manifest is lost fails, and one that is only looked at has figures.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location
from tests.support import compact_command
from tests.support.cleaning import Sink, load, record
from tests.support.keyfold_here import here

COMMAND = [sys.executable, "-c", "from keyfold.cli import main; main()", "compact", "run"]


config = partial(
    compact_command.config,
    min_cleanable_dirty_ratio="1",
    log_cleaner_backoff_ms="100",
    spark_master=compact_command.NO_SPARK,
)


def fill(location: S3Location, *, is_lost: bool = False, partition: int = 0) -> int:
    """A dirty partition of two segments, half of it clean; its bytes. `is_lost`: without a manifest."""
    place = Place("topics", "users", partition)
    store = location.open()
    try:
        sink = Sink.open(store, place, clock=SystemClock())
        sink.append([record(0, "a", "1"), record(1, "a", "2")])
        sink.append([record(2, "a", "3"), record(3, "b", None)])
        size_bytes = load(store, place).size_bytes
        if is_lost:
            store.delete(place.manifest_key)
    finally:
        store.close()
    return size_bytes


def scraped(port: int) -> dict[str, float]:
    """Samples by name, with the values of labels behind it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        "/".join([sample.name, *(v for _, v in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


@contextmanager
def loop(path: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*COMMAND, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def after_runs(port: int, count: int, process: subprocess.Popen[str]) -> dict[str, float]:
    """The metrics served once a number of runs has ended."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        assert process.poll() is None, process.communicate()
        try:
            found = scraped(port)
        except urllib.error.URLError:
            time.sleep(0.1)  # it is starting
            continue
        if found["keyfold_compactor_runs_total"] >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {count} runs within two minutes")


def test_the_loop_serves_metrics_of_its_runs_until_it_ends(tmp_path: Path, location: S3Location) -> None:
    size_bytes = fill(location)
    fill(location, is_lost=True, partition=1)
    port = free_port()
    with loop(config(tmp_path, location, metrics_port=str(port))) as process:
        first = after_runs(port, 1, process)
        assert first["kafka_log_logcleanermanager_max_dirty_percent"] == 100
        assert first["keyfold_compactor_cleanable_bytes"] == size_bytes
        assert first["kafka_log_logcleanermanager_uncleanable_partitions_count"] == 1
        assert first["keyfold_compactor_partition_uncleanable/1/users"] == 1
        assert first["keyfold_compactor_partition_dirty_percent/0/users"] == 100
        assert first["keyfold_compactor_failures_total/cleaning"] == 1
        assert first["kafka_log_logcleanermanager_time_since_last_run_ms"] < 60_000
        later = after_runs(port, 3, process)
        assert later["keyfold_compactor_failures_total/cleaning"] == 1, "it rests"
        assert later["kafka_log_logcleanermanager_uncleanable_partitions_count"] == 1
        assert later["keyfold_compactor_uncleaned_record_age_seconds"] < 60
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err.count("keyfold log repair") == 1, out
    with pytest.raises(urllib.error.URLError):
        scraped(port)


def test_a_port_in_use_ends_the_process_before_it_changes_anything(tmp_path: Path, location: S3Location) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = config(tmp_path, location, metrics_port=str(port))
        done = subprocess.run([*COMMAND, path, "--once"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"`metrics.port`: cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_single_run_pushes_its_report_even_if_a_partition_fails(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    fill(location, is_lost=True, partition=1)
    got: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            got.append(self.path + "\n" + self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as gateway:
        thread = threading.Thread(target=gateway.serve_forever)
        thread.start()
        path = config(tmp_path, location, metrics_push_url=f"http://127.0.0.1:{gateway.server_port}", name="nightly")
        done = subprocess.run(
            [*COMMAND, path, "--once", "--json"], capture_output=True, text=True, timeout=120, check=False
        )
        gateway.shutdown()
        thread.join()
    assert done.returncode == 1, done.stderr
    (pushed,) = got
    assert pushed.startswith("/metrics/job/nightly\n")
    report = json.loads(done.stdout)
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(pushed.partition("\n")[2])
        for sample in family.samples
        if not sample.labels
    }
    for name, value in report["metrics"].items():
        if value is not None and not isinstance(value, list) and name.partition("_ms")[0] == name:
            assert samples[name] == pytest.approx(value, abs=0.01), name
    assert report["metrics"]["kafka_log_logcleanermanager_uncleanable_partitions_count"] == 1
    assert samples["keyfold_compactor_last_run_timestamp_seconds"] == pytest.approx(time.time(), abs=60)


def test_an_unavailable_gateway_changes_neither_report_nor_exit_code(tmp_path: Path, location: S3Location) -> None:
    fill(location)
    path = config(tmp_path, location, metrics_push_url=f"http://127.0.0.1:{free_port()}")
    done = subprocess.run([*COMMAND, path, "--once"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "pushing metrics failed" in done.stderr
    assert "users: 1 not due" in done.stdout


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_run_on_spark_reports_bytes_moved_and_throttling_of_its_tasks(tmp_path: Path, location: S3Location) -> None:
    for partition in range(3):
        fill(location, partition=partition)
    rate = {"min_cleanable_dirty_ratio": "0", "log_cleaner_io_max_bytes_per_second": "10000"}
    done = here("compact", "run", config(tmp_path, location, **rate), "--once", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    totals, metrics = report["totals"], report["metrics"]
    assert report["partitions_cleaned"] == sum(p["parts_committed"] for p in report["partitions"]) == 3
    assert (totals["records_removed"], totals["records_kept"], totals["tombstones_marked"]) == (6, 6, 3)
    assert totals["throttle_wait_s"] > 0
    moved_bytes = totals["bytes_read"] + totals["bytes_written"]
    assert moved_bytes > totals["bytes_freed"] > 0
    freed_bytes = moved_bytes / metrics["keyfold_compactor_moved_bytes_per_freed_byte"]
    assert freed_bytes == pytest.approx(totals["bytes_freed"], rel=0.01)
    assert metrics["kafka_log_logcleaner_cleaner_recopy_percent"] == 0, "first segments go whole, second ones stay"


@pytest.mark.full
@pytest.mark.spark
def test_a_loop_on_spark_counts_bytes_moved_and_throttling_of_its_tasks(tmp_path: Path, location: S3Location) -> None:
    for partition in range(3):
        fill(location, partition=partition)
    port = free_port()
    changes = {
        "metrics_port": str(port),
        "min_cleanable_dirty_ratio": "0",
        "spark_master": "local[2]",
        # A task asks for no more than it moves, so only a rate below these few bytes makes it wait.
        "log_cleaner_io_max_bytes_per_second": "10000",
    }
    with loop(config(tmp_path, location, **changes)) as process:
        after_runs(port, 1, process)
        found = after_runs(port, 2, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert found["keyfold_compactor_passes_total"] == found["keyfold_compactor_pass_parts_total"] == 3
    assert found["keyfold_compactor_records_removed_total"] == 6, "two of each three records of the key"
    assert found["keyfold_compactor_records_kept_total"] == 6
    assert found["keyfold_compactor_tombstones_marked_total"] == 3
    assert found["keyfold_compactor_throttle_wait_seconds_total"] > 0
    moved_bytes = found["keyfold_compactor_read_bytes_total"] + found["keyfold_compactor_written_bytes_total"]
    freed_bytes = found["keyfold_compactor_freed_bytes_total"]
    assert moved_bytes > freed_bytes > 0
    assert found["keyfold_compactor_moved_bytes_per_freed_byte"] == pytest.approx(moved_bytes / freed_bytes)
    assert found["kafka_log_logcleaner_cleaner_recopy_percent"] == 0, "first segments go whole, second ones stay"
    assert found["kafka_log_logcleaner_max_clean_time_secs"] > 0
    assert found["kafka_log_logcleanermanager_max_dirty_percent"] == 0
