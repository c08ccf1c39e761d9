"""`keyfold compact run --engine local` as a process, with neither Java nor pyspark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location
from tests.support.cleaning import Sink, last_per_key, read_all, record
from tests.support.compact_command import config
from tests.support.keyfold_here import here

# To the command these modules look as if they were not installed.
COMMAND = """
import sys
from importlib.abc import MetaPathFinder
class NoPandas(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoPandas())
sys.modules.update(dict.fromkeys(("pyspark", "py4j")))
from keyfold.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def run_without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    command = [sys.executable, "-c", COMMAND, "compact", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def run_without_java(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where pyspark is installed, but cannot start."""
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    command = [sys.executable, "-m", "keyfold.cli", "compact", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.parametrize(
    ("engine", "run"), [("local", run_without_spark), ("auto", run_without_spark), ("auto", run_without_java)]
)
def test_four_partitions_of_100_kb_are_cleaned_without_java_and_pyspark(
    tmp_path: Path, location: S3Location, engine: str, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    store = location.open()
    appended = {}
    for partition in range(4):
        place = Place("topics", "users", partition)
        sink = Sink.open(store, place, clock=SystemClock(), seed=partition)
        appended[place] = [record(i, f"k{i % 50}", sink.random.randbytes(100)) for i in range(1_000)]
        for start in range(0, 1_000, 100):
            sink.append(appended[place][start : start + 100], codec="zstandard", block_bytes=65_536)
    path = config(tmp_path, location, min_cleanable_dirty_ratio="0", compactor_engine=engine)
    begun_s = time.monotonic()
    done = run(path, "--once", "--json")
    took_s = time.monotonic() - begun_s
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["partitions"]) == 4
    for place, records in appended.items():
        assert read_all(store, place=place) == last_per_key(records)
    store.close()
    print(f"process and all: {took_s:.2f} s")


def test_spark_without_pyspark_names_the_extra_and_the_local_engine(tmp_path: Path, location: S3Location) -> None:
    done = run_without_spark(config(tmp_path, location), "--once")
    assert done.returncode == 1
    assert "keyfold[spark]" in done.stderr
    assert "--engine local" in done.stderr


@pytest.mark.parametrize("option", [("--master", "local[1]"), ("--conf", "spark.executor.memory=1g")])
def test_options_of_spark_contradict_the_local_engine(
    tmp_path: Path, location: S3Location, option: tuple[str, str]
) -> None:
    done = here("compact", "run", config(tmp_path, location), "--once", "--engine", "local", *option)
    assert done.returncode == 2
    assert "does not start Spark" in done.stderr


def test_an_unknown_engine_is_refused(tmp_path: Path, location: S3Location) -> None:
    done = here("compact", "run", config(tmp_path, location, compactor_engine="flink"), "--once")
    assert done.returncode == 2
    assert "compactor.engine" in done.stderr
