"""The replica's protocol holds in small worlds, and the model finds planted mistakes.

Q1 and on are planted bugs, each with the smallest world in which it shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.model import truth
from tests.model.replica_source import History, cleaned
from tests.model.replica_states import ReplicaBounds, ReplicaRules
from tests.model.replica_world import ReplicaWorld
from tests.model.search import explore

LIMIT_STATES = 400_000
SHORT_STATES = 6_000


def short() -> History:
    """Two records, and a pass that unlinks them."""
    return History(truth.FIVE).append(0).append(1).clean()


def deleted() -> History:
    """A key, its tombstone, a pass that marks it, and one that removes it."""
    return History((("A", 1), ("A", None), ("B", 1))).append(0).append(1).clean().append(2).clean(purge=True)


def explored(
    history: History, bounds: ReplicaBounds, rules: ReplicaRules | None = None, limit: int = LIMIT_STATES
) -> str:
    return str(explore(ReplicaWorld(history, bounds, rules), limit=limit))


@pytest.mark.sharded
@pytest.mark.parametrize(
    ("history", "bounds", "rules"),
    [
        pytest.param(short(), ReplicaBounds(1, rounds=3), ReplicaRules(), id="one replicator"),
        pytest.param(short(), ReplicaBounds(1, rounds=3, faults=1), ReplicaRules(), id="one that fails"),
        pytest.param(short(), ReplicaBounds(2, rounds=1), ReplicaRules(), id="two replicators"),
        pytest.param(short(), ReplicaBounds(2, rounds=1, losses=1), ReplicaRules(), id="a manifest that is lost"),
        pytest.param(short(), ReplicaBounds(1, rounds=2, reader=True), ReplicaRules(), id="a reader"),
        pytest.param(
            deleted(), ReplicaBounds(1, rounds=2, reader=True, timely=False), ReplicaRules(), id="a slow reader"
        ),
        pytest.param(cleaned(), ReplicaBounds(1, rounds=2), ReplicaRules(pins=True), id="a pin: never thrown back"),
    ],
)
def test_the_protocol_holds(history: History, bounds: ReplicaBounds, rules: ReplicaRules) -> None:
    result = explore(ReplicaWorld(history, bounds, rules), limit=LIMIT_STATES)
    assert result.holds, str(result)
    assert result.is_complete


@pytest.mark.soak
@pytest.mark.parametrize("history", [short(), deleted(), cleaned()], ids=["short", "deleted", "cleaned"])
@pytest.mark.parametrize("timely", [True, False], ids=["timely", "late"])
def test_the_protocol_holds_in_larger_worlds(history: History, timely: bool) -> None:
    bounds = ReplicaBounds(2, rounds=2, faults=2, reader=True, timely=timely)
    result = explore(ReplicaWorld(history, bounds), limit=LIMIT_STATES)
    print(result)
    assert result.holds, str(result)


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake, a world in which it shows, and what the model must say about it."""

    name: str
    rules: ReplicaRules
    history: History
    bounds: ReplicaBounds
    says: str


PLANTED = [
    Planted(
        "Q1 commits without its epoch",
        ReplicaRules(epoch_required=False, follows_required=False),
        short(),
        ReplicaBounds(2, rounds=2, gc=False),
        "goes back",
    ),
    Planted(
        "Q2 takes over what it has loaded, whatever is there by now",
        ReplicaRules(follows_required=False, loads_after_claim=False),
        short(),
        ReplicaBounds(2, rounds=2, gc=False),
        "goes back",
    ),
    Planted(
        "Q3 leaves out what the source has deleted",
        ReplicaRules(plans_again=False),
        short(),
        ReplicaBounds(1, rounds=1),
        "not there",
    ),
    Planted(
        "Q4 stands on a version that it loaded before its claim",
        ReplicaRules(loads_after_claim=False),
        short(),
        ReplicaBounds(2, rounds=2),
        "not there",
    ),
    Planted(
        "Q5 lists after it has read: what a rival copies meanwhile looks like nobody's",
        ReplicaRules(orphans="source, replica, list"),
        short(),
        ReplicaBounds(2, rounds=2),
        "not there",
    ),
    Planted(
        "Q6 judges orphans by the replica's manifest alone",
        ReplicaRules(orphans="list, replica"),
        short(),
        ReplicaBounds(2, rounds=2),
        "not there",
    ),
    Planted(
        "Q7 deletes garbage without looking whether the epoch is still its own",
        ReplicaRules(orphans="list, source"),
        short(),
        ReplicaBounds(2, rounds=2),
        "not there",
    ),
    Planted(
        "Q8 keeps no list of what it has unlinked: its readers lose it at once",
        ReplicaRules(own_replaced=False),
        short(),
        ReplicaBounds(1, rounds=2, reader=True),
        "404",
    ),
    Planted(
        "Q9 deletes what it has unlinked without waiting",
        ReplicaRules(waits_for_deletion=False),
        short(),
        ReplicaBounds(1, rounds=2, reader=True),
        "404",
    ),
    Planted(
        "Q10 computes what was purged again, instead of copying it",
        ReplicaRules(copies_purges=False),
        deleted(),
        ReplicaBounds(1, rounds=2, reader=True, gc=False),
        "the reader ends with",
    ),
    Planted(
        "Q11 knows its claim by the epoch alone, which comes back when the manifest is created again",
        ReplicaRules(draws_claim_ids=False),
        short(),
        ReplicaBounds(2, rounds=2, losses=1),
        "not there",
    ),
]


@pytest.mark.sharded
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    result = explore(ReplicaWorld(planted.history, planted.bounds, planted.rules), limit=LIMIT_STATES)
    assert not result.holds, f"not found in {result.states} states"
    assert planted.says in result.violation, str(result)


@pytest.mark.sharded
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_the_same_world_holds_without_the_planted_bug(planted: Planted) -> None:
    result = explore(ReplicaWorld(planted.history, planted.bounds), limit=SHORT_STATES)
    assert result.holds, str(result)
