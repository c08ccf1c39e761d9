"""`keyfold sink run`: a worker, one of its tasks, or a run that ends when it has caught up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog

from keyfold.cli.common_options import is_quiet
from keyfold.cli.context import CliContext
from keyfold.config.options import read_config
from keyfold.runtime import event_log
from keyfold.runtime.live_console import can_show_live
from keyfold.runtime.log_level import asked_level
from keyfold.runtime.signals import stop_on_signals
from keyfold_sink.cli.arguments import config_argument

if TYPE_CHECKING:
    from keyfold_sink.config.options import SinkOptions
    from keyfold_sink.progress import SinkProgress

# The brokers' default of `transaction.max.timeout.ms`, Kafka's limit for a transaction.
_TRANSACTION_TIMEOUT_S = 900.0


@click.command()
@config_argument
@click.option(
    "--until-caught-up", is_flag=True, help="Exit when the log has everything that the topics had at the start."
)
@click.option(
    "--transaction-timeout",
    type=click.FloatRange(min=0),
    default=_TRANSACTION_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="With --until-caught-up: how long to wait for open transactions before exiting with code 3.",
)
@click.option("--json", "as_json", is_flag=True, help="Log events as JSON lines on stderr.")
@click.option("--task", type=click.IntRange(min=0), hidden=True)
@click.option("--report-fd", type=click.IntRange(min=0), hidden=True)
@click.option("--paused", is_flag=True, hidden=True)
@click.option("--proven", is_flag=True, hidden=True)
@click.pass_obj
def run(
    world: CliContext,
    config: Path,
    *,
    until_caught_up: bool,
    transaction_timeout: float,
    as_json: bool,
    task: int | None,
    report_fd: int | None,
    paused: bool,
    proven: bool,
) -> None:
    """Run the sink of CONFIG until Ctrl-C, SIGTERM or SIGHUP. Then flush, commit and leave the group.

    The sink is controlled through its REST API (`listeners`). All workers of a sink follow a request to any of them. A
    second Ctrl-C ends the worker immediately. No record is lost: the next run reads again what was not committed.

    With --until-caught-up the sink exits when every log has reached the end offset that its partition had at the start.
    Records of an open transaction can only be read when the transaction has ended, so the sink waits for it. Kafka ends
    transactions after at most 900 seconds, unless its brokers are configured otherwise.

    \b
    Exit codes:
        0    stopped, and everything that was read is committed; or caught up
        1    the sink failed
        2    CONFIG or the command line is wrong
        3    caught up except for records of open transactions; the error names partitions and offsets
        130  ended by a second Ctrl-C

    \b
    Examples:
        keyfold sink run users.json
        keyfold sink run users.json --until-caught-up
    """  # noqa: D301 - click wants the character
    from keyfold.runtime.process_memory import tune_process

    tune_process()
    if task is not None and report_fd is not None:
        from keyfold_sink.worker.task_main import run_child

        run_child(
            task,
            report_fd,
            paused=paused,
            proven=proven,
            until_caught_up=until_caught_up,
            transaction_timeout_s=transaction_timeout,
            as_json=as_json,
            stop=_stop_on_signals(),
            clock=world.clock,
            random=world.random,
        )
        return
    _run_sink(world, config, transaction_timeout if until_caught_up else None, as_json=as_json)


def _run_sink(world: CliContext, config: Path, transaction_timeout_s: float | None, *, as_json: bool) -> None:
    """Run a worker, or tasks that catch up if there is a timeout for transactions."""
    from keyfold_sink.config.examine import options_of
    from keyfold_sink.progress import SinkProgress

    options = options_of(values := read_config(config))
    stop = _stop_on_signals()
    is_shown = can_show_live() and not as_json and not is_quiet()
    progress = SinkProgress(options.name, world.clock, stop.is_set, is_shown=is_shown)
    until_caught_up = transaction_timeout_s is not None
    flags = ["--until-caught-up", f"--transaction-timeout={transaction_timeout_s}"] * until_caught_up
    flags += ["--json"] * as_json
    if is_shown and asked_level(os.environ) is None:
        flags.append("--log-level=warning")
    with progress, _logged(options, progress, as_json=as_json, level="warning" if is_shown else "info"):
        if transaction_timeout_s is not None and options.tasks_max == 1:
            from keyfold_sink.task.report import StatusReporter
            from keyfold_sink.task.run import run_task

            run_task(
                options,
                stop=stop,
                until_caught_up=True,
                transaction_timeout_s=transaction_timeout_s,
                clock=world.clock,
                random=world.random,
                on_committed=progress.committed,
                reporter=StatusReporter(0, world.clock, lambda task: progress.show([task])),
            )
            return
        from keyfold_sink.worker.run import run_until_caught_up, run_worker

        (run_until_caught_up if until_caught_up else run_worker)(
            options,
            values,
            [str(config), *flags],
            stop=stop,
            clock=world.clock,
            random=world.random,
            progress=progress,
        )


@contextmanager
def _logged(options: SinkOptions, progress: SinkProgress, *, as_json: bool, level: str) -> Iterator[None]:
    """Set up the log, and log the start of the sink, what is unusual in its configuration, and its end with totals."""
    from keyfold_sink.config.small_segments import small_segment_warnings

    event_log.configure(json=as_json, level=level)
    log = structlog.get_logger("keyfold.sink")
    topics = list(options.topics) or options.topics_regex
    log.info("sink started", name=options.name, topics=topics, url=options.url, tasks=options.tasks_max)
    for warning in small_segment_warnings(options):
        log.warning("tiny segments", key=warning.key, why=warning.text)
    try:
        yield
    finally:
        totals = progress.totals
        log.info("sink ended", records=totals.records, segments=totals.segments, size_bytes=totals.size_bytes)


def _stop_on_signals() -> threading.Event:
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        numbers.append(signal.SIGHUP)
    return stop_on_signals(numbers, _interrupt)


def _interrupt(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
