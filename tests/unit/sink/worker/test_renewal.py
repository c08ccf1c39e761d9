"""A restart of the connector without its tasks: no task restarts, and all look up credentials and topics again."""

from __future__ import annotations

from random import Random

from keyfold.runtime.clock import ManualClock
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import DesiredState, RestartScope
from keyfold_sink.worker.supervisor import Supervisor
from keyfold_sink.worker.task_process import TaskLimits
from tests.support.fake_task import FakeTasks


def test_a_restart_of_the_connector_renews_its_tasks_without_a_restart() -> None:
    tasks, renewed = FakeTasks(), list[str]()
    supervisor = Supervisor(
        2, tasks, TaskLimits(10, 10), clock=ManualClock(), random=Random(0), renew=lambda: renewed.append("worker")
    )
    known = DesiredState(1)
    supervisor.follow(known, "me")
    pids = [tasks.live(number).pid for number in range(2)]
    asked = desired_state._next(known, desired_state.restart(RestartScope.CONNECTOR)(known), "id")
    for _ in range(2):
        supervisor.follow(asked, "me")
        supervisor.advance_tasks()
    assert [tasks.live(number).commands for number in range(2)] == [[TaskCommand.RENEW]] * 2
    assert [tasks.live(number).pid for number in range(2)] == pids
    assert renewed == ["worker"]
    supervisor.follow(desired_state._next(asked, desired_state.restart(RestartScope.ALL)(asked), "id 2"), "me")
    assert renewed == ["worker"], "a restarted task looks up everything anyway"


def test_a_desired_state_with_a_connector_restart_is_read_back() -> None:
    asked = desired_state.restart(RestartScope.CONNECTOR)(DesiredState())
    assert desired_state.decode(desired_state.encode(asked), "k") == asked
