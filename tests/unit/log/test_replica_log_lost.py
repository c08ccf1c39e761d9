"""A replica's manifest that was lost: whose claim comes back with an epoch, and whose does not."""

from __future__ import annotations

import pytest

from keyfold.errors import Fenced, ManifestLost
from keyfold.log.replica_log import ReplicaSession
from keyfold.store.api import Create
from keyfold.store.wrappers.faults import Call, Fault, FaultKind, FaultyStore
from tests.support.replica_both import PLACE, Both


@pytest.fixture
def both() -> Both:
    return Both()


def test_a_lost_manifest_is_not_recreated_by_a_session_that_knew_it(both: Both) -> None:
    session = both.claim()
    session.mirror(both.load())
    both.replica.delete(PLACE.manifest_key)
    both.append(1)
    with pytest.raises(ManifestLost):
        session.mirror(both.load())


def test_recreating_a_replica_after_a_lost_manifest_fences_its_first_creator(both: Both) -> None:
    stalled, parked = both.claim(), both.claim(seed=4)
    stalled.mirror(both.load())
    both.replica.delete(PLACE.manifest_key)
    parked.mirror(both.load())
    parked.park()
    both.replica.delete(PLACE.manifest_key)
    both.append(1)
    restarted = both.claim(seed=3)
    manifest = restarted.mirror(both.load())
    both.append(1)
    assert stalled.epoch == parked.epoch == restarted.epoch
    for act in (
        lambda: stalled.mirror(both.load()),
        lambda: stalled.mirror(both.load(), resync=True),
        lambda: stalled.forget(["any"]),
        stalled.promote,
        stalled.refresh,
        parked.refresh,
    ):
        with pytest.raises(Fenced, match="another replicator has created it again"):
            act()
    assert both.there() == manifest
    restarted.mirror(both.load())


def test_an_epoch_reused_after_a_lost_manifest_is_another_claim(both: Both) -> None:
    both.claim().mirror(both.load())
    stalled = both.claim(seed=3)
    both.replica.delete(PLACE.manifest_key)
    both.claim(seed=4).mirror(both.load())
    looked = both.claim(seed=5)
    assert stalled.epoch == looked.epoch > 1
    both.append(1)
    with pytest.raises(Fenced):
        stalled.mirror(both.load())
    looked.mirror(both.load())


def test_a_claim_does_not_take_a_replica_recreated_meanwhile(both: Both) -> None:
    both.claim().mirror(both.load())
    store = FaultyStore(both.replica)
    lost = Loss(both)
    store.add(Fault(lost.hits, FaultKind.UNAVAILABLE))
    with pytest.raises(Fenced, match="another replicator has created it again"):
        both.claim(store, seed=3)
    assert lost.restarted is not None
    both.append(1)
    lost.restarted.mirror(both.load())


def test_an_epoch_reused_by_an_older_manifest_is_another_claim(both: Both) -> None:
    both.claim().mirror(both.load())
    older = both.replica.get(PLACE.manifest_key).data
    stalled = both.claim(seed=3)
    both.replica.delete(PLACE.manifest_key)
    both.replica.put(PLACE.manifest_key, older, Create())
    later = both.claim(seed=4)
    assert stalled.epoch == later.epoch
    both.append(1)
    with pytest.raises(Fenced):
        stalled.mirror(both.load())
    later.mirror(both.load())


class Loss:
    """During a claim the manifest is lost, and another process starts the replica again."""

    def __init__(self, both: Both) -> None:
        self._both = both
        self.restarted: ReplicaSession | None = None

    def hits(self, call: Call) -> bool:
        if call.operation != "put" or self.restarted is not None:
            return False
        self._both.replica.delete(PLACE.manifest_key)
        self.restarted = self._both.claim(seed=4)
        self.restarted.mirror(self._both.load())
        return True
