"""Many partitions: how many Spark jobs a run takes, what an idle one leaves alone, several commands at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.execute.run import Run, RunSettings
from tests.bench import _many
from tests.bench._folder_store import FolderStore
from tests.support import compact_command
from tests.support.cleaning import Sink, last_per_key, load, read_all, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 300
COMMAND = """
import sys
from keyfold.cli import main
try:
    main()
finally:
    print("imported", [m for m in ("pyspark", "py4j", "pyarrow") if m in sys.modules], file=sys.stderr)
"""


config = partial(compact_command.config, spark_master="local[1]", min_cleanable_dirty_ratio="0")


def fill(location: S3Location, count: int) -> list[Place]:
    """Partitions of four records of which one is garbage."""
    found = [Place("topics", "users", partition) for partition in range(count)]
    store = location.open()
    for place in found:
        Sink.open(store, place, clock=SystemClock()).append([record(n, f"k{n % 3}", f"v{n}") for n in range(4)])
    store.close()
    return found


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which every start of a JVM fails, and is seen."""
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho started >> {folder / 'jvm'}\nexit 1\n")
    java.chmod(0o755)
    path = f"{java.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "JAVA_HOME": str(java.parent.parent)}


def test_a_plan_and_a_run_with_nothing_to_do_import_no_spark_and_start_no_jvm(
    tmp_path: Path, location: S3Location
) -> None:
    fill(location, 10)
    environment, jvm = without_java(tmp_path), tmp_path / "jvm"

    def keyfold(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", COMMAND, "compact", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    path = config(tmp_path, location, min_cleanable_dirty_ratio="1")
    for arguments in (("plan", path), ("run", path, "--once"), ("run", path, "--once", "--collect-orphans")):
        done = keyfold(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == "imported []"
    assert keyfold("plan", config(tmp_path, location)).returncode == 0
    assert not jvm.exists(), "and a plan of what is due starts none either"
    busy = keyfold("run", config(tmp_path, location), "--once")
    assert "pyspark" in busy.stderr.splitlines()[-1]
    assert jvm.exists(), "a run with something to do would have been seen"


@pytest.mark.spark
def test_hundreds_of_small_partitions_take_four_spark_jobs_and_an_idle_run_takes_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    from keyfold_compactor.spark.executor import SparkExecutor
    from keyfold_compactor.spark.tasks import TaskEnvironment

    _many.make(tmp_path, PARTITIONS, records=40, segments=4, garbage=0.5)
    store, places = FolderStore(str(tmp_path)), _many.places(PARTITIONS)
    topic = TopicSettings(min_cleanable_dirty_ratio=0.0, file_delete_delay_ms=0)
    tracker = spark.sparkContext.statusTracker()
    executor = SparkExecutor(spark, TaskEnvironment(store, None, 5.0), map_bytes=10**9)
    jobs = []
    for _ in range(2):
        settings = RunSettings(settings_of=lambda *_: topic)
        before = set(tracker.getJobIdsForGroup(None))
        report = Run(store, settings, lambda _: executor, clock=SystemClock(), random=Random()).clean(places)
        assert report.exit_code == 0, report.document()
        found = set(tracker.getJobIdsForGroup(None)) - before
        stages = [stage for info in map(tracker.getJobInfo, found) if info for stage in info.stageIds]
        tasks = sum(info.numTasks for info in map(tracker.getStageInfo, stages) if info)
        jobs.append((len(report.partitions), len(found), tasks))
    assert jobs[0][:2] == (PARTITIONS, 4), "a job a batch, and a quarter of so little is one"
    assert 0 < jobs[0][2] <= 2 * 2 * 4, "tasks are as many as the machine keeps busy, however many logs there are"
    assert jobs[1] == (0, 0, 0)
    assert {_many.load(store, place).record_count for place in places} == {20}


@pytest.mark.full
@pytest.mark.spark
def test_concurrent_commands_share_the_partitions_and_all_succeed(tmp_path: Path, location: S3Location) -> None:
    places = fill(location, 40)
    store = location.open()
    size_bytes = load(store, places[0]).size_bytes
    path = config(tmp_path, location, log_cleaner_batch_bytes=str(10 * size_bytes))
    command = [sys.executable, "-c", COMMAND, "compact", "run", path, "--once", "--json"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    reports = [json.loads(out)["partitions"] for out, _ in told]
    cleaned = Counter(p["partition"] for report in reports for p in report if p["outcome"] == "cleaned")
    assert cleaned == Counter(range(40))
    expected = last_per_key([record(n, f"k{n % 3}", f"v{n}") for n in range(4)])
    for place in places:
        assert read_all(store, place=place) == expected
    store.close()
