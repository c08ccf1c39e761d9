"""IAM's policy language, as far as `infra/iam` uses it: does a set of policies allow a call, and by which words?

    Policy.load("sink", VALUES)          a template of `infra/iam`, filled in
    decide(identity, bucket, call)       what AWS would say: an explicit deny, else an allow, else no

A decision names the words that it stands on (`Word`), so a test can tell which words of a policy nobody needs. An
operator or an element that is not known here is an error: no policy may say what no test understands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any, Final

POLICIES: Final = Path(__file__).parents[2] / "infra" / "iam"
_ELEMENTS: Final = {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}


@dataclass(frozen=True, slots=True)
class Call:
    """One question that a service of AWS asks IAM: an action on a resource, and what is known of the request.

    Names of conditions are in lower case; one that the request does not have is not there.
    """

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        known = ", ".join(f"{name}={value}" for name, value in sorted(self.context.items()))
        return f"{self.action} {self.resource} ({known})"


@dataclass(frozen=True, slots=True)
class Word:
    """One right that a policy gives: an action on a pattern of resources, or one value of a condition."""

    policy: str
    sid: str
    text: str

    def __str__(self) -> str:
        return f"{self.policy}.json, {self.sid}: {self.text}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer. `words` are those of all statements that say it."""

    allowed: bool
    words: frozenset[Word] = frozenset()
    denied_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a policy."""

    policy: str
    sid: str
    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()

    @staticmethod
    def of(policy: str, said: Mapping[str, Any]) -> Statement:
        unknown = set(said) - _ELEMENTS
        if unknown or said["Effect"] not in {"Allow", "Deny"}:
            raise ValueError(f"{policy}: {said.get('Sid')}: {unknown or said['Effect']}")
        conditions = tuple(
            (operator, key.lower(), _all(values))
            for operator, found in said.get("Condition", {}).items()
            for key, values in found.items()
        )
        for operator, _, _ in conditions:
            if operator not in _OPERATORS:
                raise ValueError(f"{policy}: {said['Sid']}: {operator} is not known here")
        return Statement(policy, said["Sid"], said["Effect"], _all(said["Action"]), _all(said["Resource"]), conditions)

    def words(self) -> frozenset[Word]:
        """All that it gives: each action with each resource, and each value that a condition lets through."""
        pairs = {f"{action} on {resource}" for action in self.actions for resource in self.resources}
        return self._named(pairs | {f"{o} {k}: {v}" for o, k, values in self.conditions for v in values})

    def match(self, call: Call) -> frozenset[Word]:
        """The words that the call stands on; none where the statement says nothing about it."""
        pairs = {
            f"{action} on {resource}"
            for action in self.actions
            for resource in self.resources
            if _like(action.lower(), call.action.lower()) and _like(resource, call.resource)
        }
        if not pairs:
            return frozenset()
        for operator, key, values in self.conditions:
            true = _OPERATORS[operator](call.context.get(key), values)
            if true is None:
                return frozenset()
            pairs |= {f"{operator} {key}: {value}" for value in true}
        return self._named(pairs)

    def _named(self, texts: Iterable[str]) -> frozenset[Word]:
        return frozenset(Word(self.policy, self.sid, text) for text in texts)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy document."""

    name: str
    statements: tuple[Statement, ...]

    @staticmethod
    def load(name: str, values: Mapping[str, str]) -> Policy:
        """`infra/iam/<name>.json` with its placeholders filled in. Raises `KeyError` for one that has no value."""
        text = Template((POLICIES / f"{name}.json").read_text()).substitute(values)
        return Policy.parse(name, json.loads(text))

    @staticmethod
    def parse(name: str, document: Mapping[str, Any]) -> Policy:
        """A document that is filled in."""
        if document["Version"] != "2012-10-17":
            raise ValueError(f"{name}: {document['Version']}")
        policy = Policy(name, tuple(Statement.of(name, said) for said in document["Statement"]))
        if len({s.sid for s in policy.statements}) != len(policy.statements):
            raise ValueError(f"{name}: two statements have one Sid")
        return policy

    def words(self) -> frozenset[Word]:
        """All that the policy gives."""
        return frozenset(word for statement in self.statements for word in statement.words())


def decide(identity: Sequence[Policy], bucket: Sequence[Policy], call: Call) -> Decision:
    """What IAM says to somebody of the bucket's account who has the policies `identity`; `bucket` are the bucket's."""
    allowed: set[Word] = set()
    denied: list[str] = []
    for policy in (*identity, *bucket):
        for statement in policy.statements:
            words = statement.match(call)
            if words and statement.effect == "Deny":
                denied.append(f"{statement.policy}.json, {statement.sid}")
            allowed |= words if statement.effect == "Allow" else frozenset()
    if denied:
        return Decision(allowed=False, denied_by=tuple(denied))
    return Decision(allowed=bool(allowed), words=frozenset(allowed))


def _all(values: str | list[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern), re.DOTALL)


def _like(pattern: str, text: str) -> bool:
    """IAM's wildcards: `*` is anything, slashes too; `?` is one character."""
    return _pattern(pattern).fullmatch(text) is not None


Values = tuple[str, ...]


def _null(found: str | None, values: Values) -> Values | None:
    return values if values == ("true" if found is None else "false",) else None


def _bool(found: str | None, values: Values) -> Values | None:
    return values if found is not None and found.lower() in values else None


def _string_equals(found: str | None, values: Values) -> Values | None:
    return (found,) if found is not None and found in values else None


def _string_not_equals(found: str | None, values: Values) -> Values | None:
    return None if found in values else values


def _string_like(found: str | None, values: Values) -> Values | None:
    true = tuple(value for value in values if found is not None and _like(value, found))
    return true or None


def _string_like_if_exists(found: str | None, values: Values) -> Values | None:
    return () if found is None else _string_like(found, values)


_OPERATORS: Final = {
    "Null": _null,
    "Bool": _bool,
    "StringEquals": _string_equals,
    "StringNotEquals": _string_not_equals,
    "StringLike": _string_like,
    "StringLikeIfExists": _string_like_if_exists,
}
"""Operator -> (what the request has, the policy's values) -> the values that make it true; None: it is false."""
