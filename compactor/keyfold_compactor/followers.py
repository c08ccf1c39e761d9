"""For which replicas a run holds tombstones: read once, at the beginning of each run.

Who is not known holds: a registration that cannot be read counts as one of all topics that has received nothing, and
where not even their names can be had, so does an unknown replica. So a mistake in rights or in an object costs space,
for `replica.hold.max.ms` at most, and never a tombstone that a replica needed.

A replica that is registered while a run is at work is none of its business: the replica begins with what the log is
then, and has no deleted key that it could have kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from keyfold.clock import Clock
from keyfold.errors import BucketMissing, ConfigError, KeyfoldError
from keyfold.store.api import ObjectStore
from keyfold_compactor.replica.desk.documents import Registration
from keyfold_compactor.replica.desk.registry import NotRegistered, Registry

UNKNOWN: Final = "(unknown)"
"""Stands for replicas whose names could not be had."""


@dataclass(frozen=True, slots=True)
class Followers:
    """The replicas of a log directory. `unreadable` are names; `problems` say what could not be read, and why."""

    registrations: tuple[Registration, ...] = ()
    unreadable: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, topic: str) -> tuple[str, ...]:
        """Who holds a topic's tombstones, as manifests call them (`Hold.replica`)."""
        return (*(r.hold_name for r in self.registrations if r.covers(topic)), *self.unreadable)


def plain_names(hold_names: Sequence[str]) -> tuple[str, ...]:
    """The names of replicas as people know them."""
    return tuple(name.partition("@")[0] for name in hold_names)


def load_followers(
    store: ObjectStore, topics_dir: str, clock: Clock, random: Random, topics: Collection[str] = ()
) -> Followers:
    """One listing, and a GET for each replica. Raises what a try later may mend, and `BucketMissing`.

    A replica of which it cannot be told in time whether it takes one of `topics` holds the tombstones of all topics.
    """
    registry = Registry(store, topics_dir, clock, random)
    try:
        names = registry.names()
    except BucketMissing:
        raise
    except KeyfoldError as error:
        if error.retriable:
            raise
        return Followers(unreadable=(UNKNOWN,), problems=(f"the list of replicas cannot be read: {error}",))
    found: list[Registration] = []
    unreadable: list[str] = []
    problems: list[str] = []
    for name in names:
        try:
            registration = registry.load(name)
        except NotRegistered:
            continue  # removed since the listing
        except KeyfoldError as error:
            if error.retriable:
                raise
            unreadable.append(name)
            problems.append(f"the registration of replica {name} cannot be read: {error}")
            continue
        try:
            registration.choose(topics)
            found.append(registration)
        except ConfigError as error:
            unreadable.append(registration.hold_name)
            problems.append(f"the topics of replica {name} cannot be determined: {error}")
    return Followers(tuple(found), tuple(unreadable), tuple(problems))
