"""The I/O threads, which wait for answers of the store and of Kafka.

At most `CONCURRENT_CALLS` calls run at once. A job that waits between two attempts does not count (`waiting`), and
another thread takes its place. So a few partitions whose store prefix or leader does not answer do not block the rest.

A request that hangs cannot be interrupted, and a read of a small object may be retried for minutes. A task that was
stopped does not wait for such calls, which end with the process. Nothing is lost: uncommitted records are read again,
and a request that takes effect late is a whole commit or an orphan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CONCURRENT_CALLS: Final = 8
# A waiting thread takes some tens of KiB. If more than this wait, all of them wait for the same outage.
THREADS_MAX: Final = 256


class IoPool(Executor):
    """An executor whose threads do not keep the process alive."""

    def __init__(self, concurrent_calls: int = CONCURRENT_CALLS, threads_max: int = THREADS_MAX) -> None:
        self._concurrent_calls = concurrent_calls
        self._threads_max = threads_max
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._slots = threading.Semaphore(concurrent_calls)
        self._lock = threading.Lock()
        self._waiting = 0
        self._threads: list[threading.Thread] = []
        self._ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`. Thread-safe."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the future passes it on
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(work)
        self._hire()
        return future

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let another job run while the caller's job waits inside this context."""
        with self._lock:
            self._waiting += 1
        self._slots.release()
        try:
            self._hire()
            yield
        finally:
            self._slots.acquire()
            with self._lock:
                self._waiting -= 1

    def end(self, deadline_s: float, monotonic_s: Callable[[], float]) -> bool:
        """Drop jobs that have not begun, and wait for the others until `deadline_s`; return False if one still runs."""
        with self._lock:
            self._ended = True
        try:
            while True:
                self._work.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - monotonic_s()))
        return not any(thread.is_alive() for thread in self._threads)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - the signature of `Executor`
        """See `Executor.shutdown`. Jobs that have not begun are always dropped."""
        self.end(threading.TIMEOUT_MAX if wait else 0.0, lambda: 0.0)

    def _hire(self) -> None:
        """Start threads: one for each concurrent call, and one more for each job that waits."""
        with self._lock:
            wanted = min(self._concurrent_calls + self._waiting, self._threads_max)
            while not self._ended and len(self._threads) < wanted:
                thread = threading.Thread(target=self._run, name=f"keyfold-sink-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            with self._slots:
                work()
