"""spark-submit to a standalone cluster: executors are other processes, without this checkout; one of them is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location, S3Store
from tests.support.cleaning import Sink, last_per_key, load, object_names, read_all, record
from tests.support.moto import ACCESS_KEY_ID, REGION
from tests.support.spark_cluster import SparkCluster, clean_environment, keyfold_by_zip

# `real` for its length alone: two to five JVMs at once take more than `make test` should.
pytestmark = [pytest.mark.spark, pytest.mark.any_spark, pytest.mark.real]

SECRET = "never-to-be-seen-9b1f"
PLACES = tuple(Place("topics", "users", partition) for partition in range(2))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def store(location: S3Location) -> Iterator[S3Store]:
    opened = location.open()
    yield opened
    opened.close()


def fill(store: S3Store, place: Place) -> list[Record]:
    """Six segments of 100 KB that do not compress, of which half is garbage."""
    random = Random(place.partition)
    sink = Sink.open(store, place, clock=SystemClock(), seed=place.partition)
    appended: list[Record] = []
    for _ in range(6):
        start = len(appended)
        batch = [record(start + i, f"k{random.randrange(300)}", random.randbytes(1000)) for i in range(100)]
        sink.append(batch, codec="zstandard", block_bytes=4096)
        appended += batch
    return appended


def write_config(path: Path, location: S3Location, changes: Mapping[str, str]) -> Path:
    values = {
        "s3.bucket.name": location.bucket,
        "s3.region": REGION,
        "store.url": str(location.endpoint_url),
        "aws.access.key.id": ACCESS_KEY_ID,
        "aws.secret.access.key": SECRET,
        "topics": "users",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "0",
        "segment.bytes": "150000",
        **changes,
    }
    path.write_text(json.dumps(values))
    return path


def report(out: str) -> dict[str, Any]:
    """spark-submit makes one stream of Python's two: log lines come first, the report is the last line."""
    document: dict[str, Any] = json.loads(out.splitlines()[-1])
    return document


def verify(cluster: SparkCluster, location: S3Location) -> None:
    """`keyfold log verify` from the zip finds nothing wrong."""
    cluster_env = clean_environment(cluster.python)
    assert not [key for key in cluster_env if key.startswith("AWS_") and "KEY" in key]
    done = keyfold_by_zip(
        cluster,
        *("log", "verify", f"s3://{location.bucket}/topics", "users"),
        env={
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": str(location.endpoint_url),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_clusters_python_cannot_import_this_checkout(cluster: SparkCluster) -> None:
    code = "import pyarrow, boto3, fastavro\ntry:\n import keyfold\nexcept ImportError: print('none')"
    command = [str(cluster.python), "-c", code]
    done = subprocess.run(
        command, cwd="/", env=clean_environment(cluster.python), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "none", done.stderr


def test_a_cluster_cleans_with_shipped_code_and_shows_no_secret(
    cluster: SparkCluster, location: S3Location, store: S3Store, tmp_path: Path
) -> None:
    appended = {place: fill(store, place) for place in PLACES}
    events = tmp_path / "events"
    events.mkdir()
    # spark-submit's must hold: with these there would be no cluster, or no executor.
    settings = {"spark.master": "local[1]", "spark.executor.memory": "64m"}
    config = write_config(tmp_path / "compact.json", location, settings)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    running = cluster.start("run", config, "--once", "--json", conf=conf)
    out, errors = cluster.finish(running)
    assert running.returncode == 0, out[-3000:] + errors[-3000:]
    assert report(out)["partitions_cleaned"] == len(PLACES)
    (warning,) = [line for line in out.splitlines() if "settings ignored: spark-submit sets them too" in line]
    assert json.loads(warning)["settings"] == ["spark.executor.memory", "spark.master"]
    for place in PLACES:
        assert read_all(store, place=place) == last_per_key(appended[place])
    verify(cluster, location)

    log = "".join(path.read_text() for path in events.iterdir())
    assert f'"spark.master":"{cluster.url}"' in log
    assert "SparkListenerExecutorAdded" in log
    workers = "".join(path.read_text(errors="replace") for path in cluster.executor_logs())
    assert workers
    for text in (log, out, errors, workers):
        assert SECRET not in text


def test_the_command_ships_its_own_code_to_a_cluster(
    cluster: SparkCluster, location: S3Location, store: S3Store, tmp_path: Path
) -> None:
    """No spark-submit, no --py-files: what is installed here is sent to executors that do not have it."""
    appended = {place: fill(store, place) for place in PLACES}
    config = write_config(tmp_path / "compact.json", location, {"spark.master": "spark://127.0.0.1:1"})
    command = [
        *(sys.executable, "-c", "from keyfold.cli import main; main()"),
        *("compact", "run", str(config), "--once", "--json", "--master", cluster.url),
        *("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.ui.enabled=false"),
    ]
    env = clean_environment(cluster.python)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert json.loads(done.stdout)["partitions_cleaned"] == len(PLACES)
    for place in PLACES:
        assert read_all(store, place=place) == last_per_key(appended[place])


def test_an_executor_killed_during_a_pass_only_delays_it(
    cluster: SparkCluster, location: S3Location, store: S3Store, tmp_path: Path
) -> None:
    appended = {place: fill(store, place) for place in PLACES}
    slow = write_config(tmp_path / "slow.json", location, {"log.cleaner.io.max.bytes.per.second": "250000"})
    sunk = {place: object_names(store, place) for place in PLACES}
    running = cluster.start("run", slow, "--once", "--json", conf={"spark.executor.cores": "1"})
    try:
        until_s = time.monotonic() + 180
        while not any(object_names(store, place) - sunk[place] for place in PLACES):
            assert running.poll() is None, cluster.told("driver-errors")[-5000:]
            assert time.monotonic() < until_s, cluster.told("driver-out")[-5000:]
            time.sleep(0.05)
        before = cluster.executors()
        assert len(before) == 2
        cluster.kill_executor(before[0])
        out, errors = cluster.finish(running)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, out[-3000:] + errors[-3000:]
    assert report(out)["partitions_cleaned"] == len(PLACES)
    for place in PLACES:
        assert read_all(store, place=place) == last_per_key(appended[place])
        assert load(store, place).compactor.lease_until_ms == 0
    verify(cluster, location)

    # What the killed one had uploaded is in no manifest; the next run finds and deletes it.
    config = write_config(tmp_path / "fast.json", location, {})
    running = cluster.start("run", config, "--once", "--json", "--force", "--collect-orphans")
    out, errors = cluster.finish(running)
    assert running.returncode == 0, out[-3000:] + errors[-3000:]
    for place in PLACES:
        assert object_names(store, place) == load(store, place).object_names()
        assert read_all(store, place=place) == last_per_key(appended[place])
    verify(cluster, location)
