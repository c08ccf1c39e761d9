"""The last rounds of a promotion: copy the source's newest version, even if the replica is paused."""

from __future__ import annotations

from collections.abc import Callable

from keyfold.replicas.documents import Enablement, Registration
from keyfold.replicas.registry import EnablementStore
from keyfold_replicator.promotion.steps import EVERYTHING
from keyfold_replicator.registry.open_replica import settings
from keyfold_replicator.registry.replica_pair import DesiredReplication, LogDirectory, ReplicaPair
from keyfold_replicator.rounds.service import ReplicationContext, runner_of


class _PromotionDocuments:
    """`ReplicaDocuments` that never pause."""

    def __init__(self, covers: Callable[[str], bool], enablement_store: EnablementStore) -> None:
        self._desired = DesiredReplication(covers=covers)
        self._enablement_store = enablement_store

    def load_desired(self) -> DesiredReplication:
        """See `ReplicaDocuments.load_desired`."""
        return self._desired

    def load_enablement(self) -> Enablement:
        """See `ReplicaDocuments.load_enablement`."""
        return self._enablement_store.load()


def last_round(
    source: LogDirectory,
    replica: LogDirectory,
    name: str,
    registration: Registration | None,
    covers: Callable[[str], bool],
    context: ReplicationContext,
) -> dict[tuple[str, int], str]:
    """Copy what is left; return errors by topic and partition.

    If nothing could be done at all, the error is under `EVERYTHING`. Without a registration (it was removed) the
    defaults apply, and the source has no cursor of the replica.
    """
    enablement_store = EnablementStore(replica.store, replica.topics_dir, context.clock, context.new_random())
    hold_name = name if registration is None else registration.hold_name
    replica_settings = context.settings if registration is None else settings(registration, context.settings)
    replica_pair = ReplicaPair(name, hold_name, source, replica)
    with runner_of(replica_pair, _PromotionDocuments(covers, enablement_store), replica_settings, context) as runner:
        found = runner.once()
    if found.error:
        return {EVERYTHING: found.error}
    return {(s.place.topic, s.place.partition): f"{s.code}: {s.message}" for s in found.failed}
