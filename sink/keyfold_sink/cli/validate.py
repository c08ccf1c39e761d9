"""`keyfold sink validate`: check a configuration and, on request, the servers that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from keyfold.cli.context import CliContext
from keyfold.config.config_file import read_written, resolve_all, without_secrets
from keyfold.errors import ConfigError
from keyfold.runtime import event_log
from keyfold.runtime.clock import Clock
from keyfold.runtime.terminal import echo, echo_json
from keyfold_sink.cli.arguments import config_argument

if TYPE_CHECKING:
    from keyfold_sink.config.examine import ConfigFindings


@click.command()
@config_argument
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
    for warning in findings.warnings:
        echo(f"warning: `{warning.key}` {warning.text}", err=True)
    for mistake in findings.mistakes:
        echo(f"error: {' '.join(mistake.message.split())}", err=True)
        if mistake.hint:
            echo(f"hint: {mistake.hint}", err=True)
    options = findings.options
    if options is not None and not findings.mistakes:
        what = f"topics {', '.join(options.topics)}" if options.topics else f"topics that match {options.topics_regex}"
        echo(f"ok: sink {options.name}, {what}, to {options.url}")
