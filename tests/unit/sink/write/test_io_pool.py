"""The threads of the pool: a bounded number of calls in flight, however many are pending."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest

from keyfold.errors import StoreUnavailable
from keyfold.runtime.retry import Backoff
from keyfold_sink.write.io_pool import IoPool
from keyfold_sink.write.serial_queue import SerialQueue


def test_a_submitted_call_gives_its_result_or_error() -> None:
    concurrent_calls = IoPool(2)
    assert concurrent_calls.submit(lambda: 3).result(60) == 3
    with pytest.raises(ZeroDivisionError):
        concurrent_calls.submit(lambda: 1 // 0).result(60)
    assert concurrent_calls.end(time.monotonic() + 60, time.monotonic)


def test_at_most_one_call_per_thread_is_in_flight() -> None:
    concurrent_calls = IoPool(3)
    lock, inside, most = threading.Lock(), 0, 0

    def call() -> None:
        nonlocal inside, most
        with concurrent_calls.waiting():
            time.sleep(0.001)
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.002)
        with lock:
            inside -= 1

    for future in [concurrent_calls.submit(call) for _ in range(60)]:
        future.result(60)
    assert 1 < most <= 3
    assert concurrent_calls.end(time.monotonic() + 60, time.monotonic)


def test_queues_that_wait_for_a_retry_block_no_others() -> None:
    concurrent_calls = IoPool(2)
    stuck = [SerialQueue(concurrent_calls, lambda _: None) for _ in range(20)]
    slow = Backoff(first_ms=60_000, cap_ms=60_000)

    def away() -> None:
        raise StoreUnavailable("a", "is away")

    for queue in stuck:
        queue.submit(lambda queue=queue: queue.retry(away, slow, Random(0)))  # type: ignore[misc]  # mypy does not infer a lambda with a default
    done = threading.Event()
    SerialQueue(concurrent_calls, lambda _: None).submit(done.set)
    assert done.wait(60)
    for queue in stuck:
        queue.close()
    assert all(queue.wait_idle(60) for queue in stuck)
    assert concurrent_calls.end(time.monotonic() + 60, time.monotonic)


def test_threads_end_with_the_pool() -> None:
    concurrent_calls, over = IoPool(2, threads_max=5), threading.Event()

    def wait() -> None:
        with concurrent_calls.waiting():
            over.wait(60)

    futures = [concurrent_calls.submit(wait) for _ in range(30)]
    over.set()
    for future in futures:
        future.result(60)
    assert len(concurrent_calls._threads) <= 5
    assert concurrent_calls.end(time.monotonic() + 60, time.monotonic)


def test_a_hanging_call_does_not_delay_the_end() -> None:
    concurrent_calls, over = IoPool(1), threading.Event()
    concurrent_calls.submit(over.wait, 10)
    dropped = concurrent_calls.submit(lambda: 1)
    assert not concurrent_calls.end(time.monotonic() + 0.1, time.monotonic)
    over.set()
    assert not dropped.done()
