"""Spark's JVM is killed under a compactor that loops: idle, in the middle of a pass, and under spark-submit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keyfold.log.names import Place
from keyfold.log.record import Record
from keyfold.runtime.clock import SystemClock
from keyfold.store.s3 import S3Location, S3Store
from tests.support import compact_command
from tests.support.cleaning import Sink, last_per_key, load, read_all, record
from tests.support.spark_cluster import children, command_line, spark_home

# What a death means is decided in `spark_keeper`, whose unit tests `make test` has.
pytestmark = [pytest.mark.spark, pytest.mark.any_spark, pytest.mark.full]
SMALL, BIG = Place("topics", "users", 0), Place("topics", "users", 1)
WAIT_TIMEOUT_S = 150.0
config_of = partial(compact_command.config, min_cleanable_dirty_ratio="0", log_cleaner_backoff_ms="200")


@pytest.fixture
def store(location: S3Location) -> Iterator[S3Store]:
    opened = location.open()
    yield opened
    opened.close()


def append(sink: Sink, count: int, size: int) -> list[Record]:
    """Every other record has the same key, so that half of each block is garbage; values do not compress."""
    start = sink.session.manifest.next_offset
    keys = [f"k{i}" if i % 2 else "k" for i in range(start, start + count)]
    batch = [record(start + i, key, sink.random.randbytes(size)) for i, key in enumerate(keys)]
    sink.append(batch, codec="null", block_bytes=65536)
    return batch


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s, f"waited for {what}"
        time.sleep(0.05)


def jvms(pid: int) -> list[int]:
    return [child for child in children(pid) if "org.apache.spark.deploy.SparkSubmit" in command_line(child)]


def next_report(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()[-3000:] if process.stderr else ""
    document: dict[str, Any] = json.loads(line)
    return {f"{p['topic']}-{p['partition']}": p for p in document["partitions"]}


def test_a_spark_started_by_the_process_is_restarted_after_it_died_and_no_pass_is_left_unfinished(
    location: S3Location, store: S3Store, tmp_path: Path
) -> None:
    changes = {"spark.master": "local[1]", "log.cleaner.io.max.bytes.per.second": "400000"}
    config = config_of(tmp_path, location, **changes)
    small = Sink.open(store, SMALL, clock=SystemClock())
    append(small, 3, 10)
    command = [sys.executable, "-c", "from keyfold.cli import main; main()", "compact", "run", str(config), "--json"]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert next_report(process)["users-0"]["outcome"] == "cleaned"

            # Killed between two runs: the next one that needs Spark starts it, and nobody sees a failure.
            (first,) = jvms(process.pid)
            os.kill(first, signal.SIGKILL)
            append(small, 3, 10)
            assert next_report(process)["users-0"]["outcome"] == "cleaned"

            # Killed in the middle of a pass: that partition's pass fails, and its log is as it was.
            (second,) = jvms(process.pid)
            assert second != first
            big = Sink.open(store, BIG, clock=SystemClock())
            appended = append(big, 2000, 1000)
            wait_for(lambda: load(store, BIG).compactor.lease_until_ms > 0, "a claim")
            time.sleep(1.0)
            os.kill(second, signal.SIGKILL)
            failed = next_report(process)["users-1"]
            assert failed["outcome"] == "failed"
            assert read_all(store, place=BIG) == appended
            assert load(store, BIG).compactor.lease_until_ms == 0

            append(small, 3, 10)
            assert next_report(process)["users-0"]["outcome"] == "cleaned"
            (third,) = jvms(process.pid)
            assert third not in {first, second}
        finally:
            process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0, (tmp_path / "errors").read_text()[-3000:]
    assert "spark has died; the next run that needs it starts a new session" in (tmp_path / "errors").read_text()

    done = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert read_all(store, place=BIG) == last_per_key(appended)


def test_a_loop_under_spark_submit_ends_when_its_spark_is_killed(
    location: S3Location, store: S3Store, tmp_path: Path
) -> None:
    """Nothing is left behind that would clean on without anybody's knowing."""
    import keyfold_compactor

    config = config_of(tmp_path, location)
    small = Sink.open(store, SMALL, clock=SystemClock())
    append(small, 3, 10)
    script = Path(keyfold_compactor.__path__[0], "__main__.py")
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[1]", str(script), "run", str(config)]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(spark_home())}
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    python = 0
    try:
        wait_for(lambda: load(store, SMALL).first_dirty_offset == 3, "the first pass")
        wait_for(lambda: load(store, SMALL).compactor.lease_until_ms == 0, "its end")
        (python,) = [child for child in children(process.pid) if "__main__.py" in command_line(child)]
        process.kill()
        process.wait()
        wait_for(lambda: "__main__.py" not in command_line(python), "the end of what looped")
    finally:
        process.kill()
        process.wait()
        if python and "__main__.py" in command_line(python):  # else the process is gone, and its number anybody's
            with contextlib.suppress(ProcessLookupError):
                os.kill(python, signal.SIGKILL)
    append(small, 3, 10)
    assert load(store, SMALL).compactor.lease_until_ms == 0
    assert load(store, SMALL).first_dirty_offset == 3, "nobody cleans any more"
