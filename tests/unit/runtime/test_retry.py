"""Retries: which errors are retried, how long, and who decides to stop."""

from math import inf
from random import Random

import pytest

from keyfold.errors import KeyfoldError, ObjectNotFound, StoreUnavailable
from keyfold.runtime.clock import ManualClock
from keyfold.runtime.retry import Backoff, RetryPolicy, repeat

AWAY = StoreUnavailable("k", "no answer")


class Call:
    """Fails with the given errors, then returns."""

    def __init__(self, *errors: KeyfoldError) -> None:
        self.errors = list(errors)
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_retriable_errors_are_retried_and_others_are_raised_immediately() -> None:
    policy = RetryPolicy(ManualClock(), Random(1))
    assert policy.repeat(Call(AWAY, AWAY)) == "answer"
    refused = Call(AWAY, ObjectNotFound("k", "gone"))
    with pytest.raises(ObjectNotFound):
        policy.repeat(refused)
    assert refused.made == 2


def test_the_last_error_is_raised_before_the_time_limit_would_be_exceeded() -> None:
    clock = ManualClock()
    began_s = clock.monotonic_s()
    last = StoreUnavailable("k", "the last one")
    call = Call(*[AWAY] * 3, *[last] * 100)
    with pytest.raises(StoreUnavailable, match="the last one"):
        RetryPolicy(clock, Random(2), Backoff(100, 1_000), timeout_s=5.0).repeat(call)
    assert 3.5 < clock.monotonic_s() - began_s <= 5.0


def test_without_a_limit_a_call_is_retried_until_it_succeeds() -> None:
    call = Call(*[AWAY] * 500)
    assert RetryPolicy(ManualClock(), Random(3), timeout_s=inf).repeat(call) == "answer"
    assert call.made == 501


def test_a_limit_of_zero_means_one_attempt() -> None:
    call = Call(AWAY)
    with pytest.raises(StoreUnavailable):
        RetryPolicy(ManualClock(), Random(4), timeout_s=0).repeat(call)
    assert call.made == 1


def test_the_caller_chooses_the_wait_gets_the_failures_and_can_end_the_attempts() -> None:
    heard: list[tuple[str, float]] = []
    waited: list[float] = []

    class Closed(Exception):
        pass

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise Closed

    with pytest.raises(Closed):
        repeat(Call(*[AWAY] * 9), iter([0.1, 0.2, 0.3, 0.4]), wait, lambda e, s: heard.append((e.message, s)))
    assert waited == [0.1, 0.2, 0.3]
    assert [seconds for _, seconds in heard] == waited
    with pytest.raises(StoreUnavailable):
        repeat(Call(AWAY, AWAY), [0.1, 0.2], waited.append)


def test_delays_double_up_to_the_cap_and_are_drawn_from_the_upper_half_of_each_step() -> None:
    backoff = Backoff(first_ms=100, cap_ms=350)
    delays_s = backoff.delays_s(Random(5))
    for step_ms in (100, 200, 350, 350):
        assert step_ms / 2000 <= next(delays_s) <= step_ms / 1000
    assert [backoff.step_ms(failures) for failures in (1, 2, 3, 4, 100_000)] == [100, 200, 350, 350, 350]
