"""A clock that is so far off that S3 refuses every request (`RequestTimeTooSkewed`), and is set right later.

The services write nothing meanwhile, say that it is the clock, and go on by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from keyfold.runtime.clock import ManualClock
from keyfold.store.api import StoreLocation
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location
from keyfold.store.s3_errors import translate
from keyfold.store.wrappers.faults import Call, FaultyStore
from keyfold_compactor.report.report import PartitionOutcome
from keyfold_sink.status import RunState
from keyfold_sink.task.time_limits import TaskTimings
from keyfold_sink.write.credential_renewal import RenewingStore
from tests.support.cleaning import EAGER, clean, last_per_key, memory_log, read_all, record
from tests.support.replica_rounds import Worlds
from tests.support.sink_rig import T0, MakeRig, rigs

BATCHES = [[record(0, "a", "1"), record(1, "b", "2")], [record(2, "a", "3")]]
WORDS = "the clocks of this machine and the store differ too much"


class Strict(FaultyStore):
    """A store that judges the signature's time; `is_off` while the client's clock is wrong."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner, on_call=self._judge)
        self.is_off = True

    def renew(self, location: StoreLocation) -> None:
        """Other credentials do not help."""

    def _judge(self, call: Call) -> None:
        if self.is_off:
            said = {"Error": {"Code": "RequestTimeTooSkewed"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise translate(ClientError(said, "x"), bucket="b", key=call.key, action="s3:GetObject")  # type: ignore[arg-type]  # the part of an answer that is looked at


@pytest.fixture
def make() -> Iterator[MakeRig]:
    with rigs(TaskTimings(commit_timeout_s=0.1)) as build:
        yield build


def test_a_sink_waits_reports_the_reason_and_continues(make: MakeRig) -> None:
    strict = Strict(MemoryStore())
    access = RenewingStore(strict, lambda: S3Location("b"), ManualClock(), waits=True)
    rig = make(access, flush__size="5")
    rig.kafka.produce(T0, range(5))
    rig.kafka.tell("on_assign", T0)
    rig.until(lambda: bool(rig.statuses) and WORDS in rig.statuses[-1].trace)
    assert rig.says(RunState.UNASSIGNED)
    strict.is_off = False
    rig.until(lambda: rig.next_offset() == 5)
    rig.until(lambda: rig.says(RunState.RUNNING) and rig.statuses[-1].trace == "")


def test_a_pass_fails_with_the_reason_and_the_next_run_cleans() -> None:
    store, _ = memory_log(*BATCHES)
    strict = Strict(store)
    (part,) = clean(strict, EAGER).partitions
    assert part.outcome is PartitionOutcome.FAILED
    assert WORDS in part.why
    assert read_all(store) == [r for batch in BATCHES for r in batch]
    strict.is_off = False
    (part,) = clean(strict, EAGER, seed=2).partitions
    assert part.outcome is PartitionOutcome.CLEANED
    assert read_all(store) == last_per_key([r for batch in BATCHES for r in batch])


def test_a_replicator_reports_the_reason_and_its_next_round_copies() -> None:
    worlds = Worlds.new()
    log = worlds.log()
    log.append(BATCHES[0])
    with worlds.running() as running:
        right = running.replica.on_call
        strict = Strict(worlds.replica)
        running.replica.on_call = strict._judge
        (state,) = running.runner.once().states
        assert state.has_failed
        assert WORDS in f"{state.message} {state.hint}"
        running.replica.on_call = right
        worlds.later(120_000)
        (state,) = running.runner.once().states
        assert not state.has_failed
    assert worlds.read() == BATCHES[0]
