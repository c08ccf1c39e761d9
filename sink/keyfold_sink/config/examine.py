"""Everything that can be said about a sink's configuration without connecting to anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from keyfold.config_file import resolve_all, without_secrets
from keyfold.errors import ConfigError
from keyfold.options import Examined, Note, with_others
from keyfold_sink.config.client_checks import client_mistakes
from keyfold_sink.config.options import SinkOptions


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
    found = _examine_filled(values)
    left_out = {mistake.key for mistake in unfilled}
    mistakes = (*unfilled, *(mistake for mistake in found.mistakes if mistake.key not in left_out))
    return Findings(written, None if mistakes else found.options, mistakes, found.notes)


def options_of(values: Mapping[str, str]) -> SinkOptions:
    """The options of a configuration whose placeholders are filled in. Raises `ConfigError`, as `Options.parse`."""
    found = _examine_filled(values)
    if found.options is None:
        error = with_others(found.mistakes)
        if len(found.mistakes) > 1:
            error.hint = f"{error.hint}; `keyfold sink validate` says what is wrong with each"
        raise error
    return found.options


def _examine_filled(values: Mapping[str, str]) -> Examined[SinkOptions]:
    found = SinkOptions.examine(values)
    mistakes = [*found.mistakes]
    for mistake in client_mistakes(values, {mistake.key for mistake in mistakes}):
        text = mistake.message.removeprefix(f"`{mistake.key}`: ")
        mistakes.append(ConfigError(mistake.key, without_secrets(text, values), hint=mistake.hint))
    return Examined(None if mistakes else found.options, tuple(mistakes), found.notes)


def with_mistakes(findings: Findings, more: tuple[ConfigError, ...]) -> Findings:
    """The same findings and what was found later."""
    return replace(findings, mistakes=(*findings.mistakes, *more)) if more else findings
