"""Is the byte rate kept in every second, and is it used? Spark tasks before a proxy that counts what the store sees.

    python -m tests.bench.bench_throttle [--seconds 20] [--rate 2000000] [--tasks 1,2,4,8] [--json]

Each Spark task does what a pass does with objects of a local S3 server: it fetches an index whole and a large range of
a segment, writes a new index, and sends a part of an upload. The proxy counts every byte of requests and answers, the
headers included. Printed are ratios to the rate: the average, and the worst second that begins anywhere. The goals: an
average within 4 % of the rate, and at most 1.3 times the rate in any second.

The first second is left out of the average (Spark's workers start), but not of the worst second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import click
from pyspark.sql import SparkSession

from keyfold.runtime.throttle import ThrottleService
from keyfold.store.api import Create
from keyfold_compactor.spark.session import spark_session
from keyfold_compactor.spark.tasks import TaskEnvironment
from keyfold_demo.local_s3 import LocalS3Process
from tests.bench.report.results import Row, rows_as_json
from tests.support.wire_meter import WireMeter, most_within

RANGE_BYTES_MAX = 5 * 1024 * 1024
RANGE_S = 2
INDEX_BYTES = 300_000
OVER = "over"
READY_S = 120.0


def task(environment: TaskEnvironment, range_bytes: int, numbers: Iterable[int]) -> Iterator[tuple[int, float]]:
    """Read and write until the object `over` is there; the bytes of this task, and the seconds that it waited."""
    part, index = os.urandom(range_bytes), os.urandom(INDEX_BYTES)
    for number in numbers:
        with environment.open() as (store, pacer):
            assert pacer is not None
            store.put(f"ready/{number}", b"", Create())
            upload = store.start_upload(f"task-{number}/segment")
            attempt = 0
            while OVER not in {info.key for info in store.list(OVER)}:
                store.get("index")
                store.get_range("segment", attempt % 4 * range_bytes, range_bytes)
                store.put(f"task-{number}/{attempt}", index, Create())
                upload.write(part)
                attempt += 1
            upload.abort()
            yield pacer.paced_bytes, pacer.wait_s


def measure(spark: SparkSession, tasks: int, rate: float, seconds: float) -> Row:
    """Run the tasks; print and return what the proxy saw."""
    with LocalS3Process() as s3, ThrottleService(rate) as service, WireMeter(s3.port) as meter:
        s3.create_bucket("bench")
        location = s3.location("bench")
        store = location.open()
        range_bytes = int(min(RANGE_BYTES_MAX, rate * RANGE_S))
        store.put("segment", os.urandom(4 * range_bytes), Create())
        store.put("index", os.urandom(INDEX_BYTES), Create())
        environment = TaskEnvironment(replace(location, endpoint_url=meter.url), service.address, 5.0)
        answers: list[tuple[int, float]] = []

        def run() -> None:
            numbers = spark.sparkContext.parallelize(range(tasks), tasks)
            answers.extend(numbers.mapPartitions(lambda found: task(environment, range_bytes, found)).collect())

        runner = threading.Thread(target=run)
        runner.start()
        until_s = time.monotonic() + READY_S
        while len(list(store.list("ready/"))) < tasks:
            assert runner.is_alive(), "the tasks have failed"
            assert time.monotonic() < until_s, "the tasks did not start"
            time.sleep(0.05)
        time.sleep(1)
        begin_s, granted = time.monotonic(), service.bucket.granted_bytes
        time.sleep(seconds)
        end_s, granted = time.monotonic(), service.bucket.granted_bytes - granted
        moves = meter.moves
        store.put(OVER, b"", Create())
        runner.join()
        store.close()
    seen = sum(move.n_bytes for move in moves if begin_s <= move.at_s < end_s)
    took_s = end_s - begin_s
    average, worst = seen / took_s / rate, most_within(moves, 1.0) / rate
    print(
        f"{tasks} tasks at {rate:.0f} bytes/s: average {average:.3f} on the wire, "
        f"{granted / took_s / rate:.3f} granted; worst second {worst:.2f}; "
        f"{sum(bytes_ for bytes_, _ in answers)} bytes paced, {sum(wait_s for _, wait_s in answers):.1f} s waited",
        flush=True,
    )
    return {"tasks": tasks, "rate_bytes_per_s": rate, "average_of_rate": average, "worst_second_of_rate": worst}


@click.command()
@click.option("--seconds", default=20.0)
@click.option("--rate", default=2_000_000.0)
@click.option("--tasks", default="1,2,4,8")
@click.option("--json", "as_json", is_flag=True)
def main(seconds: float, rate: float, tasks: str, *, as_json: bool) -> None:
    """Print the measured ratios for each number of tasks."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    counts = [int(count) for count in tasks.split(",")]
    settings = {"spark.master": f"local[{max(counts)}]", "spark.ui.enabled": "false"}
    with rows_as_json(as_json) as rows, spark_session("bench-throttle", settings) as spark:
        for count in counts:
            rows.append(measure(spark, count, rate, seconds))


if __name__ == "__main__":
    main()
