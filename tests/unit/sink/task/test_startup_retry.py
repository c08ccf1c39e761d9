"""Requests of a starting task: retried without limit, with reports meanwhile, and ended by a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from keyfold.errors import AccessDenied, StoreUnavailable
from keyfold.runtime.clock import SystemClock
from keyfold_sink.status import RunState, TaskStatus
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.startup_retry import StartupRetry, StoppedAtStartup


class Asking:
    def __init__(self) -> None:
        self.stop = threading.Event()
        self.said: list[TaskStatus] = []
        reporter = StatusReporter(0, SystemClock(), self.said.append, interval_s=0.02)
        self.persist = StartupRetry(self.stop, reporter, SystemClock(), Random(1))
        self.let_go = threading.Event()

    def hang(self) -> str:
        self.let_go.wait(60)
        return "answer"


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.let_go.set()
    made.persist.end()


def test_an_answer_is_returned_and_a_permanent_error_is_raised(asking: Asking) -> None:
    assert asking.persist(lambda: 5) == 5
    with pytest.raises(AccessDenied):
        asking.persist(lambda: (_ for _ in ()).throw(AccessDenied("k", "no")))


def test_an_unanswered_request_is_repeated_and_reported(asking: Asking) -> None:
    answers: Iterator[Exception | str] = iter([StoreUnavailable("k", "away"), StoreUnavailable("k", "away"), "here"])

    def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert asking.persist(call) == "here"
    assert [status.state for status in asking.said] == [RunState.UNASSIGNED] * len(asking.said)
    assert "away" in asking.said[-1].trace


def test_a_hanging_request_blocks_neither_reports_nor_the_stop_command(asking: Asking) -> None:
    threading.Timer(0.6, asking.stop.set).start()
    with pytest.raises(StoppedAtStartup):
        asking.persist(asking.hang)
    assert len(asking.said) >= 3


def test_a_call_that_hangs_beyond_all_time_outs_sends_no_reports(asking: Asking) -> None:
    asking.persist.hangs_after_s = 0.3
    threading.Timer(1.0, asking.let_go.set).start()
    assert asking.persist(asking.hang) == "answer"
    assert time.time() * 1000 - asking.said[-1].reported_ms > 400


def test_a_stop_between_two_attempts_ends_the_retries(asking: Asking) -> None:
    def call() -> None:
        asking.stop.set()
        raise StoreUnavailable("k", "away")

    with pytest.raises(StoppedAtStartup):
        asking.persist(call)
