"""`keyfold sink`: run a sink, or check its configuration."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import CliContext
from keyfold.config.config_file import read_written, resolve_all, without_secrets
from keyfold.config.options import read_config
from keyfold.errors import ConfigError
from keyfold.runtime import event_log
from keyfold.runtime.clock import Clock
from keyfold.runtime.signals import stop_on_signals
from keyfold.runtime.terminal import echo, echo_json

if TYPE_CHECKING:
    from keyfold_sink.config.examine import ConfigFindings

# The brokers' default of `transaction.max.timeout.ms`, Kafka's limit for a transaction.
_TRANSACTION_TIMEOUT_S = 900.0
_CONFIG = click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CONFIG")


@click.group()
def sink() -> None:
    """Append Kafka topics to the log, exactly once.

    CONFIG is a file like Kafka Connect's: JSON ({"name", "config"}, or the flat map) or .properties.

    \b
    Examples:
        keyfold sink validate users.json
        keyfold sink run users.json
    """  # noqa: D301 - click wants the character


@sink.command()
@_CONFIG
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
    from keyfold_sink.process_tuning import tune_process

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


@sink.command()
@_CONFIG
@click.option("--connect", is_flag=True, help="Also try the brokers, topics, bucket and Schema Registry.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print Connect's answer to validate: each key, its value and errors."
)
@click.pass_context
def validate(context: click.Context, config: Path, *, connect: bool, as_json: bool) -> None:
    """Check CONFIG and list every mistake, with the reason and what to do.

    Keys of Confluent's and Aiven's S3 sinks are translated, or refused with the reason. Without --connect the command
    connects to nothing. The exit code is 2 if CONFIG is wrong, and 1 if CONFIG is valid but a broker, topic, bucket or
    registry that it names cannot be used.

    \b
    Examples:
        keyfold sink validate users.json
        keyfold sink validate users.json --connect
    """  # noqa: D301 - click wants the character
    world: CliContext = context.obj
    event_log.configure(json=as_json, level="warning")  # logs of clients go to standard error
    context.exit(_validate_file(config, os.environ, world.clock, world.random, connect=connect, as_json=as_json))


def _validate_file(
    path: Path, environ: Mapping[str, str], clock: Clock, random: Random, *, connect: bool, as_json: bool
) -> int:
    """Print the findings about a file and return the exit code. Raise `ConfigError` if the file cannot be read.

    Exit codes: 0 the configuration is valid, 2 the configuration is invalid, 1 the configuration is valid, but a
    broker, topic, bucket or registry that it names cannot be used (only if connections are tried).
    """
    from keyfold_sink.config.connect_definitions import infos
    from keyfold_sink.config.examine import examine, with_mistakes

    written = read_written(path)
    findings = examine(written, environ)
    code = 2 if findings.mistakes else 0
    if findings.options is not None and connect:
        from keyfold_sink.connection_checks import check_connections  # clients of all kinds

        values, _ = resolve_all(written, environ)
        found = check_connections(findings.options, clock, random, on_good=_silent if as_json else _tell)
        more = tuple(_clean(mistake, values) for mistake in found)
        findings = with_mistakes(findings, more)
        code = 1 if more else 0
    if as_json:
        echo_json(infos(findings), indent=2)
    else:
        _print(findings)
    return code


def _tell(what: str) -> None:
    echo(f"ok: {what}", err=True)


def _silent(_what: str) -> None:
    pass


def _clean(mistake: ConfigError, values: Mapping[str, str]) -> ConfigError:
    text = mistake.message.removeprefix(f"`{mistake.key}`: ")
    return ConfigError(mistake.key, without_secrets(text, values), hint=mistake.hint)


def _print(findings: ConfigFindings) -> None:
    for note in findings.notes:
        echo(f"note: `{note.key}` {note.text}", err=True)
    for mistake in findings.mistakes:
        echo(f"error: {' '.join(mistake.message.split())}", err=True)
        if mistake.hint:
            echo(f"hint: {mistake.hint}", err=True)
    options = findings.options
    if options is not None and not findings.mistakes:
        what = f"topics {', '.join(options.topics)}" if options.topics else f"topics that match {options.topics_regex}"
        echo(f"ok: sink {options.name}, {what}, to {options.url}")


def _run_sink(world: CliContext, config: Path, transaction_timeout_s: float | None, *, as_json: bool) -> None:
    """Run a worker, or tasks that catch up if there is a timeout for transactions."""
    from keyfold_sink.config.examine import options_of
    from keyfold_sink.progress import SinkProgress

    options = options_of(values := read_config(config))
    stop = _stop_on_signals()
    progress = SinkProgress(options.name, world.clock)
    event_log.configure(json=as_json, level="warning" if progress.is_shown and not as_json else "info")
    until_caught_up = transaction_timeout_s is not None
    flags = ["--until-caught-up", f"--transaction-timeout={transaction_timeout_s}"] * until_caught_up
    flags += ["--json"] * as_json
    with progress:
        if transaction_timeout_s is not None and options.tasks_max == 1:
            from keyfold_sink.task.run import run_task

            run_task(
                options,
                stop=stop,
                until_caught_up=True,
                transaction_timeout_s=transaction_timeout_s,
                clock=world.clock,
                random=world.random,
                on_committed=progress.committed,
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


def _stop_on_signals() -> threading.Event:
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        numbers.append(signal.SIGHUP)
    return stop_on_signals(numbers, _interrupt)


def _interrupt(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
