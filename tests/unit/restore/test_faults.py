"""Every call of a restore to the store, failing in every way it can: nothing is repeated, nothing is lost."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.errors import KeyfoldError
from keyfold.restore.errors import RestoreBusy, RestoreFenced
from keyfold.restore.partition import RestoreSettings
from keyfold.restore.run import RestoreRequest
from keyfold.restore.selection import RestoreSelection
from keyfold.restore.window import Window, in_force
from keyfold.runtime.clock import ManualClock
from keyfold.store.wrappers.faults import Call, Chaos, Fault, FaultyStore, SimulatedCrash, every_fault
from tests.support.fake_topic import FakeTopic
from tests.support.tiers import Sharded
from tests.unit.restore.test_restore import bare, made, of_log, run

TEXT = "a=1 b=2 a= c=3 b=4 d=5 e=6"


def request(*, latest: bool = False) -> RestoreRequest:
    return RestoreRequest(
        "users", RestoreSelection(latest=latest), RestoreSettings(window_records=2, retry_timeout_s=60)
    )


def calls_of(*, latest: bool) -> list[Call]:
    clock, topic = ManualClock(), FakeTopic()
    log = made(clock, TEXT)
    store = FaultyStore(log.store)
    run(log, topic, clock, request(latest=latest), store=store)
    return store.calls


@pytest.mark.parametrize("latest", [False, True])
def test_a_restore_survives_every_fault_of_every_call(latest: bool, sharded: Sharded) -> None:
    faults = list(every_fault(calls_of(latest=latest)))
    assert len(faults) > 80
    for number, fault in sharded(list(enumerate(faults))):
        _survive(fault, number, latest=latest)


def _survive(fault: Fault, seed: int, *, latest: bool) -> None:
    clock, topic = ManualClock(), FakeTopic(random=Random(seed), lag=seed % 4)
    log = made(clock, TEXT)
    expected = bare([r for r in of_log(log) if r is not None and (not latest or r.offset >= 3)])
    store = FaultyStore(log.store, [fault])
    try:
        run(log, topic, clock, request(latest=latest), store=store)
    except SimulatedCrash:
        topic.die()
    except KeyfoldError as error:
        if not error.retriable:
            raise
    lands = seed % 7 + 1

    def land(call: Call) -> None:
        if call.number == lands:
            store.land()

    again = FaultyStore(log.store, on_call=land)
    for _ in range(3):
        try:
            run(log, topic, clock, request(latest=latest), store=again, seed=2)
        except RestoreBusy:  # the dead run's last renewal landed late, and looks like a sign of life
            clock.advance(40_000)
        else:
            break
    store.land()
    assert bare(topic.log(0)) == expected, fault
    assert run(log, topic, clock, request(latest=latest), seed=3).results[0].wrote == 0


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(30))
def test_a_restore_survives_repeated_store_failures_and_crashes(seed: int) -> None:
    random = Random(seed)
    clock, topic = ManualClock(), FakeTopic(random=random, lag=random.randrange(5))
    log = made(clock, TEXT, segments=3)
    for number in range(100):
        store = FaultyStore(log.store, chaos=Chaos(random, 0.05))
        topic.dies_at = topic.sends + random.randrange(1, 12) if number < 8 else None
        try:
            outcome = run(log, topic, clock, request(), store=store, seed=number)
        except SimulatedCrash:
            topic.die()
        except KeyfoldError as error:
            if not error.retriable and not isinstance(error, RestoreBusy):
                raise
        else:
            assert outcome.results[0].records == 7
            break
        finally:
            store.land()
    assert bare(topic.log(0)) == bare(of_log(log))


def test_a_suspended_run_sends_nothing_after_a_takeover() -> None:
    clock, topic = ManualClock(), FakeTopic(lag=0)
    log = made(clock, TEXT, segments=1)
    woken = False

    def pause(call: Call) -> None:
        nonlocal woken
        if call.operation == "put" and call.key.endswith("0000000001.window") and not woken:
            woken = True
            clock.advance(120_000)
            run(log, topic, clock, request(), seed=2)

    store = FaultyStore(log.store, on_call=pause)
    with pytest.raises(RestoreFenced):
        run(log, topic, clock, request(), store=store)
    assert woken
    assert bare(topic.log(0)) == bare(of_log(log))
    assert run(log, topic, clock, request(), seed=3).results[0].was_finished


def test_later_windows_cut_earlier_ones() -> None:
    def window(number: int, base: int, *offsets: int, finished: bool = False) -> Window:
        from numpy import array, int64

        return Window(number, base, 0, (offsets or (0,))[-1] + 1, array(offsets, int64), 1, finished)

    def shown(*windows: Window) -> list[tuple[int, list[int]]]:
        return [(w.base, w.offsets.tolist()) for w in in_force(reversed(windows))]

    assert shown(window(0, 10, 1, 2, 3), window(1, 13, 5, 6)) == [(13, [5, 6]), (10, [1, 2, 3])]
    assert shown(window(0, 10, 1, 2, 3), window(1, 13, 5, 6), window(2, 11, 3, 4)) == [(11, [3, 4]), (10, [1])]
    assert shown(window(0, 10, 1, 2), window(1, 12, finished=True), window(2, 12, 9)) == [(12, [9]), (10, [1, 2])]
    for one in (window(0, 3), window(7, 10, 5, 6, 9, finished=True)):
        again = Window.decode(one.encode())
        assert (again.number, again.base, again.offsets.tolist(), again.finished) == (
            one.number, one.base, one.offsets.tolist(), one.finished,
        )  # fmt: skip
