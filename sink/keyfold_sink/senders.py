"""The threads that wait for the store and for Kafka's answers.

A request that hangs cannot be interrupted, and reading a small object may be tried for minutes before it is given up.
A task that was told to stop must not wait for that: what hangs is left to itself and dies with the process. Nothing is
lost by it, for what is not committed does not count, and what lands late is a whole commit or an orphan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SENDERS: Final = 8


class Senders(Executor):
    """An executor whose threads do not keep the process alive."""

    def __init__(self, threads: int = SENDERS) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"keyfold-sink-{number}", daemon=True) for number in range(threads)
        ]
        self._started = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`. Called by the main thread and by lanes."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(work)
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        return future

    def end(self, deadline_s: float, monotonic_s: Callable[[], float]) -> bool:
        """Drop what has not begun and wait for what has, until `deadline_s`; False when something still hangs then."""
        try:
            while True:
                self._work.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._work.put(None)
        if not self._started:
            return True
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - monotonic_s()))
        return not any(thread.is_alive() for thread in self._threads)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """See `Executor.shutdown`; what has not begun is always dropped."""
        self.end(threading.TIMEOUT_MAX if wait else 0.0, lambda: 0.0)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
