"""The main program of a task's process, at the other end of its supervisor's pipes.

The exit code tells the supervisor whether another start would help, with the codes of every command: 1, 2 and 3 after
an error that the task has reported, `DEFECT` after an unexpected exception.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from random import Random
from typing import Final

import structlog

from keyfold.errors import KeyfoldError
from keyfold.runtime import event_log
from keyfold.runtime.clock import Clock
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.task.commands import TaskCommands
from keyfold_sink.task.report import StatusReporter
from keyfold_sink.task.run import run_task
from keyfold_sink.worker.spawn import read_first_line
from keyfold_sink.worker.task_process import STOP_SLACK_S
from keyfold_sink.worker.wire import StatusPipe, follow_commands

DEFECT: Final = 70
_COMMANDS_FD: Final = 0


def run_child(
    number: int,
    report_fd: int,
    *,
    paused: bool,
    proven: bool,
    until_caught_up: bool,
    transaction_timeout_s: float,
    as_json: bool,
    stop: threading.Event,
    clock: Clock,
    random: Random,
) -> None:
    """Run task `number`, and exit with its exit code if it failed."""
    # Print the stacks of a task that hangs; the handler works even while Python's main thread is blocked.
    faulthandler.register(signal.SIGQUIT, all_threads=True, chain=False)
    event_log.configure(json=as_json)
    event_log.bind(task=number)
    options = SinkOptions.parse(read_first_line(_COMMANDS_FD)).for_task(number)
    commands = TaskCommands(stop, pause=paused)
    stop_s = options.shutdown_timeout_ms / 1000 + STOP_SLACK_S
    follow_commands(_COMMANDS_FD, commands.add, lambda: end_by_force(stop_s, clock))
    with StatusPipe(report_fd) as report:
        try:
            run_task(
                options,
                stop=stop,
                until_caught_up=until_caught_up,
                transaction_timeout_s=transaction_timeout_s,
                clock=clock,
                random=random,
                commands=commands,
                reporter=StatusReporter(number, clock, report),
                proven=proven,
            )
        except KeyfoldError as error:  # the supervisor shows the error at its end, with those of other tasks
            structlog.get_logger("keyfold.sink").error("task failed", error=str(error))
            sys.exit(error.exit_code)
        except Exception as error:  # noqa: BLE001 - another start may help after any exception
            traceback.print_exception(error)
            sys.exit(DEFECT)


def end_by_force(after_s: float, clock: Clock) -> None:
    """End this process after a time. Its supervisor, which kills tasks that hang, is gone."""
    clock.sleep(after_s)
    structlog.get_logger("keyfold.sink").error("task without a supervisor hangs; exiting", after_s=after_s)
    os._exit(DEFECT)
