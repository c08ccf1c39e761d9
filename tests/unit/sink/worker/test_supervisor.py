"""The supervisor over real processes: tasks that hang, crash, fail, are slow or send invalid lines, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from keyfold.config.config_file import Resolved
from keyfold.runtime.clock import SystemClock
from keyfold.runtime.retry import Backoff
from keyfold_sink.status import RunState, TaskStatus
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import DesiredState, RestartScope
from keyfold_sink.worker.spawn import TaskProcess, first_line, read_first_line
from keyfold_sink.worker.supervisor import Supervisor, TasksFailed
from keyfold_sink.worker.task_main import DEFECT
from keyfold_sink.worker.task_process import TaskLimits
from keyfold_sink.worker.wire import encode_command
from tests.support.root import ROOT

LONG_S = 60.0
SHORT_S = 1.5
QUICK = TaskLimits(LONG_S, LONG_S, stack_grace_s=0.1, delays=Backoff(first_ms=20, cap_ms=100), round_s=0.02)
COMMAND = [sys.executable, "-m", "tests.support.fake_task"]


class Ran:
    """A supervisor in a thread, with tasks of one behaviour."""

    def __init__(self, behaviour: str, tasks: int, limits: TaskLimits) -> None:
        self.desired = DesiredState(1)
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.on_status: list[TaskStatus] = []
        self.supervisor = Supervisor(
            tasks,
            lambda _number, _paused: TaskProcess([*COMMAND, behaviour], first_line({"name": "users"})),
            limits,
            clock=SystemClock(),
            random=Random(0),
            on_status=self.on_status.append,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.supervisor.run(lambda: self.desired, lambda: "me", self.stop, ends_when_failed=False)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def ask(self, change: desired_state.Change) -> None:
        self.desired = desired_state._next(self.desired, change(self.desired), "id")

    def until(self, condition: Callable[[TaskStatus | None], bool], timeout_s: float = 60) -> TaskStatus | None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            status = self.supervisor.tasks[0] if self.supervisor.tasks else None
            if condition(status):
                return status
            assert time.monotonic() < deadline_s, f"still {status}"
            time.sleep(0.02)

    def until_running(self) -> int:
        status = self.until(lambda status: status is not None and status.state is RunState.RUNNING)
        assert status is not None
        return status.pid

    def end(self) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def ran() -> Iterator[Callable[..., Ran]]:
    made: list[Ran] = []

    def make(behaviour: str, tasks: int = 1, limits: TaskLimits = QUICK) -> Ran:
        made.append(Ran(behaviour, tasks, limits))
        return made[-1]

    yield make
    for one in made:
        one.end()
        assert not one.supervisor.has_live_tasks()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


Run = Callable[..., Ran]


def test_tasks_run_follow_commands_and_end(ran: Run) -> None:
    one = ran("well", 2)
    one.until_running()
    one.ask(desired_state.target(RunState.PAUSED))
    one.until(lambda status: status is not None and status.state is RunState.PAUSED)
    one.ask(desired_state.flush)
    one.until(lambda status: status is not None and status.values == {"flushes": 1})
    one.ask(desired_state.target(RunState.STOPPED))
    one.until(lambda status: status is None)
    one.ask(desired_state.target(RunState.RUNNING))
    one.until_running()
    one.end()
    assert one.error is None
    assert one.supervisor.replaced == {"crashed": 0, "hung": 0}


def test_a_hanging_task_that_ignores_sigterm_is_replaced(ran: Run) -> None:
    one = ran("hang", limits=replace(QUICK, hang_s=SHORT_S, stop_s=0.1))
    pid = one.until_running()
    one.until(lambda _status: one.supervisor.replaced["hung"] >= 1)
    assert not is_alive(pid)
    assert one.until_running() != pid


def test_a_task_suspended_by_sigstop_is_replaced(ran: Run) -> None:
    one = ran("well", limits=replace(QUICK, hang_s=SHORT_S))
    pid = one.until_running()
    os.kill(pid, signal.SIGSTOP)
    one.until(lambda _status: one.supervisor.replaced["hung"] >= 1)
    assert not is_alive(pid)
    one.until_running()


def test_a_killed_task_is_restarted(ran: Run) -> None:
    one = ran("well", limits=TaskLimits(LONG_S, LONG_S))  # with the delay in which its state can be seen
    pid = one.until_running()
    os.kill(pid, signal.SIGKILL)
    status = one.until(lambda status: status is not None and status.state is RunState.RESTARTING)
    assert status is not None
    assert "SIGKILL" in status.trace
    assert one.until_running() != pid
    assert one.supervisor.replaced == {"crashed": 1, "hung": 0}


@pytest.mark.parametrize("behaviour", ["defect", "silent"])
def test_a_task_with_a_defect_is_restarted(ran: Run, behaviour: str) -> None:
    one = ran(behaviour)
    one.until(lambda _status: one.supervisor.replaced["crashed"] >= 2)


def test_a_failed_task_keeps_its_trace_and_is_restarted_on_request(ran: Run) -> None:
    one = ran("failed")
    one.until(lambda _status: one.supervisor.all_failed)
    status = one.supervisor.tasks[0]
    assert (status.state, status.trace) == (RunState.FAILED, "no right to the bucket")
    one.ask(desired_state.restart(RestartScope.FAILED))
    one.until(lambda _status: len(one.on_status) == 2)
    assert one.supervisor.replaced == {"crashed": 0, "hung": 0}
    one.until(lambda _status: one.supervisor.all_failed)
    one.end()
    assert isinstance(one.error, TasksFailed)


@pytest.mark.parametrize(
    ("behaviours", "code"), [(["held-up", "done"], 3), (["held-up", "held-up"], 3), (["held-up", "failed"], 1)]
)
def test_tasks_blocked_by_open_transactions_have_their_own_exit_code(behaviours: list[str], code: int) -> None:
    supervisor = Supervisor(
        len(behaviours),
        lambda number, _paused: TaskProcess([*COMMAND, behaviours[number]], first_line({})),
        QUICK,
        clock=SystemClock(),
        random=Random(0),
        once=True,
    )
    with pytest.raises(TasksFailed, match="a transaction is open") as caught:
        supervisor.run_once(threading.Event())
    assert caught.value.exit_code == code


def test_invalid_lines_hide_no_report(ran: Run) -> None:
    one = ran("garbage")
    one.until(lambda _status: len(one.on_status) >= 10)
    assert one.supervisor.replaced == {"crashed": 0, "hung": 0}


def test_a_task_may_start_slowly(ran: Run) -> None:
    one = ran("slow")
    one.until_running()
    assert one.supervisor.replaced == {"crashed": 0, "hung": 0}


def test_a_task_that_does_not_stop_is_killed_and_reported(ran: Run) -> None:
    one = ran("stubborn", limits=replace(QUICK, stop_s=0.1))
    one.until_running()
    one.end()
    assert isinstance(one.error, TasksFailed)
    assert "SIGKILL" in str(one.error)


def test_a_task_whose_supervisor_is_killed_ends(tmp_path: Path) -> None:
    code = f"""
