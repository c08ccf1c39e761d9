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
from keyfold_sink.options import SinkOptions

_CONFIG = click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CONFIG")


@click.group()
def sink() -> None:
    r"""Append Kafka topics to the log, exactly once.

    \b
    CONFIG is Kafka Connect's: JSON ({"name", "config"}, or the flat map) or .properties.
        keyfold sink validate users.json
        keyfold sink run users.json
    """


@sink.command()
@_CONFIG
@click.option("--until-caught-up", is_flag=True, help="End when all that was in the topics at the start is in the log.")
@click.option("--json", "as_json", is_flag=True, help="Events as JSON lines on stderr.")
@click.option("--task", type=click.IntRange(min=0), hidden=True)
@click.pass_obj
def run(world: Surroundings, config: Path, *, until_caught_up: bool, as_json: bool, task: int | None) -> None:
    r"""Run the sink of CONFIG until SIGTERM or Ctrl-C: then flush, commit and leave the group.

    A second Ctrl-C ends it at once; nothing is lost, the next run reads again what was not committed.

    \b
        keyfold sink run users.json --until-caught-up
    """
    from keyfold_sink.process import tune_process

    tune_process()
    from keyfold_sink.progress import Progress
    from keyfold_sink.supervisor import supervise
    from keyfold_sink.task import run_task

    options = SinkOptions.parse(read_config(config))
    stop = _stop_on_signals()
    progress = Progress(options.name, world.clock)
    logs.configure(json=as_json, level="warning" if progress.is_shown and not as_json else "info")
    if task is None and options.tasks_max > 1:
        flags = ["--until-caught-up"] * until_caught_up + ["--json"] * as_json
        supervise([str(config), *flags], options.tasks_max, stop=stop, clock=world.clock)
        return
    if task is not None:
        logs.bind(task=task)
        options = options.for_task(task)
        threading.Thread(target=_stop_with_supervisor, args=(stop,), daemon=True).start()
    with progress:
        run_task(
            options,
            stop=stop,
            until_caught_up=until_caught_up,
            clock=world.clock,
            random=world.random,
            on_committed=progress.committed,
        )


@sink.command()
@_CONFIG
def validate(config: Path) -> None:
    r"""Check CONFIG without connecting to anything.

    \b
        keyfold sink validate users.json
    """
    options = SinkOptions.parse(read_config(config))
    what = f"topics {', '.join(options.topics)}" if options.topics else f"topics that match {options.topics_regex}"
    click.echo(f"ok: sink {options.name}, {what}, to {options.url}")


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _stop_with_supervisor(stop: threading.Event) -> None:
    """The supervisor's pipe ends when the supervisor does."""
    while os.read(0, 1024):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    stop.set()
