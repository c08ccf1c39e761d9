"""A worker that was suspended applies no request that was sent meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest
import requests
from starlette.testclient import TestClient

from keyfold.errors import StoreUnavailable
from keyfold.http_server.wake_detector import ASLEEP_S, AWAKE_AFTER_S, WakeDetector
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Blob
from keyfold.store.memory import MemoryStore
from keyfold_sink.rest.server import make_app
from keyfold_sink.status import RunState
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder
from tests.support.fake_service import FakeService, make_backend, make_options
from tests.support.root import ROOT

FOLDER = sink_folder("topics", "users")

CHILD = """
import sys, threading
from keyfold.runtime.clock import SystemClock
from keyfold.http_server import wake_detector
from keyfold.runtime.sockets import listening
from keyfold_sink.config.option_groups import REST
from keyfold_sink.rest import server
from tests.support.fake_service import FakeDefinitions, FakeService, make_options, metrics
from functools import partial
server.WakeDetector = partial(wake_detector.WakeDetector, asleep_s=1.0, awake_after_s=3.0)
service = FakeService(make_options())
with listening(service.options.listeners, REST) as sockets, server.serve(
    service, sockets, metrics=metrics, definitions=FakeDefinitions(), clock=SystemClock()
) as running:
    print(running.addresses[0], flush=True)
    sys.stdin.readline()
print([call[0] if isinstance(call, tuple) else call for call in service.calls], flush=True)
"""


class Suspended(ManualClock):
    """The clock of a machine that was suspended: only the time of day has advanced."""

    def monotonic_s(self) -> float:
        return 100.0


class Sleeper:
    """One of two clocks, as a process sees them that was suspended, or whose machine was."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.detector = WakeDetector(self.clock)

    def beats(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.clock.advance(250)
            self.detector._look()


def test_regular_heartbeats_are_no_suspension() -> None:
    sleeper = Sleeper()
    sleeper.beats(60)
    sleeper.clock.advance(round(ASLEEP_S * 1000) - 1)
    assert not sleeper.detector.has_just_woken()


def test_a_suspended_process_counts_as_resuming_for_a_while() -> None:
    sleeper = Sleeper()
    sleeper.beats(1)
    sleeper.clock.advance(60_000)
    assert sleeper.detector.has_just_woken()  # also before the first beat
    sleeper.beats(AWAKE_AFTER_S - 0.25)
    assert sleeper.detector.has_just_woken()
    sleeper.beats(0.25)
    assert not sleeper.detector.has_just_woken()


def test_a_suspended_machine_is_detected_by_the_time_of_day() -> None:
    clock = Suspended()
    detector = WakeDetector(clock)
    assert not detector.has_just_woken()
    clock.advance(60_000)
    assert detector.has_just_woken()


def test_a_resuming_worker_refuses_changes_and_answers_reads() -> None:
    service, sleeper = FakeService(make_options()), Sleeper()
    app = make_app(make_backend(service), token=None, detector=sleeper.detector)
    client = TestClient(app, base_url="http://127.0.0.1:8083")
    sleeper.clock.advance(60_000)
    for method, path in (("PUT", "pause"), ("PUT", "stop"), ("POST", "restart?includeTasks=true"), ("POST", "flush")):
        refused = client.request(method, f"/connectors/users/{path}")
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "3"
        assert refused.json()["message"] == "the server was suspended and is resuming; retry the request"
    assert client.get("/connectors/users/status").status_code == 200
    assert client.get("/health/live").status_code == 200
    assert service.calls == []
    sleeper.beats(AWAKE_AFTER_S)
    assert client.put("/connectors/users/pause").status_code == 202
    assert service.calls == ["pause"]


def test_a_resuming_process_refuses_requests_that_waited_in_its_socket() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        while not (url := process.stdout.readline().strip()).startswith("http"):
            assert process.poll() is None
        kept = requests.Session()
        assert kept.get(f"{url}/connectors", timeout=60).ok
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # until its last thread stands still
        for asked in (requests.Session(), kept):  # a connection that waits to be accepted, and one that is open
            with contextlib.suppress(requests.RequestException):
                asked.put(f"{url}/connectors/users/stop", timeout=0.6)
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        while requests.put(f"{url}/connectors/users/pause", timeout=60).status_code != 202:
            time.sleep(0.2)  # refused for a moment, as all is that would change something
        process.stdin.write("\n")
        process.stdin.flush()
        last = process.stdout.read().splitlines()[-1]
    assert last == "['pause']"


# In the middle of writing an order down


class Frozen(MemoryStore):
    """Reads take as long as the process is suspended."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock, content_etags=True)
        self.clock = clock
        self.sleeps_ms = 0

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        self.clock.advance(self.sleeps_ms)
        return super().get(key, max_bytes)


def test_a_request_that_is_handled_too_late_is_not_written() -> None:
    clock = ManualClock()
    store = Frozen(clock)
    document = DesiredStateDocument(store, FOLDER, clock, Random(1))
    other = DesiredStateDocument(store, FOLDER, clock, Random(2))
    document.change(desired_state.target(RunState.PAUSED))
    store.sleeps_ms = 600_000
    with pytest.raises(StoreUnavailable, match=r"the request took .* s and was dropped; nothing was changed"):
        document.change(desired_state.target(RunState.STOPPED))
    store.sleeps_ms = 0
    assert other.refresh().state is RunState.PAUSED
    document.change(desired_state.target(RunState.STOPPED))  # asked for again
    assert other.refresh().state is RunState.STOPPED
