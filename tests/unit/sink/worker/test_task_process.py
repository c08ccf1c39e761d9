"""The supervisor's reactions to fake tasks that crash, hang, fail, are slow or send invalid lines."""

from __future__ import annotations

import signal
import threading
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfold.errors import ConfigError
from keyfold.runtime.clock import ManualClock
from keyfold_sink.status import UNKNOWN, PartitionStatus, RunState
from keyfold_sink.task.commands import TaskCommand
from keyfold_sink.worker import desired_state
from keyfold_sink.worker.desired_state import RestartScope
from keyfold_sink.worker.supervisor import TasksFailed, TasksMisconfigured
from keyfold_sink.worker.task_process import SupervisedTask, TaskPhase
from tests.support.fake_task import FakeTasks
from tests.support.supervisor_bench import LIMITS, SupervisorBench, running

# Orders


def test_tasks_start_with_the_first_desired_state_and_are_unassigned_at_first() -> None:
    bench = SupervisorBench(2)
    assert bench.states == []
    bench.follow()
    assert [(process.number, process.paused) for process in bench.tasks.started] == [(0, False), (1, False)]
    assert bench.states == [RunState.UNASSIGNED] * 2


def test_a_worker_that_starts_while_the_sink_is_paused_starts_paused() -> None:
    bench = SupervisorBench()
    bench.follow(desired_state.target(RunState.PAUSED))
    assert bench.tasks.live().paused


def test_a_worker_that_starts_while_the_sink_is_stopped_starts_nothing() -> None:
    bench = SupervisorBench()
    bench.follow(desired_state.target(RunState.STOPPED))
    bench.step()
    assert bench.tasks.started == []
    assert bench.supervisor.orders_version == 2
    bench.follow(desired_state.target(RunState.RUNNING))
    assert len(bench.tasks.started) == 1


def test_pause_resume_and_flush_reach_the_task_once() -> None:
    bench = running()
    paused, resumed = desired_state.target(RunState.PAUSED), desired_state.target(RunState.RUNNING)
    for change in (paused, desired_state.flush, resumed):
        bench.follow(change)
        bench.follow()
        bench.step()
    assert bench.tasks.live().commands == [TaskCommand.PAUSE, TaskCommand.FLUSH, TaskCommand.RESUME]


def test_requests_made_before_the_supervisor_started_are_not_applied() -> None:
    bench = SupervisorBench()
    for change in (desired_state.flush, desired_state.restart(RestartScope.ALL)):
        bench.commands = change(bench.commands)
    bench.follow()
    bench.step()
    assert bench.tasks.live().commands == []
    assert len(bench.tasks.started) == 1


def test_a_stop_ends_the_task_and_removes_its_status() -> None:
    bench = running()
    bench.follow(desired_state.target(RunState.STOPPED))
    process = bench.tasks.live()
    assert process.commands == [TaskCommand.STOP]
    assert process.signals == [signal.SIGTERM]
    bench.step()
    assert bench.supervisor.has_live_tasks()
    process.code = 0
    bench.step()
    assert bench.supervisor.tasks == ()
    assert process.closed
    assert not bench.supervisor.has_live_tasks()


def test_stop_and_resume_in_quick_succession_end_with_a_new_task() -> None:
    bench = running()
    bench.follow(desired_state.target(RunState.STOPPED))
    bench.follow(desired_state.target(RunState.RUNNING))
    bench.tasks.live().code = 0
    bench.step()
    assert len(bench.tasks.started) == 2
    assert bench.state is RunState.RESTARTING


def test_a_task_that_does_not_stop_in_time_is_killed() -> None:
    bench = running()
    bench.follow(desired_state.target(RunState.STOPPED))
    bench.step(39)
    assert signal.SIGKILL not in bench.tasks.live().signals
    bench.step(2)
    bench.step()
    assert bench.supervisor.tasks == ()


def test_a_restart_flushes_and_starts_without_a_delay() -> None:
    bench = running()
    bench.follow(desired_state.restart(RestartScope.ALL))
    assert bench.tasks.live().commands == [TaskCommand.STOP]
    bench.tasks.live().code = 1  # it did not flush in time: its store is away
    bench.step()
    assert len(bench.tasks.started) == 2
    assert bench.supervisor.replaced == {"crashed": 0, "hung": 0}


