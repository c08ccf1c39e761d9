"""Does the throttle hold, and is it used? Tasks in processes of their own, 2 MB/s, measured at the store.

    python -m tests.bench.bench_throttle [--seconds 20] [--rate 2000000] [--tasks 1,2,8]

Each task reads and writes objects of a local S3 server through the client that Spark's tasks use; the bytes are those
that every task has really been given, over the time from the first to the last of them. The goal is 5 %.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event, Semaphore

import click

from keyfold.store.api import Create
from keyfold.store.s3 import S3Location
from keyfold_compactor.spark_tasks import TaskEnvironment
from keyfold_compactor.throttle import ThrottleAddress, ThrottleService
from keyfold_demo.local_s3 import LocalS3Process

OBJECT_BYTES = 300_000


@dataclass(frozen=True, slots=True)
class Moved:
    """What one task did. Times are of the machine's monotonic clock."""

    n_bytes: int
    wait_s: float


def task(
    number: int, location: S3Location, address: ThrottleAddress, up: Semaphore, over: Event, out: Queue[Moved]
) -> None:
    """Write an object and read it back, again and again."""
    data = bytes(OBJECT_BYTES)
    attempt = 0
    environment = TaskEnvironment(location, address, 5.0)
    with environment.open() as (store, pacer):
        assert pacer is not None
        up.release()
        while not over.is_set():
            key = f"task-{number}/{attempt}"
            store.put(key, data, Create())
            store.get(key)
            attempt += 1
        out.put(Moved(pacer.paced_bytes, pacer.wait_s))


def measure(tasks: int, rate: float, seconds: float) -> float:
    """Bytes a second over all tasks, from the service's opening until the last byte was paid for."""
    context = multiprocessing.get_context("spawn")
    with LocalS3Process() as s3, ThrottleService(rate) as service:
        s3.create_bucket("bench")
        location = s3.location("bench")
        out: Queue[Moved] = context.Queue()
        up, over = context.Semaphore(0), context.Event()
        processes = [
            context.Process(target=task, args=(n, location, service.address, up, over, out)) for n in range(tasks)
        ]
        for process in processes:
            process.start()
        for _ in processes:
            up.acquire()
        time.sleep(1)  # the steady state is measured, not the start of processes
        begun_s, begun_bytes = time.monotonic(), service.bucket.granted_bytes
        time.sleep(seconds)
        took_s, granted = time.monotonic() - begun_s, service.bucket.granted_bytes - begun_bytes
        over.set()
        moved = [out.get(timeout=60) for _ in processes]
        for process in processes:
            process.join()
        total = sum(m.n_bytes for m in moved)
        unused = service.bucket.granted_bytes - total
        waited = sum(m.wait_s for m in moved)
        print(f"{tasks} tasks: {total} bytes moved, {unused} granted and not used, {waited:.1f} s waited")
    return granted / took_s


@click.command()
@click.option("--seconds", default=20.0)
@click.option("--rate", default=2_000_000.0)
@click.option("--tasks", default="1,2,8")
def main(seconds: float, rate: float, tasks: str) -> None:
    """Print the measured rate for each number of tasks."""
    for count in map(int, tasks.split(",")):
        measured = measure(count, rate, seconds)
        print(f"{count} tasks: {measured:.0f} bytes/s, {100 * measured / rate:.1f} % of the budget")


if __name__ == "__main__":
    main()
