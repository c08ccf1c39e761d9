"""Everything that can be said about a sink's configuration without connecting to anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from keyfold.config_file import resolve_all, without_secrets
from keyfold.errors import ConfigError
from keyfold.options import Note
from keyfold_sink.client_checks import client_mistakes
from keyfold_sink.options import SinkOptions


@dataclass(frozen=True, slots=True)
class Findings:
    """`written` is the configuration as it was given. `options` is None where there are mistakes."""

    written: Mapping[str, str]
    options: SinkOptions | None
    mistakes: tuple[ConfigError, ...]
    notes: tuple[Note, ...]


def examine(written: Mapping[str, str], environ: Mapping[str, str]) -> Findings:
    """Fill in placeholders, read the options, ask the Kafka client about its keys; find all mistakes."""
    values, unfilled = resolve_all(written, environ)
    found = SinkOptions.examine(values)
    left_out = {mistake.key for mistake in unfilled}
    mistakes = [*unfilled, *(mistake for mistake in found.mistakes if mistake.key not in left_out)]
    named = {mistake.key for mistake in mistakes}
    for mistake in client_mistakes(values, named):
        text = mistake.message.removeprefix(f"`{mistake.key}`: ")
        mistakes.append(ConfigError(mistake.key, without_secrets(text, values), hint=mistake.hint))
    return Findings(written, None if mistakes else found.options, tuple(mistakes), found.notes)


def with_mistakes(findings: Findings, more: tuple[ConfigError, ...]) -> Findings:
    """The same findings and what was found later."""
    return replace(findings, mistakes=(*findings.mistakes, *more)) if more else findings
