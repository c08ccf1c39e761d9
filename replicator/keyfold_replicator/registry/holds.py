"""Remove a replica that is no longer registered from the source's manifests.

A remaining entry has no effect: tombstones wait only for registered replicas, and a held version expires. The command
that removes a replica removes its entries. A round in progress may write its cursor afterwards, so the replicator
removes the entries once more when it finds the registration gone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold.log import catalog
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.replicas.documents import Registration
from keyfold.replicas.registry import NotRegistered, ReplicaRegistry
from keyfold.runtime.clock import Clock
from keyfold_replicator.registry.replica_pair import LogDirectory

_AT_ONCE: Final = 16


def drop_holds(source: LogDirectory, hold_name: str, clock: Clock, random: Random) -> list[str]:
    """Remove the entries; return an error for each that stays. Raise what listing the logs raises."""

    def drop(log: PartitionLog) -> str:
        try:
            log.drop_hold(hold_name)
        except KeyfoldError as error:
            return str(error)
        return ""

    def log_of(place: Place) -> PartitionLog:
        return PartitionLog(source.store, place, clock=clock, random=Random(random.getrandbits(64)))

    logs = [log_of(place) for place in catalog.places(source.store, source.topics_dir)]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="keyfold-holds") as pool:
        return [message for message in pool.map(drop, logs) if message]


def drop_holds_if_removed(registration: Registration, source: LogDirectory, clock: Clock, random: Random) -> list[str]:
    """Do the same for a replica that was removed or moved. Raise also what reading the registration raises."""
    registry = ReplicaRegistry(source.store, source.topics_dir, clock, Random(random.getrandbits(64)))
    try:
        is_held = registry.load(registration.name).hold_name == registration.hold_name
    except NotRegistered:
        is_held = False
    return [] if is_held else drop_holds(source, registration.hold_name, clock, random)
