"""A source that is written and cleaned, and two processes that replicate it, in any order of their requests.

Everything is deleted as early as the rules allow. Whatever happens, each version of the replica is a state that the
source had, of objects that are there, in the source's order; and once it is quiet, one round makes both sides equal and
leaves no garbage. The mistakes at the end are each found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from keyfold.errors import IsReplica, KeyfoldError, ReplicaDiverged
from keyfold.log.manifest import content
from keyfold.store.api import ObjectStore
from keyfold.store.wrappers.faults import Chaos, FaultKind, FaultyStore, SimulatedCrash
from tests.support.interleave import Interleaving
from tests.support.replica_twins import Replicator, Twins, appends, cleans, name_of

SEEDS = st.integers(0, 2**63)
DYING = (*FaultKind,)
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a smaller seed is no simpler


def play(twins: Twins, random: Random, *, rate: float = 0.0, **mistakes: Any) -> None:
    """A source of two writers, two replicators with one name; each process dies of its crash, and another comes."""
    plays = Interleaving(random)
    stores: list[FaultyStore] = []

    def store(inner: ObjectStore) -> FaultyStore:
        chaos = Chaos(Random(random.getrandbits(64)), rate, DYING, lands_after_max=30) if rate else None
        stores.append(FaultyStore(inner, chaos=chaos, on_call=plays.pause))
        return stores[-1]

    def lives(life: Callable[[], Callable[[], None]], count: int = 3) -> Callable[[], None]:
        def act() -> None:
            for _ in range(count):
                with contextlib.suppress(SimulatedCrash):
                    life()()
                    return

        return act

    plays.add("sink", lives(lambda: appends(twins, store(twins.a), 4)))
    plays.add("compactor", lives(lambda: cleans(twins, store(twins.a), 4)))
    for name in ("one", "two"):
        plays.add(name, lives(lambda: Replicator(twins, store(twins.a), store(twins.b), **mistakes).rounds(4)))
    plays.run()
    order = list(stores)
    random.shuffle(order)
    for late in order:
        late.land()
    twins.check()


def settled(twins: Twins) -> None:
    """One process more, alone: now both sides are equal, and nothing is left that neither names."""
    replicator = Replicator(twins, twins.a, twins.b)
    assert replicator.round()
    twins.clock.advance(10_000)
    assert replicator.round()
    twins.check()
    source, manifest = twins.a.manifest, twins.b.manifest
    assert source is not None
    assert manifest is not None
    assert content(source) == content(manifest)
    assert twins.b.names() == manifest.object_names() | {r.name for r in manifest.replaced}
    hold = source.hold("b")
    assert hold is not None
    assert (hold.received_to, hold.version) == (source.next_offset, -1)
    version = manifest.version
    assert replicator.round()
    assert twins.b.manifest is not None
    assert twins.b.manifest.version == version, "a round with nothing to do commits something"


def begun(seed: int, **options: Any) -> tuple[Twins, Random]:
    random = Random(seed)
    twins = Twins(random, **options)
    twins.log(twins.a).create()
    return twins, random


@pytest.mark.sharded
@settings(max_examples=50, deadline=None, phases=PHASES)
@given(SEEDS, st.sampled_from([0.0, 0.0, 0.02, 0.08]), st.booleans(), st.sampled_from([0, 30_000]))
def test_a_replica_only_ever_has_a_state_of_its_source(seed: int, rate: float, pins: bool, delay_ms: int) -> None:
    twins, random = begun(seed, pins=pins, delay_ms=delay_ms)
    play(twins, random, rate=rate)
    settled(twins)


@pytest.mark.sharded
@settings(max_examples=25, deadline=None, phases=PHASES)
@given(SEEDS)
def test_a_round_with_a_hold_never_has_to_start_over(seed: int) -> None:
    twins, random = begun(seed, pins=True)
    play(twins, random)
    assert twins.thrown_back == 0


@pytest.mark.sharded
@settings(max_examples=25, deadline=None, phases=PHASES)
@given(SEEDS, st.sampled_from([0.0, 0.05]))
def test_roles_are_switched_and_switched_back_while_all_services_run(seed: int, rate: float) -> None:
    """Switch over in the middle of the play; what was the source follows, and takes over again."""
    twins, random = begun(seed)
    play(twins, random, rate=rate)
    settled(twins)
    for source, target in ((twins.a, twins.b), (twins.b, twins.a), (twins.a, twins.b)):
        plays = Interleaving(random)
        paused = FaultyStore(source, on_call=plays.pause)
        replicas = FaultyStore(target, on_call=plays.pause)
        promoted = FaultyStore(target, on_call=plays.pause)
        plays.add("sink", refused(appends(twins, paused, 3)))
        plays.add("compactor", refused(cleans(twins, paused, 3)))
        plays.add("rounds", refused(Replicator(twins, paused, replicas).rounds(3)))
        plays.add("switch", partial(switch_over, twins, paused, promoted))
        plays.run()
        twins.check()
        assert source.manifest is not None
        assert target.manifest is not None
        assert (source.manifest.is_replica, target.manifest.is_replica) == (True, False)
        appends(twins, target, 2)()
        back = Replicator(twins, target, source)
        assert back.round()
        twins.check()
        assert content(source.manifest) == content(target.manifest)


def refused(act: Callable[[], None]) -> Callable[[], None]:
    """An actor of the old source finds out that it is one no more."""

    def body() -> None:
        with contextlib.suppress(IsReplica, ReplicaDiverged):
            act()

    return body


def switch_over(twins: Twins, source: ObjectStore, target: ObjectStore) -> None:
    """What `keyfold replica promote` does where the source answers."""
    log = twins.log(source)
    error: KeyfoldError | None = None
    for _ in range(50):
        replicator = Replicator(twins, source, target)
        try:
            if not replicator.round():
                continue
            assert replicator.session is not None
            replica = replicator.session.manifest
            assert replica is not None
            if not log.load().manifest.is_replica:
                log.demote(replica, name=name_of(source), source_url=target.url)
            while not replicator.round():
                pass
            replicator.session.promote(log.load().manifest)
        except KeyfoldError as e:
            error = e
        else:
            return
    raise AssertionError from error
