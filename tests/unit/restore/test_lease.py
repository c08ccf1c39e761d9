"""What a restore must not send: what may still land beside the next run, and what it has sent already."""

from __future__ import annotations

from random import Random

import pytest

from keyfold.log.names import Place
from keyfold.read.blocks import ReadLimits
from keyfold.restore.lease import FRESH_SHARE, RENEW_SHARE, SEND_SHARE, Lease
from keyfold.restore.partition import RestoreSettings
from keyfold.restore.run import RestoreRequest
from keyfold.runtime.clock import ManualClock
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import FaultyStore, SimulatedCrash
from tests.support.fake_topic import FakeTopic
from tests.support.logs import MadeLog, records
from tests.unit.restore.test_restore import SMALL, bare, made, of_log, run


def test_a_renewed_lease_counts_from_the_sending_of_the_renewal() -> None:
    clock = ManualClock()
    slow = FaultyStore(MemoryStore(clock=clock), on_call=lambda call: clock.advance(4_000))
    lease = Lease(slow, "lease.json", holder="first", clock=clock, random=Random(1))
    lease.acquire()
    sent_s = clock.monotonic_s()
    lease._renew()
    assert clock.monotonic_s() >= sent_s + 4
    assert lease.hold() == sent_s + lease.lease_s * FRESH_SHARE


def test_records_handed_to_the_client_land_or_expire_within_the_lease() -> None:
    assert FRESH_SHARE + SEND_SHARE < 1
    assert RENEW_SHARE < FRESH_SHARE


def test_a_lease_longer_than_the_next_runs_is_waited_for_to_its_end() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    Lease(store, "lease.json", holder="first", clock=clock, random=Random(1), lease_s=120).acquire()
    taken_s = clock.monotonic_s()
    clock.advance(60_000)
    Lease(store, "lease.json", holder="second", clock=clock, random=Random(2), lease_s=30).acquire()
    assert clock.monotonic_s() >= taken_s + 120


def test_a_dead_runs_records_in_flight_land_before_the_next_run_checks() -> None:
    """The lease is over, and the broker takes the dead producer's records only now."""
    topic = FakeTopic(lag=4, dies_at=5)
    clock = Landing(topic)
    log = made(clock)
    with pytest.raises(SimulatedCrash):
        run(log, topic, clock, RestoreRequest("users", settings=SMALL))
    topic.dies_at = None
    clock.lands_from_s = clock.monotonic_s() + 31
    run(log, topic, clock, RestoreRequest("users", settings=SMALL), seed=2)
    clock.land()
    assert bare(topic.log(0)) == bare(of_log(log))


class Landing(ManualClock):
    """A clock in whose sleeps the first channel's records land, one at a time, from a moment on."""

    def __init__(self, topic: FakeTopic) -> None:
        super().__init__()
        self._topic = topic
        self.lands_from_s = float("inf")

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.monotonic_s() >= self.lands_from_s:
            self.land(1)

    def land(self, count: int = 1000) -> None:
        self._topic.channels[0].land(count)


def test_a_window_whose_segment_is_deleted_midway_continues_where_it_stopped() -> None:
    clock, topic = ManualClock(), FakeTopic()
    log = MadeLog(store=MemoryStore(clock=clock), place=Place("topics", "users", 0), clock=clock, codec="null")
    text = " ".join(f"k{n % 1990}={n}" for n in range(2000))
    log.append(records(text))
    expected = bare(of_log(log))

    def replaced(sends: int) -> None:
        if len(log.manifest.replaced) == 0:
            log.compact()
            log.delete_replaced()

    topic.on_send = replaced
    request = RestoreRequest("users", settings=RestoreSettings(batch_bytes=2_000))
    run(log, topic, clock, request, limits=ReadLimits(read_ahead_bytes=2_000))
    assert bare(topic.log(0)) == expected
