"""Checks of a sink's configuration that connect to nothing.

There are three callers, with three degrees of trust:

    examine           `keyfold sink validate`: the operator's own file. Placeholders are filled in, files are read.
    options_of        `keyfold sink run`: the same file, with placeholders already filled in.
    examine_request   REST: a configuration that anybody may have written. No file is opened, no client is made, and no
                      placeholder is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from keyfold.config.config_file import HIDDEN, has_placeholder, resolve_all, without_secrets
from keyfold.config.options import Examined, Note, with_others
from keyfold.errors import ConfigError
from keyfold_sink.config.client_checks import client_key, client_mistakes
from keyfold_sink.config.client_construction_check import construction_mistakes
from keyfold_sink.config.options import SinkOptions
from keyfold_sink.config.small_segments import small_segment_warnings

_CONNECTING: Final = ("bootstrap.servers", "store.url", "s3.", "aws.")
_CONVERTER: Final = re.compile(r"(?:^|\.)(?:key|value)\.converter")


@dataclass(frozen=True, slots=True)
class ConfigFindings:
    """The result of a check. `written` is the configuration as it was given; `options` is None if it has mistakes.

    `notes` are about keys of other sinks, `warnings` about values that are allowed and nearly always a mistake.
    """

    written: Mapping[str, str]
    options: SinkOptions | None
    mistakes: tuple[ConfigError, ...]
    notes: tuple[Note, ...]
    warnings: tuple[Note, ...] = ()


def examine(written: Mapping[str, str], environ: Mapping[str, str]) -> ConfigFindings:
    """Fill in placeholders, parse the options, and let the Kafka client check its keys. Return all mistakes."""
    values, unfilled = resolve_all(written, environ)
    found = _examine_filled(values)
    left_out = {mistake.key for mistake in unfilled}
    mistakes = (*unfilled, *(mistake for mistake in found.mistakes if mistake.key not in left_out))
    options = None if mistakes else found.options
    warnings = small_segment_warnings(options) if options is not None else ()
    return ConfigFindings(written, options, mistakes, found.notes, warnings)


def options_of(values: Mapping[str, str]) -> SinkOptions:
    """Return the options of a configuration whose placeholders are filled in. Raise as `Options.parse` does."""
    found = _examine_filled(values)
    if found.options is None:
        error = with_others(found.mistakes)
        if len(found.mistakes) > 1:
            error.hint = f"{error.hint}; `keyfold sink validate` explains each of them"
        raise error
    return found.options


def examine_request(written: Mapping[str, str], running: SinkOptions) -> ConfigFindings:
    """Find the mistakes of a configuration that came over REST, without accessing anything that it names.

    A hidden value or a placeholder is replaced by its value in the `running` configuration if all settings about
    connections are the running ones. Otherwise only the names of such keys are checked: a secret must not be combined
    with an address that the caller chose.
    """
    known = running.shown()
    if _connecting(written) == _connecting(known):
        values, left_out = running.unhidden(written), frozenset[str]()
    else:
        values = dict(written)
        left_out = frozenset(key for key, value in written.items() if value == HIDDEN or has_placeholder(value))
    found = SinkOptions.examine(values)
    mistakes = [*found.mistakes]
    mistakes += _client_mistakes(values, mistakes)
    told = tuple(mistake for mistake in mistakes if mistake.key not in left_out)
    return ConfigFindings(written, None if mistakes else found.options, told, found.notes)


def _connecting(values: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of connections: to Kafka, to the store, to schema registries."""
    return {
        key: value
        for key, value in values.items()
        if client_key(key) is not None or key.startswith(_CONNECTING) or _CONVERTER.search(key)
    }


def _examine_filled(values: Mapping[str, str]) -> Examined[SinkOptions]:
    found = SinkOptions.examine(values)
    mistakes = [*found.mistakes]
    by_key = _client_mistakes(values, mistakes)
    # Keys are checked together only if each of them is right, because librdkafka stops at the first mistake.
    if not by_key and not any(client_key(mistake.key) for mistake in mistakes):
        by_key = [_clean(mistake, values) for mistake in construction_mistakes(values)]
    mistakes += by_key
    return Examined(None if mistakes else found.options, tuple(mistakes), found.notes)


def _client_mistakes(values: Mapping[str, str], known: Iterable[ConfigError]) -> list[ConfigError]:
    """Return a mistake for each key that librdkafka refuses, except for keys that are `known` to be wrong."""
    return [_clean(mistake, values) for mistake in client_mistakes(values, {mistake.key for mistake in known})]


def _clean(mistake: ConfigError, values: Mapping[str, str]) -> ConfigError:
    text = mistake.message.removeprefix(f"`{mistake.key}`: ")
    return ConfigError(mistake.key, without_secrets(text, values), hint=mistake.hint)


def with_mistakes(findings: ConfigFindings, more: tuple[ConfigError, ...]) -> ConfigFindings:
    """Return the same findings with `more` mistakes."""
    return replace(findings, mistakes=(*findings.mistakes, *more)) if more else findings
