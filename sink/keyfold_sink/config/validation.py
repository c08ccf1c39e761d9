"""`keyfold sink validate`: list all mistakes of a configuration, and the keys that have no effect.

Exit codes: 0 the configuration is valid, 2 the configuration is invalid, 1 the configuration is valid, but a broker,
topic, bucket or registry that it names cannot be used (only if connections are tried).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

from keyfold.config.config_file import read_written, resolve_all, without_secrets
from keyfold.errors import ConfigError
from keyfold.runtime.clock import Clock
from keyfold.runtime.terminal import echo, echo_json
from keyfold_sink.config.connect_definitions import infos
from keyfold_sink.config.examine import Findings, examine, with_mistakes


def validate_file(
    path: Path, environ: Mapping[str, str], clock: Clock, random: Random, *, connect: bool, as_json: bool
) -> int:
    """Print the findings about a file and return the exit code. Raise `ConfigError` if the file cannot be read."""
    written = read_written(path)
    findings = examine(written, environ)
    code = 2 if findings.mistakes else 0
    if findings.options is not None and connect:
        from keyfold_sink.config.connection_checks import check_connections  # clients of all kinds

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


def _print(findings: Findings) -> None:
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
