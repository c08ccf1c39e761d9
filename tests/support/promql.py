"""Which metrics and labels a PromQL expression names. No parser: enough of one to compare names with what is served.

It knows the words that are used here; others, such as `without`, would be taken for metrics that nobody serves. What an
expression means is promtool's matter (`tests/infra/test_alerts_promtool.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_LABEL_LIST: Final = re.compile(r"\b(?:by|on|group_left)\s*\(([^()]*)\)")
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^{}]*)\}")
_MATCHER: Final = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(\x00\d+\x00)")
_DURATION: Final = re.compile(r"\[[^\]]*\]|\boffset\s+-?\w+")
_NAME: Final = re.compile(r"(?<![\w:.$])([a-zA-Z_:][a-zA-Z0-9_:]*)(\s*\()?")
_WORDS: Final = frozenset(
    {"by", "on", "group_left", "and", "or", "unless", "bool", "offset", "sum", "min", "max", "count"}
)


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition in a selector."""

    metric: str
    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Names:
    """What an expression names: metrics, conditions on their labels, and labels that it groups or joins by."""

    metrics: frozenset[str]
    matchers: tuple[Matcher, ...]
    grouped_by: frozenset[str]


def names_in(expression: str) -> Names:
    """Read an expression. Raises `ValueError` for a condition that this cannot read."""
    strings: list[str] = []

    def keep(found: re.Match[str]) -> str:
        strings.append(found[0][1:-1])
        return f"\x00{len(strings) - 1}\x00"

    text = re.sub(r"^\s*#.*$", "", expression, flags=re.MULTILINE)
    text = _STRING.sub(keep, text)
    matchers = tuple(_matchers(text, strings))
    grouped = {label.strip() for found in _LABEL_LIST.finditer(text) for label in found[1].split(",")} - {""}
    text = _LABEL_LIST.sub(" ", text)
    text = _DURATION.sub(" ", _SELECTOR.sub(r" \1 ", text))
    metrics = {
        found[1] for found in _NAME.finditer(text) if found[1] not in _WORDS and not found[2] and not found[1].isdigit()
    }
    return Names(frozenset(metrics), matchers, frozenset(grouped))


def _matchers(text: str, strings: list[str]) -> Iterator[Matcher]:
    for selector in _SELECTOR.finditer(text):
        conditions = [part.strip() for part in selector[2].split(",") if part.strip()]
        for condition in conditions:
            found = _MATCHER.fullmatch(condition)
            if found is None:
                raise ValueError(f"cannot read the condition {condition!r} on {selector[1]}")
            yield Matcher(selector[1], found[1], found[2], strings[int(found[3].strip("\x00"))])
