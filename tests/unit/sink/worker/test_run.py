"""A whole worker with fake tasks, with REST, over a store in memory that answers, refuses, or does not answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from keyfold.errors import AccessDenied, BucketMissing
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Blob, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import Fault, FaultKind, FaultyStore
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.progress import SinkProgress
from keyfold_sink.status import RunState
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import DesiredStateDocument, sink_folder
from keyfold_sink.worker.run import SinkWorker, WorkerTimings
from keyfold_sink.worker.supervisor import TasksFailed
from tests.support.fake_task import FakeProcess, FakeTasks
from tests.support.proof import wait_for

VALUES = {"name": "users", "bootstrap.servers": "127.0.0.1:1", "topics": "users", "s3.bucket.name": "b"}
QUICK = WorkerTimings(desired_state_every_s=0.05, registry_every_s=0.05, after_error_s=0.05, leave_s=1.0)


class Obedient(FakeTasks):
    """Tasks that report immediately and stop on command."""

    def __call__(self, number: int, paused: bool) -> FakeProcess:
        process = super().__call__(number, paused)
        process.report(RunState.PAUSED if paused else RunState.RUNNING)
        send = process.send

        def obey(line: bytes) -> None:
            send(line)
            if process.commands[-1:] == [TaskCommand.STOP]:
                process.code = 0
            else:
                process.report(RunState.PAUSED if process.commands[-1] is TaskCommand.PAUSE else RunState.RUNNING)

        process.send = obey  # type: ignore[method-assign]  # replaced for this test
        return process


class Ran:
    """A worker in a thread."""

    def __init__(self, store: ObjectStore, tasks: FakeTasks, **values: str) -> None:
        given = {key.replace("_", "."): value for key, value in values.items()}
        options = SinkOptions.parse({**VALUES, "listeners": "", **given})
        clock = SystemClock()
        self.tasks = tasks
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.progress = SinkProgress("users", clock)
        self.worker = SinkWorker(options, store, tasks, clock, Random(id(self)), self.progress, timings=QUICK)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run(self.stop)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.join()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"{self.address}{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    @property
    def address(self) -> str:
        wait_for(lambda: ":" in self.worker.service.worker_id, 10, "it listens")
        return f"http://127.0.0.1:{self.worker.service.worker_id.rsplit(':', 1)[1]}"

    def states(self) -> list[str]:
        return [task["state"] for task in self.ask("GET", "/connectors/users/status")["tasks"]]


Run = Callable[..., Ran]


@pytest.fixture
def ran() -> Iterator[Run]:
    made: list[Ran] = []

    def make(store: ObjectStore, tasks: FakeTasks | None = None, **values: str) -> Ran:
        made.append(Ran(store, tasks or Obedient(), **values))
        return made[-1]

    yield make
    for one in made:
        one.end()


def objects(store: MemoryStore) -> list[str]:
    return [info.key.removeprefix(sink_folder("topics", "users")) for info in store.list("")]


def test_two_workers_follow_requests_to_either_and_leave_only_the_desired_state(ran: Run) -> None:
    store = MemoryStore()
    one, two = (ran(store, listeners="http://127.0.0.1:0") for _ in range(2))
    wait_for(lambda: one.states() == two.states() == ["RUNNING"] * 2, 10, "both run, and see each other")
    one.ask("PUT", "/connectors/users/pause")
    wait_for(lambda: two.tasks.live().commands == [TaskCommand.PAUSE], 60, "the other one is paused")
    assert WorkerTimings().desired_state_every_s <= 2, "that soon every worker follows"
    two.ask("PUT", "/connectors/users/stop")
    wait_for(lambda: one.states() == two.states() == [], 10, "nobody has a task")
    assert objects(store)[0] == "orders.json"
    one.end()
    two.end()
    assert (one.error, two.error) == (None, None)
    assert objects(store) == ["orders.json"]


class CommittingAtTheEnd(Obedient):
    """Tasks that commit when they are stopped, and say so in the round in which they end."""

    def __call__(self, number: int, paused: bool) -> FakeProcess:
        process = super().__call__(number, paused)
        obey = process.send

        def commit(line: bytes) -> None:
            obey(line)
            if process.code == 0:
                process.report(values={"keyfold_sink_records_committed_total": 2000.0})

        process.send = commit  # type: ignore[method-assign]  # replaced for this test
        return process


def test_what_a_task_commits_at_its_end_is_counted(ran: Run) -> None:
    one = ran(MemoryStore(), CommittingAtTheEnd())
    wait_for(lambda: len(one.tasks.started) == 1, 10, "it starts")
    one.end()
    assert one.progress.totals.records == 2000


def test_tasks_start_after_the_desired_state_was_read(ran: Run) -> None:
    store = MemoryStore()
    DesiredStateDocument(store, sink_folder("topics", "users"), SystemClock(), Random(0)).change(
        desired_state.target(RunState.PAUSED)
    )
    away = [True]
    one = ran(FaultyStore(store, [Fault(lambda _call: away[0], FaultKind.UNAVAILABLE, times=100_000)]))
    time.sleep(0.5)
    assert one.tasks.started == []
    assert "has not been read from the bucket yet" in one.worker.service.not_ready()
    away[0] = False
    wait_for(lambda: len(one.tasks.started) == 1, 20, "it starts")
    assert one.tasks.live().paused


def test_an_unreachable_store_stops_no_task_and_the_desired_state_holds(ran: Run) -> None:
    faulty = FaultyStore(MemoryStore())
    one = ran(faulty)
    wait_for(lambda: len(one.tasks.started) == 1, 10, "it starts")
    asked: list[object] = []

    def noted(call: object) -> bool:
        asked.append(call)
        return True

    faulty.add(Fault(noted, FaultKind.UNAVAILABLE, times=100_000))
    wait_for(lambda: len(asked) > 20, 60, "the desired state and the worker registry are requested without an answer")
    assert one.tasks.live().commands == []
    assert one.worker.service.target() is RunState.RUNNING
    assert one.worker.service.is_alive()
    one.end()  # the store is away until then, and after
    assert one.error is None


class Refusing(MemoryStore):
    """A store that refuses reads."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def get(self, key: str, max_bytes: int | None = None) -> Blob:
        raise self.error


