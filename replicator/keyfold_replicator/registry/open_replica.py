"""From a registration to what a `Runner` needs: both sides, settings, and a source of the current registration.

    source       a store that the caller has opened; `side` makes a side of it
    replica      opened here, with the registration's endpoint, region, credentials and encryption
    documents    the registration and the replica's permissions, read again whenever the runner asks

A `Runner` is made for one version of a registration. If more than its topics or its pause changes (another bucket,
other credentials), the documents report that it is gone, and the service opens the replica again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final

from keyfold.config.allowed_credentials import AllowedCredentials
from keyfold.replicas.documents import Enablement, Registration
from keyfold.replicas.registry import EnablementStore, NotRegistered, ReplicaRegistry
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore
from keyfold.store.location import OpenLocation, host_of, open_location
from keyfold.store.pacing import Pacer
from keyfold_replicator.registry.replica_pair import DesiredReplication, LogDirectory, ReplicaPair, ReplicaSettings
from keyfold_replicator.state.retry import RoundBackoff

# Changes that a running runner applies; all others need a new one.
_FOLLOWED_KEYS: Final = frozenset({"topics", "topics.regex"})
_DEFAULTS: Final = ReplicaSettings()


def side(store: ObjectStore, topics_dir: str) -> LogDirectory:
    """Return one side of a pair, for an open store."""
    return LogDirectory(store, topics_dir, f"{store.url}/{topics_dir}".rstrip("/"), host_of(store))


def replica_side(
    registration: Registration,
    allowed: AllowedCredentials,
    *,
    pacer: Pacer | None = None,
    environ: Mapping[str, str] | None = None,
    opener: OpenLocation = open_location,
    max_connections: int = 16,
) -> LogDirectory:
    """Open the replica's side. Raise `ConfigError` if a credential is not allowed or cannot be resolved."""
    found = os.environ if environ is None else environ
    location = registration.location(found, allowed, max_connections=max_connections)
    return side(opener(location, pacer), registration.topics_dir)


def pair(registration: Registration, source: LogDirectory, replica: LogDirectory) -> ReplicaPair:
    """Return a registered replica with both its sides."""
    return ReplicaPair(registration.name, registration.hold_name, source, replica)


def settings(registration: Registration, base: ReplicaSettings = _DEFAULTS) -> ReplicaSettings:
    """Return `base` with the registration's settings. Raise `ConfigError`."""
    options = registration.options
    return replace(
        base,
        pin_min_bytes=options.pin_min_bytes,
        retry=RoundBackoff(options.backoff_ms, options.backoff_max_ms),
        file_delete_delay_ms=options.file_delete_delay_ms,
    )


def close(store: ObjectStore) -> None:
    """Close a store, if it can be closed."""
    shut = getattr(store, "close", None)
    if shut is not None:
        shut()


class RegisteredDocuments:
    """The `ReplicaDocuments` of a registered replica."""

    def __init__(
        self, registration: Registration, source: LogDirectory, replica: LogDirectory, clock: Clock, random: Random
    ) -> None:
        self._registration = registration
        self._registry = ReplicaRegistry(source.store, source.topics_dir, clock, Random(random.getrandbits(64)))
        self._enablement_store = EnablementStore(
            replica.store, replica.topics_dir, clock, Random(random.getrandbits(64))
        )

    def load_desired(self) -> DesiredReplication | None:
        """See `ReplicaDocuments.load_desired`; None also if the registration needs another runner. One GET."""
        try:
            found = self._registry.load(self._registration.name)
        except NotRegistered:
            return None
        if is_other(self._registration, found):
            return None
        return DesiredReplication(found.is_paused, found.covers)

    def load_enablement(self) -> Enablement:
        """See `ReplicaDocuments.load_enablement`."""
        return self._enablement_store.load()


def is_other(before: Registration, now: Registration) -> bool:
    """Whether a runner that was made for `before` cannot be used for `now`."""
    return now.cursor_id != before.cursor_id or _fixed(now) != _fixed(before)


def _fixed(registration: Registration) -> dict[str, str]:
    return {key: value for key, value in registration.config.items() if key not in _FOLLOWED_KEYS}
