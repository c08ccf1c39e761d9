"""The rounds around a promotion: whatever the registration says of pauses, the source's newest version is carried."""

from __future__ import annotations

from collections.abc import Callable

from keyfold_compactor.replica.desk.documents import Enablement, Registration
from keyfold_compactor.replica.desk.link import Link, Orders, Side
from keyfold_compactor.replica.desk.opening import settings
from keyfold_compactor.replica.desk.registry import EnablementBook
from keyfold_compactor.replica.promotion.steps import EVERYTHING
from keyfold_compactor.replica.rounds.service import Means, runner_of


class _OpenDesk:
    """A `Desk` that never pauses."""

    def __init__(self, covers: Callable[[str], bool], book: EnablementBook) -> None:
        self._orders = Orders(covers=covers)
        self._book = book

    def orders(self) -> Orders:
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
    means: Means,
) -> dict[tuple[str, int], str]:
    """Carry what is left; why that failed, by topic and partition.

    Where nothing could be done at all, the reason is under `EVERYTHING`. Without a registration (it was removed) the
    defaults hold, and the source keeps no note of what the replica has.
    """
    book = EnablementBook(replica.store, replica.topics_dir, means.clock, means.dice())
    hold_name = name if registration is None else registration.hold_name
    going_by = means.settings if registration is None else settings(registration, means.settings)
    between = Link(name, hold_name, source, replica)
    with runner_of(between, _OpenDesk(covers, book), going_by, means) as runner:
        found = runner.once()
    if found.error:
        return {EVERYTHING: found.error}
    return {(s.place.topic, s.place.partition): f"{s.code}: {s.message}" for s in found.failed}
