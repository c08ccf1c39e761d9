"""Find the replicas for which a run holds tombstones; read once, at the start of each run.

An unknown replica holds tombstones, too. A registration that cannot be read counts as one for all topics that has
received nothing. If the names cannot be listed, an unknown replica counts. So a mistake in permissions or in an object
costs space, for at most `replica.hold.max.ms`, but never a tombstone that a replica needs.

A replica that is registered during a run does not matter to that run. It starts with the log as it is then, and has no
deleted key that it could keep.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Final

from keyfold.errors import BucketMissing, ConfigError, KeyfoldError
from keyfold.replicas.documents import Registration
from keyfold.replicas.registry import NotRegistered, ReplicaRegistry
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore

UNKNOWN: Final = "(unknown)"
"""Stands for replicas whose names could not be listed."""


@dataclass(frozen=True, slots=True)
class ReplicaHolds:
    """The replicas of a log directory. `unreadable` are names; `problems` say what could not be read, and why."""

    registrations: tuple[Registration, ...] = ()
    unreadable: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def of(self, topic: str) -> tuple[str, ...]:
        """Return the replicas that hold a topic's tombstones, by their names in manifests (`Hold.replica`)."""
        return (*(r.hold_name for r in self.registrations if r.covers(topic)), *self.unreadable)


def load_replica_holds(
    store: ObjectStore, topics_dir: str, clock: Clock, random: Random, topics: Collection[str] = ()
) -> ReplicaHolds:
    """List the registrations and GET each of them. Raise errors that a retry may cure, and `BucketMissing`.

    A replica holds the tombstones of all topics if it cannot be determined in time whether it takes one of `topics`.
    """
    registry = ReplicaRegistry(store, topics_dir, clock, random)
    try:
        names = registry.names()
    except BucketMissing:
        raise
    except KeyfoldError as error:
        if error.retriable:
            raise
        return ReplicaHolds(unreadable=(UNKNOWN,), problems=(f"the list of replicas cannot be read: {error}",))
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
    return ReplicaHolds(tuple(found), tuple(unreadable), tuple(problems))
