"""A model's options by key: which keys it knows, what a per-topic key means, and its mistakes as error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from keyfold.config.config_file import Resolved, is_secret_key
from keyfold.config.option_fields import InvalidOption, Overrides, entries
from keyfold.errors import ConfigError

TOPIC_PREFIX: Final = "topic."


class OptionTable:
    """A model's options by key."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.entries = {entry.key: entry for entry in entries(model)}
        self._prefixes = {key[:-1]: key for key in self.entries if key.endswith(".*")}
        self._per_topic = sorted((key for key, entry in self.entries.items() if entry.per_topic), key=len, reverse=True)

    def knows(self, key: str) -> bool:
        """Return whether this is a key of the model, or begins with one of its prefixes."""
        return (key in self.entries and not key.endswith("*")) or self._prefix_of(key) is not None

    def _prefix_of(self, key: str) -> str | None:
        """Return the longest of the model's prefixes that the key begins with and is longer than.

        None for an option's own key, and for a prefix as documentation writes it, such as `consumer.override.*`.
        """
        if key in self.entries:
            return None
        fitting = [prefix for prefix in self._prefixes if key.startswith(prefix) and len(key) > len(prefix)]
        return max(fitting, key=len, default=None)

    def hides(self, key: str) -> bool:
        """Return whether the value of a key must not be shown. The key may be unknown."""
        entry = self.entries.get(key)
        return (entry is not None and entry.is_secret) or is_secret_key(key)

    def gather(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the values as pydantic takes them: keys with a prefix are together under their option."""
        gathered: dict[str, Any] = {}
        for key, value in values.items():
            prefix = self._prefix_of(key)
            if prefix is None:
                gathered[key] = value
            else:
                gathered.setdefault(self._prefixes[prefix], Overrides())[key.removeprefix(prefix)] = value
        return gathered

    def split_topic_key(self, key: str, listed: Iterable[str]) -> tuple[str, str]:
        """Return topic and option of `topic.<name>.<key>`. Raise `ConfigError` if there is none, or more than one."""
        rest = key.removeprefix(TOPIC_PREFIX)
        readings = [(rest[: -len(own) - 1], own) for own in self._per_topic if rest.endswith("." + own)]
        readings = [reading for reading in readings if reading[0]]
        if not readings:
            raise self._no_reading(key, rest)
        named = set(listed)
        known = [reading for reading in readings if reading[0] in named]
        if len(known) > 1:
            both = " or ".join(f"`{own}` of the topic `{topic}`" for topic, own in known)
            raise ConfigError(
                key, f"is ambiguous: it may mean {both}", hint="use a separate configuration for each of these topics"
            )
        return known[0] if known else readings[0]

    def _no_reading(self, key: str, rest: str) -> ConfigError:
        for known in sorted(self.entries, key=len, reverse=True):
            if rest.endswith("." + known):
                return ConfigError(key, f"`{known}` cannot be set per topic", hint=f"set `{known}` without a topic")
        parts = rest.split(".")
        ends = [".".join(parts[at:]) for at in range(1, len(parts))]
        ranked = [(SequenceMatcher(None, end, own).ratio(), own, end) for end in ends for own in self._per_topic]
        score, own, end = max(ranked, default=(0.0, "", ""))
        hint = f"did you mean `{key.removesuffix(end)}{own}`?" if score >= 0.7 else None
        return ConfigError(key, "does not end with a key that can be set per topic", hint=hint)

    def unknown(self, key: str) -> ConfigError:
        """Return the mistake of an unknown key, with the nearest known key as the hint."""
        close = get_close_matches(key, [known for known in self.entries if not known.endswith("*")], n=1, cutoff=0.7)
        for prefix in self._prefixes:
            if not close and SequenceMatcher(None, key[: len(prefix)], prefix).ratio() >= 0.8:
                close = [f"{prefix}..."]
        hint = f"did you mean `{close[0]}`?" if close else None
        return ConfigError(key, f"unknown key `{key}`", hint=hint)

    def mistake(self, error: ErrorDetails, values: Mapping[str, str]) -> ConfigError:
        """Return what pydantic found about one key as a mistake."""
        key = str(error["loc"][0]) if error["loc"] else "configuration"
        message = _message(key, error)
        value = values.get(key)
        refused = error.get("ctx", {}).get("error")
        hint = refused.hint if isinstance(refused, InvalidOption) else None
        if error["type"] == "missing" and key in self.entries:
            hint = self.entries[key].missing or None
        if self._may_repeat(key, value) and not isinstance(refused, InvalidOption):
            message += f", not {value!r}"
        return ConfigError(key, message, hint=hint)

    def _may_repeat(self, key: str, value: str | None) -> bool:
        return not (value is None or isinstance(value, Resolved) or key not in self.entries or self.hides(key))


@cache
def option_table(model: type[BaseModel]) -> OptionTable:
    """Return the table of a model. It is made once."""
    return OptionTable(model)


def _message(key: str, error: ErrorDetails) -> str:
    """Return what pydantic found as an error message for operators."""
    context = error.get("ctx", {})
    texts = {
        "missing": f"missing required key `{key}`",
        "int_parsing": "must be a whole number",
        "int_from_float": "must be a whole number",
        "int_parsing_size": "must be a whole number of a reasonable size",
        "float_parsing": "must be a number",
        "finite_number": "must be a number",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "greater_than": f"must be more than {context.get('gt')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "less_than": f"must be less than {context.get('lt')}",
        "string_too_short": "must not be empty",
        "literal_error": f"must be {context.get('expected')}",
        "enum": f"must be {context.get('expected')}",
        "value_error": str(context.get("error")),
    }
    return texts.get(error["type"]) or error["msg"][:1].lower() + error["msg"][1:]
