"""The serial queue of one partition's store operations, on threads that all partitions share.

The main thread must keep polling Kafka while the store is slow, so every operation that waits for the store runs here.
The jobs of a queue keep their order and never overlap, so each partition has at most one commit in flight. A closed
queue drops jobs that have not begun. The running job sees `closed` at its next wait and stops.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Final, TypeVar

import structlog

from keyfold.errors import KeyfoldError
from keyfold.runtime.retry import Backoff
from keyfold_sink.write.io_pool import IoPool
from keyfold_sink.write.partition_health import PartitionHealth

T = TypeVar("T")

# A delay of a second means that several attempts have failed, which is logged for operators.
_SAY_SO_AFTER_S: Final = 1.0
_DELAYS: Final = Backoff(first_ms=100, cap_ms=10_000)
_ATTEMPTS: Final = 3
LOOK_AGAIN_S: Final = 0.5
Job = Callable[[], None]


class QueueClosed(Exception):
    """Raised to end a job whose queue was closed while it waited; not an error."""


class SerialQueue:
    """A queue of jobs that run one at a time.

    A job that raises closes its queue, because later jobs depend on it, and `on_crash` receives the exception.
    `on_retry` is called before each retry.
    """

    def __init__(
        self,
        executor: Executor,
        on_crash: Callable[[BaseException], None],
        health: PartitionHealth | None = None,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        self._executor = executor
        self._on_crash = on_crash
        self._health = health
        self._on_retry = on_retry
        self._jobs: deque[tuple[Job, Job | None]] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._closed = threading.Event()
        self.crash: BaseException | None = None

    @property
    def closed(self) -> bool:
        """Whether the queue starts no more jobs."""
        return self._closed.is_set()

    @property
    def idle(self) -> bool:
        """Whether no job runs or waits."""
        with self._changed:
            return not self._running and not self._jobs

    @property
    def jobs(self) -> int:
        """The number of jobs that run or wait."""
        with self._changed:
            return len(self._jobs) + self._running

    def submit(self, job: Job, at_end: Job | None = None) -> None:
        """Run `job` after all jobs submitted before. `at_end` is called afterwards, also if the job is dropped."""
        with self._changed:
            if not self.closed:
                self._jobs.append((job, at_end))
                if not self._running:
                    self._running = True
                    self._executor.submit(self._run)
                return
        if at_end is not None:
            at_end()

    def close(self) -> None:
        """Drop jobs that have not begun; wake a job that waits for a retry."""
        self._closed.set()
        with self._changed:
            dropped = list(self._jobs)
            self._jobs.clear()
        for _, at_end in dropped:
            if at_end is not None:
                at_end()

    def report_error(self, error: BaseException) -> None:
        """Report an error as if the job had raised it, and continue with the job and those that wait."""
        self._on_crash(error)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no job runs or waits; return False on a time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running and not self._jobs, timeout_s)

    def wait(self, seconds: float) -> None:
        """Sleep in a job, without blocking other partitions. Raise `QueueClosed` if the queue is closed meanwhile."""
        with self._executor.waiting() if isinstance(self._executor, IoPool) else contextlib.nullcontext():
            if self._closed.wait(seconds):
                raise QueueClosed

    def retry(self, call: Callable[[], T], backoff: Backoff, random: Random) -> T:
        """Retry `call` without limit while its error is retriable. Raise `QueueClosed` once the queue is closed."""
        has_failed = False
        for delay_s in backoff.delays_s(random):
            if self.closed:
                raise QueueClosed
            try:
                result = call()
            except KeyfoldError as error:
                if not error.retriable:
                    raise
                has_failed = True
                if self._health is not None:
                    self._health.failed(error)
                if delay_s >= _SAY_SO_AFTER_S:
                    structlog.get_logger("keyfold.sink").warning(
                        "operation failed; retrying", error=str(error), again_in_s=delay_s
                    )
                let_go(error)
            else:
                if has_failed and self._health is not None:
                    self._health.went_on()
                return result
            self.wait(delay_s)
            self._on_retry()
        raise AssertionError  # the delays are endless

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._running = False
                    self._changed.notify_all()
                    return
                job, at_end = self._jobs.popleft()
            try:
                job()
            except QueueClosed:
                pass
            except BaseException as error:  # noqa: BLE001 - the main thread decides what an error means
                self.crash = error
                self.close()
                self._on_crash(error)
            finally:
                if at_end is not None:
                    at_end()


@dataclass(frozen=True, slots=True)
class QueueRetry:
    """Retry calls on a serial queue until they are answered or the queue is closed."""

    queue: SerialQueue
    random: Random
    backoff: Backoff = _DELAYS
    look_again_s: float = LOOK_AGAIN_S

    def repeat(self, call: Callable[[], T]) -> T:
        """See `SerialQueue.retry`."""
        return self.queue.retry(call, self.backoff, self.random)

    def repeat_after(self, error: type[KeyfoldError], call: Callable[[], T], attempts: int = _ATTEMPTS) -> T:
        """Retry, also after `error` until the last attempt: a broker that just started may not know the topic yet."""
        for _ in range(attempts - 1):
            with contextlib.suppress(error):
                return self.repeat(call)
            self.queue.wait(self.look_again_s)
        return self.repeat(call)


def let_go(error: BaseException) -> None:
    """Free the memory that a handled error references.

    The error's traceback references the frames, the frames the bytes to be sent, and one frame (of boto3) the error.
    Such a cycle stays until Python searches for cycles, which is rare here. After an outage, all bytes that had waited
    stayed in memory while as much again was read (measured: 30 MiB with a `buffer.memory` of 48 MiB).
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            for frame, _ in traceback.walk_tb(one.__traceback__):
                _clear(frame)
            errors += [one.__cause__, one.__context__]


def _clear(frame: FrameType | None) -> None:
    """Clear a finished frame, and its finished callers."""
    with contextlib.suppress(RuntimeError):  # raised by the first frame that is still executing
        while frame is not None:
            frame.clear()
            frame = frame.f_back