@pytest.mark.parametrize("error", [AccessDenied("orders", "no"), BucketMissing("orders", "there is no such bucket")])
def test_a_store_that_refuses_a_starting_worker_ends_it_with_the_reason(ran: Run, error: Exception) -> None:
    one = ran(Refusing(error), listeners="http://127.0.0.1:0")
    one.join()
    assert one.error is error
    assert one.tasks.started == []


def test_a_worker_survives_a_defect_in_reading_the_desired_state(ran: Run) -> None:
    faulty = FaultyStore(MemoryStore())
    one = ran(faulty)
    wait_for(lambda: len(one.tasks.started) == 1, 10, "it starts")
    failed: list[object] = []

    def break_once(call: object) -> None:
        if not failed:
            failed.append(call)
            raise RuntimeError("a defect")

    faulty.on_call = break_once
    wait_for(lambda: bool(failed), 10, "it was met")
    one.worker.service.pause()
    wait_for(lambda: one.tasks.live().commands == [TaskCommand.PAUSE], 10, "it follows all the same")


@pytest.mark.parametrize("listeners", ["", "http://127.0.0.1:0"])
def test_a_worker_whose_tasks_have_all_failed_ends_only_without_a_rest_api(ran: Run, listeners: str) -> None:
    one = ran(MemoryStore(), FakeTasks(), listeners=listeners)
    wait_for(lambda: len(one.tasks.started) == 1, 10, "it starts")
    one.tasks.live().report(RunState.FAILED, "no right to the group")
    one.tasks.live().code = 1
    if not listeners:
        one.join()
        assert isinstance(one.error, TasksFailed)
        return
    wait_for(lambda: "no right to the group" in one.worker.service.not_ready(), 10, "it says so")
    one.ask("POST", "/connectors/users/restart?includeTasks=true&onlyFailed=true")
    wait_for(lambda: len(one.tasks.started) == 2, 10, "it is started again")
    one.tasks.live().code = 0


def test_a_worker_has_the_configured_id(ran: Run) -> None:
    store = MemoryStore()
    one = ran(store, worker_id="pod 1/a")
    wait_for(lambda: len(objects(store)) == 2, 10, "it is registered")
    assert one.worker.service.worker_id == "pod 1/a"
    assert objects(store)[1] == "workers/pod%201%2Fa.json"


def test_a_supervisor_does_not_import_the_libraries_of_tasks() -> None:
    """Arrow and numpy are 17 MB and a third of a second, in each pod."""
    assert _imported("keyfold_sink.worker.run", ("pyarrow", "numpy")) == "[]"


def test_a_task_imports_the_client_of_a_registry_only_if_a_converter_needs_it() -> None:
    """It comes with an HTTP client and cryptography: 270 modules, a fifth of what starting a task costs."""
    assert _imported("keyfold_sink.worker.task_main", ("confluent_kafka.schema_registry", "httpx2", "authlib")) == "[]"


def _imported(module: str, libraries: tuple[str, ...]) -> str:
    """Import a module in a new process, and return which of these libraries that process has then."""
    code = f"import sys, {module}; print([name for name in {libraries!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