import sys, time
from keyfold_sink.worker.spawn import TaskProcess, first_line
task = TaskProcess({COMMAND!r} + ["well"], first_line({{}}))
print(task.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        supervisor.kill()
    deadline_s = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not is_alive(pid)


def test_a_hanging_task_ends_when_its_supervisor_is_gone() -> None:
    """Without a supervisor nobody could kill the task, and a terminal's signals do not reach it."""
    code = """
import time
from keyfold.runtime.retry import Backoff
from keyfold.runtime.clock import SystemClock
from keyfold_sink.worker.task_main import end_by_force
from keyfold_sink.worker.wire import follow_commands
follow_commands(0, lambda _command: None, lambda: end_by_force(0.1, SystemClock()))
time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode == DEFECT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signal_to_the_process_group_does_not_end_a_task(number: signal.Signals) -> None:
    """The signal is sent before Python has started in the task, and again while it works."""
    task = TaskProcess([*COMMAND, "well"], first_line({}))
    os.kill(task.pid, number)
    said: list[bytes] = []

    def until_it_reports() -> None:
        before, deadline_s = len(said), time.monotonic() + 60
        while len(said) == before and task.poll() is None and time.monotonic() < deadline_s:
            said.extend(task.take_lines())
            time.sleep(0.02)

    until_it_reports()
    os.kill(task.pid, number)
    until_it_reports()
    assert said
    assert task.poll() is None
    task.send(encode_command(TaskCommand.STOP))
    deadline_s = time.monotonic() + 60
    while task.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert task.poll() == 0
    task.close()


def test_a_signal_during_the_start_of_a_task_reaches_the_worker() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    task = TaskProcess([*COMMAND, "well"], first_line({}))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    task.signal(signal.SIGKILL)
    task.close()


def test_a_configuration_is_sent_with_its_secrets_marked_and_commands_stay_unread() -> None:
    values = {"name": "users", "secret": Resolved("s3cret", "${env:SECRET}"), "long": "x" * 200_000}
    read, write = os.pipe()

    def send() -> None:
        rest = memoryview(first_line(values) + b'{"order":"pause"}\n')
        while rest:
            rest = rest[os.write(write, rest) :]
        os.close(write)

    sender = threading.Thread(target=send)
    sender.start()
    found = read_first_line(read)
    assert found == values
    assert isinstance(found["secret"], Resolved)
    assert found["secret"].written == "${env:SECRET}"
    assert not isinstance(found["name"], Resolved)
    assert os.read(read, 1000) == b'{"order":"pause"}\n'
    sender.join()
    os.close(read)


def test_a_line_without_a_configuration_is_an_error() -> None:
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(ValueError, match="no configuration"):
        read_first_line(read)
    os.close(read)


def test_commands_wait_until_they_fit_into_the_pipe() -> None:
    task = TaskProcess([sys.executable, "-c", "import time; time.sleep(60)"], b"x" * 1_000_000)
    task.send(b"y" * 1_000_000)
    assert task.take_lines() == []
    assert len(task._unsent) > 1_500_000
    task.signal(signal.SIGKILL)
    task.close()
    assert task.poll() == -signal.SIGKILL
