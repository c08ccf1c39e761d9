"""`keyfold sink`: run a sink, or check its configuration."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import click

from keyfold import logs
from keyfold.cli.app import Surroundings
from keyfold.options import read_config

_CONFIG = click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CONFIG")


@click.group()
def sink() -> None:
    """Append Kafka topics to the log, exactly once.

    \b
    CONFIG is Kafka Connect's: JSON ({"name", "config"}, or the flat map) or .properties.
        keyfold sink validate users.json
        keyfold sink run users.json
    """  # noqa: D301 - click wants the character


@sink.command()
@_CONFIG
@click.option("--until-caught-up", is_flag=True, help="End when all that was in the topics at the start is in the log.")
@click.option("--json", "as_json", is_flag=True, help="Events as JSON lines on stderr.")
@click.option("--task", type=click.IntRange(min=0), hidden=True)
@click.option("--report-fd", type=click.IntRange(min=0), hidden=True)
@click.option("--paused", is_flag=True, hidden=True)
@click.option("--proven", is_flag=True, hidden=True)
@click.pass_obj
def run(
    world: Surroundings,
    config: Path,
    *,
    until_caught_up: bool,
    as_json: bool,
    task: int | None,
    report_fd: int | None,
    paused: bool,
    proven: bool,
) -> None:
    """Run the sink of CONFIG until Ctrl-C, SIGTERM or SIGHUP: then flush, commit and leave the group.

    It is controlled through its REST API (`listeners`), and follows what the sink's other workers are told. A second
    Ctrl-C ends it at once; nothing is lost, the next run reads again what was not committed.

    \b
        keyfold sink run users.json
        keyfold sink run users.json --until-caught-up
    """  # noqa: D301 - click wants the character
    from keyfold_sink.process import tune_process

    tune_process()
    if task is not None and report_fd is not None:
        from keyfold_sink.running.child import run_child

        run_child(
            task,
            report_fd,
            paused=paused,
            proven=proven,
            until_caught_up=until_caught_up,
            as_json=as_json,
            stop=_stop_on_signals(),
            clock=world.clock,
            random=world.random,
        )
        return
    from keyfold_sink.config.examine import options_of
    from keyfold_sink.progress import Progress

    options = options_of(values := read_config(config))
    stop = _stop_on_signals()
    progress = Progress(options.name, world.clock)
    logs.configure(json=as_json, level="warning" if progress.is_shown and not as_json else "info")
    flags = ["--until-caught-up"] * until_caught_up + ["--json"] * as_json
    with progress:
        if until_caught_up and options.tasks_max == 1:
            from keyfold_sink.task.run import run_task

            run_task(
                options,
                stop=stop,
                until_caught_up=True,
                clock=world.clock,
                random=world.random,
                on_committed=progress.committed,
            )
            return
        from keyfold_sink.running.run import run_until_caught_up, run_worker

        (run_until_caught_up if until_caught_up else run_worker)(
            options,
            values,
            [str(config), *flags],
            stop=stop,
            clock=world.clock,
            random=world.random,
            progress=progress,
        )


@sink.command()
@_CONFIG
@click.option("--connect", is_flag=True, help="Also try brokers, topics, bucket and registry.")
@click.option("--json", "as_json", is_flag=True, help="As Connect's validate answers: each key, its value and errors.")
@click.pass_context
def validate(context: click.Context, config: Path, *, connect: bool, as_json: bool) -> None:
    """Check CONFIG: every mistake at once, with the reason and what to do.

    Keys of Confluent's and Aiven's S3 sinks are understood, or refused with the reason. Without --connect nothing is
    connected to. Exit code 2: CONFIG is wrong; 1: it is right, and something that it names is not.

    \b
        keyfold sink validate users.json
        keyfold sink validate users.json --connect
    """  # noqa: D301 - click wants the character
    from keyfold_sink.config.validation import validate_file

    world: Surroundings = context.obj
    logs.configure(json=as_json, level="warning")  # what clients say of themselves belongs to standard error
    context.exit(validate_file(config, os.environ, world.clock, world.random, connect=connect, as_json=as_json))


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        signal.signal(signal.SIGHUP, on_signal)
    return stop
