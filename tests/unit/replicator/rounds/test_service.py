"""All replicas of a source in one process: registered, edited and removed while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

import pytest

from keyfold.replicas.documents import Registration
from keyfold.replicas.registry import ReplicaRegistry
from keyfold.runtime.buffers import Bytes
from keyfold.runtime.clock import ManualClock, SystemClock
from keyfold.runtime.health import Liveness
from keyfold.runtime.retry import Backoff
from keyfold.store.api import Create, PutMode, PutResult
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Call, Fault, FaultKind
from keyfold_replicator.registry.open_replica import side
from keyfold_replicator.registry.replica_pair import ReplicaSettings
from keyfold_replicator.rounds.runner import RunnerTimings
from keyfold_replicator.rounds.service import Replication, ReplicationContext, quiet_max_s
from keyfold_replicator.state.states import PartitionState, SyncState
from keyfold_replicator.state.totals import Tally
from keyfold_replicator.status.status_report import load_report
from tests.support.logs import records
from tests.support.replica_command import Buckets, made_log, read

TIMINGS = RunnerTimings(check_s=0.05, publish_s=0.05, enablement_kept_s=0.05, tick_s=0.01)
AT_ONCE = Backoff(first_ms=20, cap_ms=100)
SETTINGS = ReplicaSettings(threads=2, poll_ms=20, discover_ms=50, retry_timeout_s=1)


class Seen:
    """A watch that remembers."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.states: dict[str, tuple[PartitionState, ...]] = {}

    def start_replica(self, name: str) -> Tally:
        self.begun.append(name)
        return Tally()

    def publish_states(self, name: str, states: Sequence[PartitionState]) -> None:
        self.states[name] = tuple(states)

    def remove_replica(self, name: str) -> None:
        self.ended.append(name)


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


def means(buckets: Buckets) -> ReplicationContext:
    return ReplicationContext(
        SETTINGS,
        SystemClock(),
        Random(5),
        "here:1",
        opener=buckets.open,
        environ={},
        timings=TIMINGS,
        open_again=AT_ONCE,
    )


def replication(buckets: Buckets, *names: str, observer: Seen | None = None) -> Replication:
    return Replication(side(buckets["log"], "topics"), means(buckets), names, observer=observer, list_interval_s=0.05)


def registry(buckets: Buckets) -> ReplicaRegistry:
    return ReplicaRegistry(buckets["log"], "topics", SystemClock(), Random(6))


def registered(name: str, bucket: str, **more: str) -> Registration:
    return Registration(name, {"s3.bucket.name": bucket, **{key.replace("_", "."): more[key] for key in more}})


@contextmanager
def running(one: Replication) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=one.loop, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=60)
        assert not thread.is_alive()


def until(is_so: Callable[[], bool], within_s: float = 60) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def has_all(buckets: Buckets, bucket: str) -> bool:
    return bool(buckets[bucket].inner.list_folders("topics/")) and _read(buckets, bucket) == read(buckets, "log")


def _read(buckets: Buckets, bucket: str) -> list[object]:
    try:
        return [*read(buckets, bucket)]
    except Exception:  # noqa: BLE001 - nothing is there yet
        return []


def test_replicas_are_added_and_removed_while_the_service_runs(buckets: Buckets) -> None:
    made = made_log(buckets)
    known, watch = registry(buckets), Seen()
    known.add(registered("dr", "dr"))
    with running(replication(buckets, observer=watch)):
        until(lambda: has_all(buckets, "dr"))
        known.add(registered("archive", "archive"))
        until(lambda: has_all(buckets, "archive"))
        made.append(records("c=1", 3))
        until(lambda: has_all(buckets, "dr") and has_all(buckets, "archive"))
        known.remove("dr")
        until(lambda: "dr" in watch.ended)
        made.append(records("d=1", 4))
        until(lambda: has_all(buckets, "archive"))
        assert len(read(buckets, "dr")) == 4
    assert [s.state for s in watch.states["archive"]] == [SyncState.IN_SYNC]
    reported = load_report(buckets["log"], "topics", "archive")
    assert reported is not None
    assert not reported.is_running
    assert load_report(buckets["log"], "topics", "dr") is None


def test_an_edited_replica_is_opened_again(buckets: Buckets) -> None:
    made_log(buckets)
    known = registry(buckets)
    known.add(registered("dr", "dr"))
    with running(replication(buckets)):
        until(lambda: has_all(buckets, "dr"))
        known.edit("dr", {"s3.bucket.name": "elsewhere"})
        until(lambda: has_all(buckets, "elsewhere"))


@pytest.mark.parametrize("is_once", [False, True])
def test_a_replica_removed_during_a_round_leaves_nothing_at_the_source(buckets: Buckets, *, is_once: bool) -> None:
    made, known, watch = made_log(buckets), registry(buckets), Seen()
    known.add(registered("dr", "dr"))
    removed: list[Registration] = []

    def remove(call: Call) -> None:
        """Before the round writes its cursor, so there is nothing that could be taken out of the manifest yet."""
        if call.operation == "put" and call.key.endswith("_manifest.avro") and not removed:
            removed.append(known.remove("dr"))

    buckets["dr"].on_call = remove
    if is_once:
        assert replication(buckets).once()["dr"].is_in_sync
    else:
        with running(replication(buckets, observer=watch)):
            until(lambda: "dr" in watch.ended)
    assert removed
    assert made.log.load().manifest.holds == ()


