"""What a replica tells its source, for tests of the compactor: how far it has received, and which version it needs."""

from __future__ import annotations

from random import Random

from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import ObjectStore
from tests.support.cleaning import FAST, PLACE


def tell(
    store: ObjectStore,
    name: str,
    *,
    received_to: int | None = None,
    version: int | None = None,
    expires_in_ms: int = 0,
    place: Place = PLACE,
) -> Manifest:
    """Write a replica's entry into a manifest, in the place of the one that it has there."""
    log = PartitionLog(store, place, clock=ManualClock(), random=Random(9), backoff=FAST, retry_timeout_s=2.0)
    return log.hold(name, version, expires_in_ms, received_to).manifest
