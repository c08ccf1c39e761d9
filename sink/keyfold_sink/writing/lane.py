"""One partition's work for the store, one job after another, on threads that all partitions share.

The main thread must keep polling Kafka while the store is slow, so everything that waits for the store runs here. Jobs
of one lane keep their order and never overlap: one commit per partition is in flight. A lane that was closed drops what
has not begun; what runs sees `closed` at its next wait and stops.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from types import FrameType
from typing import Final, TypeVar

import structlog

from keyfold.backoff import Backoff
from keyfold.errors import KeyfoldError
from keyfold_sink.writing.health import Health
from keyfold_sink.writing.senders import Senders

T = TypeVar("T")

# A pause of a second means that several tries have failed: then an operator may want to know.
_SAY_SO_AFTER_S: Final = 1.0
Job = Callable[[], None]


class LaneClosed(Exception):
    """The lane was closed while its job waited: not an error, it only ends the job."""


class Lane:
    """A queue of jobs that run one at a time.

    `on_crash` gets what a job raised; a job that raised closes its lane, because the next one builds on it. `on_end` is
    called with each job that ended or was dropped.
    """

    def __init__(
        self,
        executor: Executor,
        on_crash: Callable[[BaseException], None],
        health: Health | None = None,
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
        """Whether no job will begin any more."""
        return self._closed.is_set()

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        with self._changed:
            return not self._running and not self._jobs

    @property
    def jobs(self) -> int:
        """How many run or wait."""
        with self._changed:
            return len(self._jobs) + self._running

    def submit(self, job: Job, at_end: Job | None = None) -> None:
        """Run `job` after all that were submitted before. `at_end` follows in any case, also when it is dropped."""
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
        """Drop what has not begun; wake what waits for another try."""
        self._closed.set()
        with self._changed:
            dropped = list(self._jobs)
            self._jobs.clear()
        for _, at_end in dropped:
            if at_end is not None:
                at_end()

    def tell(self, error: BaseException) -> None:
        """Report what a job has found as if it had raised it, and go on: what waits here is still to be done."""
        self._on_crash(error)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs and nothing waits; False when time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running and not self._jobs, timeout_s)

    def wait(self, seconds: float) -> None:
        """Sleep on the lane, in nobody's way. Raises `LaneClosed` when the lane is closed meanwhile."""
        with self._executor.waiting() if isinstance(self._executor, Senders) else contextlib.nullcontext():
            if self._closed.wait(seconds):
                raise LaneClosed

    def retry(self, call: Callable[[], T], backoff: Backoff, random: Random) -> T:
        """Repeat `call` while its error is retriable, for ever. Raises `LaneClosed` once the lane is closed."""
        has_failed = False
        for delay_s in backoff.delays_s(random):
            if self.closed:
                raise LaneClosed
            try:
                result = call()
            except KeyfoldError as error:
                if not error.retriable:
                    raise
                has_failed = True
                if self._health is not None:
                    self._health.failed(error)
                if delay_s >= _SAY_SO_AFTER_S:
                    structlog.get_logger("keyfold.sink").warning("still trying", error=str(error), again_in_s=delay_s)
                let_go(error)
            else:
                if has_failed and self._health is not None:
                    self._health.went_on()
                return result
            self.wait(delay_s)
            self._on_retry()
        raise AssertionError  # the delays never end

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
            except LaneClosed:
                pass
            except BaseException as error:  # noqa: BLE001 - the main thread decides what an error means
                self.crash = error
                self.close()
                self._on_crash(error)
            finally:
                if at_end is not None:
                    at_end()


def let_go(error: BaseException) -> None:
    """Have an error that is over with hold nothing of what was being sent.

    Its traceback holds the frames, they the bytes, and one of them (boto3's) the error again: such a ring stays until
    Python looks for rings, which here it seldom does. After an outage all that had waited was still held so while as
    much again was read (measured: 30 MiB of a `buffer.memory` of 48).
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
    """Let a frame that has ended forget what it held, and those that called it and have ended."""
    with contextlib.suppress(RuntimeError):  # the first one that is still at work
        while frame is not None:
            frame.clear()
            frame = frame.f_back
