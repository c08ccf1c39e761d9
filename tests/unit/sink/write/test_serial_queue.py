"""Serial queues: order, one job at a time, retries that end when the queue is closed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from keyfold.errors import AccessDenied, StoreUnavailable
from keyfold.runtime.retry import Backoff
from keyfold.store.api import Create
from keyfold.store.s3 import S3Store
from keyfold_sink.write.serial_queue import QueueClosed, SerialQueue
from tests.support.scripted_s3 import Answer, scripted_server

QUICK = Backoff(first_ms=1, cap_ms=2)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def test_jobs_of_a_queue_run_in_order_and_never_concurrently(pool: ThreadPoolExecutor) -> None:
    queues = [SerialQueue(pool, lambda _: None) for _ in range(8)]
    seen: list[list[int]] = [[] for _ in queues]
    inside = [0] * len(queues)

    def job(queue: int, number: int) -> None:
        inside[queue] += 1
        assert inside[queue] == 1
        seen[queue].append(number)
        inside[queue] -= 1

    for number in range(50):
        for at, queue in enumerate(queues):
            queue.submit(lambda at=at, number=number: job(at, number))  # type: ignore[misc]  # mypy does not infer a lambda with a default
    assert all(queue.wait_idle(60) for queue in queues)
    assert seen == [list(range(50))] * len(queues)


def test_a_job_that_raises_closes_its_queue_and_drops_the_rest(pool: ThreadPoolExecutor) -> None:
    crashes: list[BaseException] = []
    ended: list[int] = []
    ran: list[int] = []
    queue = SerialQueue(pool, crashes.append)
    hold = threading.Event()

    def fail() -> None:
        hold.wait(60)
        raise AccessDenied("key", "no")

    queue.submit(fail, at_end=lambda: ended.append(0))
    queue.submit(lambda: ran.append(1), at_end=lambda: ended.append(1))
    hold.set()
    assert queue.wait_idle(60)
    assert queue.closed
    assert [type(error) for error in crashes] == [AccessDenied]
    assert queue.crash is crashes[0]
    assert sorted(ended) == [0, 1]
    assert ran == []
    queue.submit(lambda: ran.append(2), at_end=lambda: ended.append(2))
    assert ended[-1] == 2
    assert ran == []


def test_a_job_is_retried_until_it_is_answered(pool: ThreadPoolExecutor) -> None:
    queue = SerialQueue(pool, lambda _: None)
    tries = iter([StoreUnavailable("k", "busy"), StoreUnavailable("k", "busy"), None])

    def call() -> str:
        error = next(tries)
        if error is not None:
            raise error
        return "done"

    assert queue.retry(call, QUICK, Random(0)) == "done"


def test_permanent_errors_are_not_retried(pool: ThreadPoolExecutor) -> None:
    def call() -> None:
        raise AccessDenied("k", "no")

    with pytest.raises(AccessDenied):
        SerialQueue(pool, lambda _: None).retry(call, QUICK, Random(0))


def test_closing_a_queue_ends_a_retry_and_is_no_crash(pool: ThreadPoolExecutor) -> None:
    crashes: list[BaseException] = []
    queue = SerialQueue(pool, crashes.append)
    began = threading.Event()

    def call() -> None:
        began.set()
        raise StoreUnavailable("k", "busy")

    queue.submit(lambda: queue.retry(call, Backoff(first_ms=60_000), Random(0)))
    assert began.wait(60)
    queue.close()
    assert queue.wait_idle(60)
    assert crashes == []
    with pytest.raises(QueueClosed):
        queue.retry(call, QUICK, Random(0))
    with pytest.raises(QueueClosed):
        queue.wait(5)


class Body(bytearray):
    """Bytes that show whether anything still refers to them."""


def test_failed_requests_keep_no_body_in_memory_after_a_success() -> None:
    """Python's cyclic garbage collector runs seldom, and many bodies are pending after an outage."""
    landed = Answer(200, b"", {"ETag": '"e1"'})
    with scripted_server() as server, ThreadPoolExecutor(1) as pool:
        server.answers[:] = [Answer(None), Answer(503, b"<Error><Code>SlowDown</Code></Error>"), Answer(None), landed]
        store = S3Store("b", endpoint_url=server.url, region="us-east-1", access_key_id="k", secret_access_key="s")
        held: list[weakref.ref[Body]] = []

        def send() -> None:
            body = Body(b"x" * 1000)
            held.append(weakref.ref(body))
            queue.retry(lambda: store.put("k", body, Create()), Backoff(1, 1), Random(1))

        queue = SerialQueue(pool, lambda error: pytest.fail(repr(error)))
        gc.collect()
        gc.disable()
        try:
            queue.submit(send)
            assert queue.wait_idle(60)
            assert len(server.asked) == 4
            assert [one() for one in held] == [None]
        finally:
            gc.enable()
        store.close()
