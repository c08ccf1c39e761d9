"""The Spark job on an S3 that is a server: many partitions, two passes, large logs, failures, the throttle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location, S3Store
from keyfold_compactor.decide.horizon import Purge
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.decide.work import LogJob
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.run import Run, RunSettings
from tests.support.cleaning import EAGER, Sink, last_per_key, load, read_all, record
from tests.support.held import tell
from tests.support.keyfold_here import here
from tests.support.moto import Fault, LocalS3Process
from tests.support.pickled import sent
from tests.support.tiers import Sharded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]
PARTITIONS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[LocalS3Process]:
    with LocalS3Process() as s3:
        yield s3


@pytest.fixture
def location(server: LocalS3Process, request: pytest.FixtureRequest) -> S3Location:
    bucket = f"b-{abs(hash(request.node.name)) % 10**9}"
    server.create_bucket(bucket)
    return server.location(bucket)


@pytest.fixture
def store(location: S3Location) -> Iterator[S3Store]:
    opened = location.open()
    yield opened
    opened.close()


def fill(store: S3Store, place: Place, seed: int, *, segments: int = 5, records: int = 400) -> list[Record]:
    """A log in which every key is written several times and some are deleted."""
    random = Random(seed)
    sink = Sink.open(store, place, clock=SystemClock(), seed=seed)
    appended: list[Record] = []
    for _ in range(segments):
        batch: list[Record] = []
        for _ in range(records):
            key = f"key-{random.randrange(300)}"
            value = None if random.random() < 0.1 else "v" * random.randrange(200)
            batch.append(record(len(appended) + len(batch), key, value))
        sink.append(batch, codec="zstandard", block_bytes=4096)
        appended += batch
    return appended


def write_config(path: Path, location: S3Location, **changes: str) -> Path:
    config = {
        "s3.bucket.name": location.bucket,
        "s3.region": str(location.region),
        "store.url": str(location.endpoint_url),
        "aws.access.key.id": str(location.access_key_id),
        "aws.secret.access.key": str(location.secret_access_key),
        "topics.dir": "topics",
        "topics": "users",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "0",
        "compactor.engine": "spark",
        "spark.master": "local[2]",
        **{key.replace("_", "."): value for key, value in changes.items()},
    }
    path.write_text(json.dumps(config))
    return path


def keyfold(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from keyfold.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "KEYFOLD_DEBUG": "1"},
        check=False,
    )


def live_only(records: Sequence[Record]) -> list[Record]:
    return [r for r in last_per_key(records) if not r.is_tombstone]


@pytest.mark.usefixtures("spark")
def test_two_runs_of_the_command_clean_every_partition(location: S3Location, store: S3Store, tmp_path: Path) -> None:
    places = [Place("topics", "users", p) for p in range(PARTITIONS)]
    appended = {place: fill(store, place, seed=place.partition) for place in places}
    config = write_config(tmp_path / "compact.json", location, log_cleaner_io_max_bytes_per_second="50000000")

    first = here("compact", "run", config, "--once", "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert report["partitions_cleaned"] == PARTITIONS
    for place in places:
        assert read_all(store, place=place) == last_per_key(appended[place])
    assert report["totals"]["records_removed"] == sum(len(appended[p]) - len(last_per_key(appended[p])) for p in places)
    second = here("compact", "run", config, "--once")
    assert second.returncode == 0, second.stderr
    for place in places:
        assert read_all(store, place=place) == live_only(appended[place])
    third = here("compact", "plan", config)
    assert third.returncode == 0, third.stderr
    assert third.stdout.count("no dirty records") == PARTITIONS


@pytest.mark.usefixtures("spark")
def test_occasional_store_errors_do_not_block_a_run(
    location: S3Location, store: S3Store, tmp_path: Path, server: LocalS3Process
) -> None:
    """5 % of all requests are answered with 503, from the command's first to its last, and some for sure."""
    place = Place("topics", "users", 0)
    appended = fill(store, place, seed=3)
    config = write_config(tmp_path / "compact.json", location)
    sure = [Fault(r"^PUT .*_probe/"), Fault(r"^PUT .*_manifest", 503), Fault(r"^PUT .*[.]avro", 503, skip=1)]
    server.set_faults(*sure, Fault(r"", 503, times=-1, chance=0.05), seed=1)
    done = here("compact", "run", config, "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert server.struck()[:3] == [1, 1, 1]
    server.set_faults()
    assert json.loads(done.stdout)["partitions_cleaned"] == 1
    assert read_all(store, place=place) == last_per_key(appended)


def test_the_result_does_not_depend_on_how_logs_are_mapped_and_masks_travel(
    spark: SparkSession, location: S3Location, store: S3Store, sharded: Sharded
) -> None:
    """The same records in many partitions: mapped in one task or many, masks through the driver, shuffled, or both.

    A replica has received half of them, and holds the tombstones of the other half.
    """
    from keyfold_compactor.spark.executor import SparkExecutor
    from keyfold_compactor.spark.tasks import TaskEnvironment

    whole, split, driver, shuffled = 10**9, 8_000, 10**9, 0
    topic = replace(EAGER, encoding=Encoding("zstandard", 1, 4096), replicas=("eu",))
    places = [Place("topics", "users", p) for p in range(8)]
    half = 5 * 400 // 8 + 2  # masks of one log of a run fit, those of the other do not
    plain = (whole, driver, places[:1])
    others = [
        *((split, driver, places[1:2]), (whole, shuffled, places[2:3]), (split, shuffled, places[3:4])),
        *((whole, half, places[4:6]), (split, half, places[6:8])),
    ]
    ways = [plain, *sharded(others)]
    cleaned = [place for _, _, logs in ways for place in logs]
    records = fill(store, cleaned[0], seed=7)
    for place in cleaned[1:]:
        assert fill(store, place, seed=7) == records
    received_to = len(records) // 2
    for place in cleaned:
        tell(store, "eu", received_to=received_to, place=place)
    environment = TaskEnvironment(location, None, 5.0)
    for map_bytes, masks_bytes, logs in ways:
        executor = SparkExecutor(spark, environment, map_bytes=map_bytes, masks_bytes=masks_bytes)
        settings = RunSettings(settings_of=lambda *_: topic, force=True)
        for seed in (1, 2):
            clock, watcher = SystemClock(), Watcher()
            run = Run(store, settings, partial(_same, executor), clock=clock, random=Random(seed), progress=watcher)
            report = run.clean(logs)
            assert report.exit_code == 0, report.document()
            assert watcher.steps == watcher.totals
    manifests = [load(store, place) for place in cleaned]
    left = [r for r in last_per_key(records) if not r.is_tombstone or r.offset >= received_to]
    assert left != live_only(records)
    for manifest, place in zip(manifests, cleaned, strict=True):
        assert read_all(store, manifest, place) == left
        assert [s.record_count for s in manifest.segments] == [s.record_count for s in manifests[0].segments]
        assert (manifest.purged_to, manifest.first_dirty_offset) == (
            manifests[0].purged_to,
            manifests[0].first_dirty_offset,
        )


class Watcher:
    """Counts the steps of each stage, which many threads do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stage = ""
        self.steps: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()

    def begin_stage(self, stage: str, total: int) -> None:
        self.stage = stage
        self.totals[stage] += total

    def advance(self, count: int = 1) -> None:
        with self._lock:
            self.steps[self.stage] += count


def _same(executor: Executor, _due_bytes: int) -> Executor:
    return executor


@pytest.mark.usefixtures("spark")
def test_a_corrupt_index_fails_its_partition_and_no_other(location: S3Location, store: S3Store, tmp_path: Path) -> None:
    places = [Place("topics", "users", p) for p in range(3)]
    appended = {place: fill(store, place, seed=place.partition, segments=2) for place in places}
    broken = load(store, places[1]).segments[0].index_name
    blob = store.get(places[1].key(broken))
    client = location.open()._retrying
    client.put_object(Bucket=location.bucket, Key=places[1].key(broken), Body=blob.data[:-7] + b"garbage")
    client.close()
    before = load(store, places[1]).object_names()
    done = here("compact", "run", write_config(tmp_path / "c.json", location), "--once", "--json")
    assert done.returncode == 1, done.stderr
    report = {p["partition"]: p for p in json.loads(done.stdout)["partitions"]}
    assert [report[p]["outcome"] for p in range(3)] == ["cleaned", "failed", "cleaned"]
    assert broken in report[1]["why"]
    assert load(store, places[1]).object_names() == before
    for place in (places[0], places[2]):
        assert read_all(store, place=place) == last_per_key(appended[place])


def test_a_run_with_nothing_to_do_starts_no_spark(location: S3Location, store: S3Store, tmp_path: Path) -> None:
    Sink.open(store, Place("topics", "users", 0), clock=SystemClock())
    config = write_config(tmp_path / "c.json", location, spark_master="no-such-master")
    done = keyfold("compact", "run", config, "--once", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["partitions_looked_at"] == 1


def test_arrow_in_workers_takes_its_memory_from_the_c_library(spark: SparkSession) -> None:
    """Its own pool takes a quarter more for a pass (`keyfold.runtime.process_memory`)."""
    found = spark.sparkContext.parallelize([0], 1).map(_memory_pool).collect()
    assert found == ["system"]


def _memory_pool(_: int) -> str:
    import pyarrow as pa

    return str(pa.default_memory_pool().backend_name)


def test_workers_are_forked_where_keyfold_is_imported(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(_command_of_parent).collect()
    assert "keyfold_compactor.spark.worker_daemon" in found[0]


def _command_of_parent(_: int) -> str:
    return Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8")


def test_jobs_can_be_pickled() -> None:
    job = LogJob(0, Place("t", "u", 0), (), 0, 0, 1, b"x" * 16, Purge(), False, Encoding())
    assert sent(job) == job


def without_master(path: Path) -> Path:
    values = json.loads(path.read_text())
    del values["spark.master"]
    path.write_text(json.dumps(values))
    return path


@pytest.mark.full
def test_spark_submit_runs_the_script_with_its_own_settings(
    location: S3Location, store: S3Store, tmp_path: Path
) -> None:
    """The command of docs/operations-compactor.md; master and name come from spark-submit, not from our defaults."""
    import keyfold_compactor

    place = Place("topics", "users", 0)
    appended = fill(store, place, seed=1, segments=2)
    settings = {"spark_eventLog_compress": "true", "log_cleaner_io_max_bytes_per_second": "50000000"}
    config = without_master(write_config(tmp_path / "c.json", location, **settings))
    events = tmp_path / "events"
    events.mkdir()
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", "local[1]", "--name", "from-submit"),
        *("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{events}"),
        *("--conf", "spark.eventLog.compress=false", "--conf", "spark.eventLog.rolling.enabled=false"),
        str(Path(keyfold_compactor.__path__[0], "__main__.py")),
        *("run", str(config), "--once", "--json"),
    ]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env, check=False)
    assert done.returncode == 0, done.stderr
    *said, report = done.stdout.splitlines()  # spark-submit makes one stream of the program's two
    assert any("spark.eventLog.compress" in line for line in said), done.stdout
    assert json.loads(report)["partitions_cleaned"] == 1
    assert read_all(store, place=place) == last_per_key(appended)
    log = "".join(path.read_text() for path in events.iterdir())
    assert '"spark.master":"local[1]"' in log
    assert '"spark.app.name":"from-submit"' in log


@pytest.mark.full
def test_ctrl_c_ends_a_loop_after_its_run_when_spark_is_there(
    location: S3Location, store: S3Store, tmp_path: Path
) -> None:
    place = Place("topics", "users", 0)
    fill(store, place, seed=1, segments=2)
    config = write_config(tmp_path / "c.json", location, spark_master="local[1]", log_cleaner_backoff_ms="600000")
    command = [sys.executable, "-c", "from keyfold.cli import main; main()", "compact", "run", str(config), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["partitions_cleaned"] == 1
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert load(store, place).compactor.lease_until_ms == 0