def test_a_restart_of_one_task_leaves_the_others_alone() -> None:
    bench = running(2)
    bench.follow(desired_state.restart(RestartScope.ONE, "me", 1))
    bench.follow(desired_state.restart(RestartScope.ONE, "somebody else", 0))
    assert [bench.tasks.live(number).commands for number in (0, 1)] == [[], [TaskCommand.STOP]]


def test_a_restart_while_stopped_starts_nothing_then_or_later_twice() -> None:
    bench = SupervisorBench()
    bench.follow(desired_state.target(RunState.STOPPED))
    bench.follow(desired_state.restart(RestartScope.ALL))
    assert bench.tasks.started == []
    bench.follow(desired_state.target(RunState.RUNNING))
    bench.step()
    assert len(bench.tasks.started) == 1


# Tasks that end


@pytest.mark.parametrize("change", [desired_state.target(RunState.STOPPED), desired_state.restart(RestartScope.ALL)])
def test_requests_made_while_a_task_hangs_are_applied_when_it_continues(
    change: desired_state.Change,
) -> None:
    bench = running()
    bench.step(300)
    bench.follow(change)
    bench.tasks.live().report()
    bench.step()
    assert bench.tasks.live().commands == [TaskCommand.STOP]
    bench.step(1)
    bench.step()
    assert len(bench.tasks.started) == (1 if bench.commands.state is RunState.STOPPED else 2)


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGSEGV, 70, 1, 0])
def test_a_crashed_task_is_restarted_after_a_delay(code: int) -> None:
    """Exit code 1 without a report is no error of keyfold: Python itself ends this way."""
    bench = running()
    bench.tasks.live().code = code
    bench.step()
    assert bench.state is RunState.RESTARTING
    assert "restarting in" in bench.trace
    assert bench.supervisor.tasks[0].pid == UNKNOWN
    assert len(bench.tasks.started) == 1
    bench.step(1)
    assert len(bench.tasks.started) == 2
    assert bench.supervisor.replaced["crashed"] == 1


def test_the_restart_delay_grows_to_a_minute_and_is_reset_after_a_minute_of_running() -> None:
    bench = running()
    waits = []
    for _ in range(9):
        bench.tasks.live().code = -signal.SIGKILL
        bench.step()
        before_ms = bench.clock.now_ms()
        started = len(bench.tasks.started)
        while len(bench.tasks.started) == started:
            bench.step(0.1)
        waits.append((bench.clock.now_ms() - before_ms) / 1000)
    assert waits[0] <= 1.1
    assert waits == sorted(waits) or max(waits) > 30
    assert 30 <= waits[-1] <= 60.1
    bench.step(61)
    bench.tasks.live().report()
    bench.step()
    bench.tasks.live().code = -signal.SIGKILL
    bench.step()
    bench.step(1.1)
    assert bench.supervisor.tasks[0].pid != UNKNOWN


def failed() -> SupervisorBench:
    bench = running()
    bench.tasks.live().report(RunState.FAILED, "no right to the bucket")
    bench.tasks.live().code = 1
    bench.step()
    return bench


def test_a_task_that_reports_its_error_stays_failed_with_that_trace() -> None:
    bench = failed()
    bench.step(100_000)
    assert (bench.state, bench.trace) == (RunState.FAILED, "no right to the bucket")
    assert len(bench.tasks.started) == 1
    assert bench.supervisor.all_failed


def test_all_has_failed_only_once_every_partition_has_failed() -> None:
    bench = running()
    bad, good = PartitionStatus("t", 0, RunState.FAILED), PartitionStatus("t", 1, RunState.RUNNING)
    assert not bench.supervisor.all_failed
    bench.tasks.live().report(RunState.FAILED, "one has failed", (bad, good))
    bench.step()
    assert not bench.supervisor.all_failed
    bench.tasks.live().report(RunState.FAILED, "all have failed", (bad, bad))
    bench.step()
    assert bench.supervisor.all_failed


@pytest.mark.parametrize("scope", [RestartScope.ALL, RestartScope.FAILED, RestartScope.ONE])
def test_a_failed_task_is_restarted_on_request(scope: RestartScope) -> None:
    bench = failed()
    bench.follow(desired_state.restart(scope, "me", 0))
    assert len(bench.tasks.started) == 2
    assert bench.state is RunState.RESTARTING


def test_a_failed_task_is_restarted_by_stop_and_resume_and_not_by_pause() -> None:
    bench = failed()
    bench.follow(desired_state.target(RunState.PAUSED))
    bench.follow(desired_state.target(RunState.RUNNING))
    bench.step(10)
    assert bench.state is RunState.FAILED
    bench.follow(desired_state.target(RunState.STOPPED))
    assert bench.supervisor.tasks == ()
    bench.follow(desired_state.target(RunState.RUNNING))
    assert len(bench.tasks.started) == 2