def test_one_failing_replica_delays_no_other(buckets: Buckets) -> None:
    """One replica has a credential that this machine lacks, one is unavailable."""
    made_log(buckets)
    known = registry(buckets)
    config = {
        "s3.bucket.name": "b",
        "aws.access.key.id": "${env:KEYFOLD_REPLICA_NO_ID}",
        "aws.secret.access.key": "${env:KEYFOLD_REPLICA_NO_KEY}",
    }
    known.add(Registration("nobody", config))
    known.add(registered("gone", "gone"))
    known.add(registered("dr", "dr"))
    buckets.away.add("gone")
    with running(replication(buckets)):
        until(lambda: has_all(buckets, "dr"))

        def has_said() -> bool:
            reported = load_report(buckets["log"], "topics", "nobody")
            return reported is not None and "`KEYFOLD_REPLICA_NO_ID` is not set" in reported.error

        until(has_said)
        buckets.away.clear()
        until(lambda: has_all(buckets, "gone"))


def test_an_unavailable_source_is_waited_for(buckets: Buckets) -> None:
    made_log(buckets)
    registry(buckets).add(registered("dr", "dr"))
    buckets.away.add("log")
    with running(replication(buckets)):
        time.sleep(0.2)
        buckets.away.clear()
        until(lambda: has_all(buckets, "dr"), within_s=60)


def test_only_the_named_replicas_are_run(buckets: Buckets) -> None:
    made_log(buckets)
    known = registry(buckets)
    known.add(registered("dr", "dr"))
    known.add(registered("archive", "archive"))
    assert set(replication(buckets, "dr").once()) == {"dr"}
    assert [*buckets["archive"].inner.list("")] == []


class Careless(MemoryStore):
    """A store that ignores conditions."""

    def put(self, key: str, data: Bytes, mode: PutMode) -> PutResult:
        del mode
        self.delete(key)
        return super().put(key, data, Create())


def test_a_store_without_conditional_writes_is_refused(buckets: Buckets) -> None:
    made_log(buckets)
    registry(buckets).add(registered("dr", "dr"))
    buckets["dr"].inner = Careless("dr")
    found = replication(buckets).once()["dr"]
    assert "If-None-Match" in found.error
    assert [*buckets["dr"].inner.list("topics/users")] == []


def test_the_silence_bound_follows_from_the_retry_timeout() -> None:
    assert quiet_max_s(ReplicaSettings(retry_timeout_s=30)) == 60 + 8 * 30


def test_the_loop_and_each_replica_give_signs_of_life(buckets: Buckets) -> None:
    made = made_log(buckets)
    registry(buckets).add(registered("dr", "dr"))
    clock = ManualClock()
    liveness = Liveness(clock, 100)
    service = Replication(side(buckets["log"], "topics"), means(buckets), liveness=liveness, list_interval_s=0.05)
    with running(service):
        until(lambda: has_all(buckets, "dr"))
        clock.sleep(101)
        made.append(records("c=1", 3))
        until(lambda: liveness.live().is_good)  # the loop with its next look, the replica with what it says next
        buckets.away.add("log")
        clock.sleep(101)
        until(lambda: liveness.live().is_good)
        buckets.away.clear()
    clock.sleep(101)
    assert liveness.live().why.startswith("no progress"), "replicas that have ended are missed no more"


def test_no_single_failed_request_ends_a_run() -> None:
    """Each request to either side is refused once: what is asked at the start, and what a round does."""

    def run(bucket: str = "", at: int = 0) -> Buckets:
        buckets = Buckets()
        made_log(buckets)
        registry(buckets).add(registered("dr", "dr"))
        buckets.restart()
        if at:
            buckets[bucket].add(Fault(at, FaultKind.UNAVAILABLE))
        one = ReplicationContext(SETTINGS, buckets.clock, Random(5), "here:1", opener=buckets.open, environ={})
        found = Replication(side(buckets["log"], "topics"), one).once()["dr"]
        assert (found.is_in_sync, found.error) == (True, ""), str(buckets[bucket].calls[at - 1])
        assert read(buckets, "dr") == read(buckets, "log")
        return buckets

    clean = run()
    for bucket in ("log", "dr"):
        for call in clean[bucket].calls:
            if call.operation != "delete":
                run(bucket, call.number)


def test_one_failed_request_does_not_make_an_unsafe_store_acceptable(buckets: Buckets) -> None:
    made_log(buckets)
    registry(buckets).add(registered("dr", "dr"))
    buckets["dr"].inner = Careless("dr")
    buckets["dr"].add(Fault(1, FaultKind.UNAVAILABLE))
    found = replication(buckets).once()["dr"]
    assert "If-None-Match" in found.error
    assert [*buckets["dr"].inner.list("topics/users")] == []
