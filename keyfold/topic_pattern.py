"""`topics.regex`: which topics it matches, within bounded time.

Python's regular expressions backtrack, as Java's do: `(a+)+b` takes longer than a life for sixty `a` without a `b`,
and holds up every thread of the process meanwhile. Somebody may send such a one to the REST API only to have it
checked, or write it into the registration of a replica. So one that could be slow (it repeats what itself repeats or
branches, or does so often) is tried in a process of its own, which is given up after `WITHIN_S`. All others are
matched as they are: at most two repetitions, over 249 letters.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from keyfold.errors import ConfigError

KEY: Final = "topics.regex"
WITHIN_S: Final = 2.0
LENGTH_MAX: Final = 10_000
_KNOWN_MAX: Final = 100_000
_REPETITIONS_MAX: Final = 2
_BRANCHES_MAX: Final = 8

# What is no repetition and no branch, though it looks like one: escaped signs, classes of signs, the mark of a group.
_INERT: Final = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\(\?", re.DOTALL)
# Flags, comments, conditions and references back: they change what other signs mean, and nobody needs them for topics.
_ODD: Final = re.compile(r"\(\?[a-zA-Z#(-]*[aiLmsux#(=-]|\\[1-9]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]")
_REPETITION: Final = re.compile(r"[*+?{]")
_PROGRAM: Final = (
    "import json, re, sys; regex, texts = json.load(sys.stdin); match = re.compile(regex).fullmatch; "
    "json.dump([match(text) is not None for text in texts], sys.stdout)"
)


class TopicPattern:
    """A regular expression that must match a whole name. May be used by many threads; remembers what it has matched."""

    def __init__(self, regex: str, known_max: int = _KNOWN_MAX, within_s: float = WITHIN_S) -> None:
        """Remember at most `known_max` names. An expression that may be slow is given up after `within_s`.

        Raises `ConfigError` where `regex` is invalid or too long.
        """
        if len(regex) > LENGTH_MAX:
            raise ConfigError(KEY, f"has {len(regex)} characters; the limit is {LENGTH_MAX}")
        try:
            self._compiled = re.compile(regex)
        except (re.error, OverflowError) as error:
            raise ConfigError(KEY, f"is not a valid regular expression: {error}") from error
        except RecursionError as error:
            raise ConfigError(KEY, "is not a valid regular expression: it is nested too deeply") from error
        self._may_be_slow = may_be_slow(regex)
        self._known_max = known_max
        self._within_s = within_s
        self._known: dict[str, bool] = {}
        self._lock = threading.Lock()

    def matches(self, name: str) -> bool:
        """Whether it matches this name. Raises `ConfigError` where that cannot be told in time."""
        return name in self.choose((name,))

    def choose(self, names: Iterable[str]) -> list[str]:
        """The names that it matches, in name order. Raises `ConfigError` where that cannot be told in time."""
        if not self._may_be_slow:
            return sorted(name for name in names if self._compiled.fullmatch(name))
        names = set(names)
        with self._lock:  # whoever asks for the same waits for its answer
            unknown = [name for name in names if name not in self._known]
            if len(self._known) + len(unknown) > self._known_max:
                self._known.clear()
                unknown = list(names)
            if unknown:
                matched = _matched_elsewhere(self._compiled.pattern, unknown, self._within_s)
                self._known.update(zip(unknown, matched, strict=True))
            return sorted(name for name in names if self._known[name])


@functools.lru_cache(maxsize=64)
def topic_pattern(regex: str) -> TopicPattern:
    """The same pattern for the same text. Raises `ConfigError`."""
    return TopicPattern(regex)


def may_be_slow(regex: str) -> bool:
    """Whether matching could take much longer than the name is long. True of many that are quick."""
    bare = _INERT.sub("x", regex)
    return (
        _ODD.search(regex) is not None
        or _REPEATED_GROUP.search(bare) is not None
        or len(_REPETITION.findall(bare)) > _REPETITIONS_MAX
        or bare.count("|") > _BRANCHES_MAX
    )


def _matched_elsewhere(regex: str, names: Sequence[str], within_s: float) -> list[bool]:
    try:
        ended = subprocess.run(  # noqa: S603 - this very Python
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            input=json.dumps([regex, names]),
            capture_output=True,
            text=True,
            timeout=within_s,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            KEY,
            f"took longer than {within_s:g} s to match {len(names)} topics, such as {names[0]}",
            hint="do not repeat a group that itself repeats or can match in more than one way, such as "
            "(a+)+ and (a|a)*",
        ) from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(KEY, f"could not be tested: {error}") from error
    found: list[bool] = json.loads(ended.stdout)
    return found