def test_a_restart_of_failed_tasks_includes_those_with_a_failed_partition() -> None:
    bench = running(2)
    bench.tasks.live(1).report(RunState.FAILED, "users-3: truncated")
    bench.step()
    bench.follow(desired_state.restart(RestartScope.FAILED))
    assert [bench.tasks.live(number).commands for number in (0, 1)] == [[], [TaskCommand.STOP]]


def test_a_crash_after_a_partition_has_failed_is_a_crash() -> None:
    bench = running()
    bench.tasks.live().report(RunState.FAILED, "users-3: truncated")
    bench.step()
    bench.tasks.live().code = -signal.SIGKILL
    bench.step()
    assert bench.state is RunState.RESTARTING


def test_a_refused_process_start_is_retried() -> None:
    bench = SupervisorBench()
    bench.tasks.refuse = True
    bench.follow()
    assert "cannot be started" in bench.trace
    bench.tasks.refuse = False
    bench.step(1)
    assert len(bench.tasks.started) == 1


# Tasks that hang


def test_a_task_without_reports_for_too_long_logs_its_stack_and_is_replaced() -> None:
    bench = running()
    bench.step(299)
    assert bench.tasks.live().signals == []
    bench.step(1)
    assert bench.tasks.live().signals == [signal.SIGQUIT]
    bench.step(1)
    assert bench.tasks.live().signals == [signal.SIGQUIT, signal.SIGKILL]
    bench.step()
    assert "silent" in bench.trace
    bench.step(1)
    assert len(bench.tasks.started) == 2
    assert bench.supervisor.replaced == {"crashed": 0, "hung": 1}


def test_a_task_that_is_slow_to_start_has_twice_as_long_each_time_until_its_first_report() -> None:
    bench = SupervisorBench()
    bench.follow()
    allowed = []
    for tasks in range(2, 7):
        process, age_s = bench.tasks.live(), 0
        while not process.signals:
            bench.step(10)
            age_s += 10
        allowed.append(age_s)
        while len(bench.tasks.started) < tasks:
            bench.step(1)
    assert allowed == [300, 600, 1200, 2400, 2400]
    bench.tasks.live().report()
    bench.step()
    bench.step(299)
    assert bench.tasks.live().signals == []
    bench.step(1)
    assert bench.tasks.live().signals == [signal.SIGQUIT]


def test_only_valid_reports_prove_that_a_task_does_not_hang() -> None:
    bench = running(2)
    for _ in range(40):
        bench.tasks.live(0).report()
        bench.tasks.live(1).reports += [b"nonsense", b"[]", b'{"number": 1}', b""]
        bench.step(10)
    assert bench.tasks.live(0).signals == []
    assert bench.tasks.live(1).number == 1
    assert len([process for process in bench.tasks.started if process.number == 1]) == 2


def test_a_supervisor_suspended_together_with_its_tasks_does_not_replace_them() -> None:
    bench = running()
    bench.clock.advance(3_600_000)
    bench.supervisor.advance_tasks()
    assert bench.tasks.live().signals == []


def test_a_slow_task_is_not_replaced() -> None:
    bench = running()
    bench.step(300)
    bench.tasks.live().report()
    bench.step(10)
    assert bench.tasks.live().signals == [signal.SIGQUIT]
    assert bench.state is RunState.RUNNING


def test_a_hanging_task_that_should_stop_ends_and_is_not_replaced() -> None:
    bench = running()
    bench.step(300)
    bench.follow(desired_state.target(RunState.STOPPED))
    bench.step(1)
    bench.step()
    assert bench.supervisor.tasks == ()
    assert len(bench.tasks.started) == 1


# The end


def ending(bench: SupervisorBench, *, ends_when_failed: bool = False, set_stop: bool = True) -> None:
    stop = threading.Event()
    if set_stop:
        stop.set()
    bench.supervisor.run(lambda: bench.commands, lambda: "me", stop, ends_when_failed=ends_when_failed)


def test_a_worker_without_a_rest_api_ends_when_every_task_has_failed() -> None:
    with pytest.raises(TasksFailed, match=r"^no right to the bucket$"):
        ending(failed(), ends_when_failed=True, set_stop=False)


