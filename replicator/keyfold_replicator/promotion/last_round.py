"""The last rounds of a promotion: copy the source's newest version, even if the replica is paused."""

from __future__ import annotations

from collections.abc import Callable

from keyfold.replicas.documents import Enablement, Registration
from keyfold.replicas.registry import EnablementStore
from keyfold_replicator.promotion.steps import EVERYTHING
from keyfold_replicator.registry.link import DesiredReplication, Link, Side
from keyfold_replicator.registry.opening import settings
from keyfold_replicator.rounds.service import ReplicationContext, runner_of


class _PromotionDocuments:
    """A `Desk` that never pauses."""

    def __init__(self, covers: Callable[[str], bool], book: EnablementStore) -> None:
        self._orders = DesiredReplication(covers=covers)
        self._book = book

    def orders(self) -> DesiredReplication:
        """See `Desk.orders`."""
        return self._orders

    def enablement(self) -> Enablement:
        """See `Desk.enablement`."""
        return self._book.load()


def last_round(
    source: Side,
    replica: Side,
    name: str,
    registration: Registration | None,
    covers: Callable[[str], bool],
    means: ReplicationContext,
) -> dict[tuple[str, int], str]:
    """Copy what is left; return errors by topic and partition.

    If nothing could be done at all, the error is under `EVERYTHING`. Without a registration (it was removed) the
    defaults apply, and the source has no cursor of the replica.
    """
    book = EnablementStore(replica.store, replica.topics_dir, means.clock, means.dice())
    hold_name = name if registration is None else registration.hold_name
    going_by = means.settings if registration is None else settings(registration, means.settings)
    between = Link(name, hold_name, source, replica)
    with runner_of(between, _PromotionDocuments(covers, book), going_by, means) as runner:
        found = runner.once()
    if found.error:
        return {EVERYTHING: found.error}
    return {(s.place.topic, s.place.partition): f"{s.code}: {s.message}" for s in found.failed}
