"""Topics that `topics.regex` matches, within bounded time.

Python's regular expressions backtrack, like Java's: `(a+)+b` practically never ends for sixty `a` without a `b`, and
blocks every thread of the process. A client can send such an expression to the REST API for validation, or write it
into the registration of a replica. So an expression that could be slow (it repeats a group that repeats or branches, or
has many repetitions) is tried in a separate process, which is killed after `WITHIN_S`. All others are matched directly:
they have at most two repetitions, over 249 letters.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from keyfold.errors import ConfigError

KEY: Final = "topics.regex"
WITHIN_S: Final = 2.0
LENGTH_MAX: Final = 10_000
_KNOWN_MAX: Final = 100_000
_REPETITIONS_MAX: Final = 2
_BRANCHES_MAX: Final = 8

# Text that looks like a repetition or a branch but is none: escapes, character classes, the start of a group.
_INERT: Final = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\(\?", re.DOTALL)
# Flags, comments, conditions and back references change the meaning of other characters; topics do not need them.
_ODD: Final = re.compile(r"\(\?[a-zA-Z#(-]*[aiLmsux#(=-]|\\[1-9]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]")
_REPETITION: Final = re.compile(r"[*+?{]")
_PROGRAM: Final = (
    "import json, re, sys; regex, texts = json.load(sys.stdin); match = re.compile(regex).fullmatch; "
    "json.dump([match(text) is not None for text in texts], sys.stdout)"
)


class TopicPattern:
    """A regular expression that must match a whole name. Thread-safe; caches its results."""

    def __init__(self, regex: str, known_max: int = _KNOWN_MAX, within_s: float = WITHIN_S) -> None:
        """Cache the results of at most `known_max` names. Stop a slow match after `within_s`.

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
        """Return whether the expression matches this name. Raises `ConfigError` if it takes too long."""
        return name in self.choose((name,))

    def choose(self, names: Iterable[str]) -> list[str]:
        """Return the names that match, in order. Raises `ConfigError` if that takes too long."""
        if not self._may_be_slow:
            return sorted(name for name in names if self._compiled.fullmatch(name))
        names = set(names)
        with self._lock:  # other callers wait for the answer
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
    """Return the cached pattern for this text. Raises `ConfigError`."""
    return TopicPattern(regex)


def may_be_slow(regex: str) -> bool:
    """Return whether matching could take much longer than linear time. Also true for many fast expressions."""
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


def topic_mistakes(topics: Sequence[str], regex: str) -> Iterator[ConfigError]:
    """Yield the mistakes of a choice of topics: by name, by a regular expression, or neither, which means all."""
    if topics and regex:
        yield ConfigError("topics.regex", "`topics` and `topics.regex` are both set", hint="set one of them")
    try:
        topic_pattern(regex)
    except ConfigError as error:
        yield error