@pytest.mark.parametrize(("code", "kind"), [(1, TasksFailed), (2, TasksMisconfigured)])
def test_a_worker_ends_with_its_tasks_error_and_distinguishes_configuration_errors(
    code: int, kind: type[TasksFailed]
) -> None:
    bench = running(2)
    for number in (0, 1):
        bench.tasks.live(number).report(RunState.FAILED, f"reason {number}")
        bench.tasks.live(number).code = code
    bench.step()
    with pytest.raises(TasksFailed) as caught:
        ending(bench, ends_when_failed=True, set_stop=False)
    assert str(caught.value) == "2 of 2 tasks failed: task 0: reason 0; task 1: reason 1"
    assert type(caught.value) is kind
    assert isinstance(caught.value, ConfigError) == (code == 2)


def test_a_task_that_fails_while_stopping_is_reported() -> None:
    bench = running()
    bench.tasks.live().code = 1
    with pytest.raises(TasksFailed, match="exit code 1"):
        ending(bench)


def test_a_task_stopped_before_it_reads_commands_has_not_failed() -> None:
    bench = running()
    bench.tasks.live().code = -signal.SIGTERM
    ending(bench)


def test_a_task_that_waits_for_its_restart_does_not_make_a_stop_fail() -> None:
    bench = running()
    bench.tasks.live().code = -signal.SIGKILL
    bench.step()
    ending(bench)


def test_tasks_that_finish_are_not_restarted() -> None:
    bench = SupervisorBench(2, once=True)
    stop = threading.Event()
    for child in bench.supervisor._children:
        child.run(paused=False)
    bench.tasks.live(0).code, bench.tasks.live(1).code = 0, 1
    with pytest.raises(TasksFailed, match="1 of 2 tasks failed: task 1: the task's process ended with exit code 1"):
        bench.supervisor.run_once(stop)
    assert len(bench.tasks.started) == 2


# Whatever comes


CHANGES = {
    "pause": desired_state.target(RunState.PAUSED),
    "resume": desired_state.target(RunState.RUNNING),
    "stop": desired_state.target(RunState.STOPPED),
    "flush": desired_state.flush,
    "restart": desired_state.restart(RestartScope.ALL),
}
TIMES = {"second": 1, "minute": 60, "hour": 3600}
ENDS = {"crash": -9, "exit 1": 1, "exit 0": 0}
EVENTS = st.sampled_from([*CHANGES, *TIMES, *ENDS, "report", "failed report", "garbage"])


def happen(bench: SupervisorBench, event: str) -> None:
    process = bench.tasks.live() if bench.tasks.started else None
    if event in CHANGES:
        bench.follow(CHANGES[event])
    elif event in TIMES:
        bench.step(TIMES[event])
    elif process is not None and process.code is None:
        if event in ENDS:
            process.code = ENDS[event]
        elif event == "garbage":
            process.reports.append(b"{")
        else:
            process.report(RunState.RUNNING if event == "report" else RunState.FAILED)


def settle(bench: SupervisorBench) -> None:
    """Let existing tasks report and follow commands."""
    for _ in range(400):
        if bench.tasks.started and bench.tasks.live().code is None:
            process = bench.tasks.live()
            process.report()
            if signal.SIGTERM in process.signals:
                process.code = 0
        bench.step(0.2)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_each_task_has_at_most_one_process_and_reaches_the_desired_state(events: list[str]) -> None:
    bench = SupervisorBench()
    bench.follow()
    for event in events:
        happen(bench, event)
        bench.step()
        assert sum(process.code is None for process in bench.tasks.started) <= 1
        assert all(process.closed for process in bench.tasks.started if process.code is not None)
    settle(bench)
    child = bench.supervisor._children[0]
    if bench.commands.state is RunState.STOPPED:
        assert not child.is_live
        assert child.status is None
        return
    assert child.phase in {TaskPhase.UP, TaskPhase.FAILED}
    if child.phase is TaskPhase.UP:
        live = bench.tasks.live()
        told = [command for command in live.commands if command in {TaskCommand.PAUSE, TaskCommand.RESUME}]
        is_paused = told[-1] is TaskCommand.PAUSE if told else live.paused
        assert is_paused == (bench.commands.state is RunState.PAUSED)


def test_a_task_that_was_never_started_ignores_commands() -> None:
    tasks = FakeTasks()
    child = SupervisedTask(0, tasks, LIMITS, clock=ManualClock(), random=Random(0))
    child.advance()
    child.halt()
    child.restart()
    child.flush()
    child.kill()
    assert tasks.started == []
