"""Translation of another S3 sink's configuration into the keys of this sink, or a list of all keys to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keyfold.config.config_file import Resolved, is_secret_key
from keyfold.config.options import Note, Rewritten
from keyfold.errors import ConfigError
from keyfold_sink.config.foreign_keys import FOREIGN, Anyway, Foreign, Never, Same

_PREFIXES: Final = sorted((key[:-1] for key in FOREIGN if key.endswith(".*")), key=len, reverse=True)


def rewrite(values: Mapping[str, str]) -> Rewritten:
    """Translate the keys of other sinks, or refuse them."""
    ours: dict[str, str] = {}
    shown_as: dict[str, str] = {}
    mistakes: list[ConfigError] = []
    notes: list[Note] = []
    for key, value in values.items():
        known = _find(key)
        if known is None:
            ours[key] = value
        elif isinstance(known, Same):
            if value.strip() in known.off:
                continue
            other = known.ours if known.ours in values else shown_as.get(known.ours)
            if other is not None:
                mistakes.append(
                    ConfigError(key, f"means the same as `{other}`, and both are set", hint="set one of them")
                )
                continue
            ours[known.ours] = value
            shown_as[known.ours] = key
            notes.append(Note(key, f"is read as `{known.ours}`" + (f": {known.note}" if known.note else "")))
        else:
            _judge(key, value, known, mistakes, notes)
    return Rewritten(ours, shown_as, tuple(mistakes), tuple(notes))


def _find(key: str) -> Foreign | None:
    if key in FOREIGN and not key.endswith("*"):
        return FOREIGN[key]
    return next((FOREIGN[f"{prefix}*"] for prefix in _PREFIXES if key.startswith(prefix)), None)


def _judge(key: str, value: str, known: Anyway | Never, mistakes: list[ConfigError], notes: list[Note]) -> None:
    if isinstance(known, Never):
        if value.strip() and value.strip().lower() not in known.off:
            mistakes.append(ConfigError(key, f"is not supported: {known.reason}", hint=known.hint))
    elif known.accepts(value):
        notes.append(Note(key, "has no effect" + (f": {known.note}" if known.note else "")))
    else:
        shown = "this value" if isinstance(value, Resolved) or is_secret_key(key) else repr(value)
        mistakes.append(ConfigError(key, f"{shown} is not supported: {known.refusal}", hint=known.hint))
