"""Take a replica that is registered no more out of the source's manifests.

An entry that stays has no effect, for nobody is registered under its name: a tombstone waits for registered replicas
only, and a pin runs out. Who removes a replica takes its entries out; a round that was under way puts one back with its
cursor, so whoever replicated takes them out once more when it finds the registration gone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final

from keyfold.clock import Clock
from keyfold.errors import KeyfoldError
from keyfold.log import catalog
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold_compactor.replica.desk.documents import Registration
from keyfold_compactor.replica.desk.link import Side
from keyfold_compactor.replica.desk.registry import NotRegistered, Registry

_AT_ONCE: Final = 16


def drop_holds(source: Side, hold_name: str, clock: Clock, random: Random) -> list[str]:
    """Drop its entries, where there are any; why not, for each that stays. Raises what listing the logs raises."""

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


def drop_holds_if_removed(registration: Registration, source: Side, clock: Clock, random: Random) -> list[str]:
    """The same for a replica that was removed, or begins anew elsewhere. Raises also what reading that raises."""
    registry = Registry(source.store, source.topics_dir, clock, Random(random.getrandbits(64)))
    try:
        is_held = registry.load(registration.name).hold_name == registration.hold_name
    except NotRegistered:
        is_held = False
    return [] if is_held else drop_holds(source, registration.hold_name, clock, random)
