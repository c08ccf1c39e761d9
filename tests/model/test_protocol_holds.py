"""No state that must not be can be reached: sinks, compactors, gc and readers, in every order, with faults.

The small worlds are explored to their end in every run. The large ones (`make soak`) stop at a number of states if
they must. A violation prints the shortest way to it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from tests.model import truth
from tests.model.rules import Bounds
from tests.model.search import explore
from tests.model.world import World

# Deep enough to pass every kind of step; set it higher for a night's run.
SOAK_STATES = int(os.environ.get("KEYFOLD_MODEL_STATES", "200000"))


@dataclass(frozen=True, slots=True)
class Case:
    """A world by name."""

    name: str
    bounds: Bounds
    kafka: truth.KafkaLog = truth.FOUR


SMALL = [
    Case("two sinks, a fault", Bounds(sinks=2, faults=1, reader=False)),
    Case("two sinks and a reader", Bounds(sinks=2, cuts=(2,))),
    Case("a sink with two starts and two faults", Bounds(sinks=1, starts=2, faults=2, reader=False)),
    Case(
        "zombies: two sinks with two starts",
        Bounds(sinks=2, starts=2, faults=1, reader=False, cuts=(2,), watch_owner=True, gc=False),
    ),
    Case("a pass, two faults", Bounds(compactors=1, stored=(1, 2, 4), faults=2, forgets=False)),
    Case("two passes, a fault", Bounds(compactors=1, passes=2, stored=(2, 4), faults=1)),
    Case(
        "three passes, nothing is waited for",
        Bounds(compactors=1, passes=3, stored=(1, 3, 4), timely=False, gc=False),
    ),
    Case("two compactors and a reader", Bounds(compactors=2, stored=(1, 4))),
    Case(
        "two compactors with leases, a fault",
        Bounds(compactors=2, stored=(1, 4), faults=1, reader=False, leases=True),
    ),
    Case("a sink, a compactor and a reader, a fault", Bounds(sinks=1, compactors=1, faults=1, cuts=(2,))),
    Case("a pass in parts", Bounds(compactors=1, passes=2, parts=1, stored=(1, 2, 4), gc=False)),
    Case(
        "a pass in parts, nothing is waited for",
        Bounds(compactors=1, passes=2, parts=1, stored=(1, 2, 3), timely=False, gc=False),
        truth.TWO_TOMBSTONES,
    ),
    Case(
        "a key that returns after its tombstone",
        Bounds(compactors=1, passes=3, stored=(1, 2, 4), timely=False, gc=False),
        truth.RETURNS,
    ),
    Case(
        "offsets without records",
        Bounds(sinks=1, compactors=1, passes=2, stored=(1,), timely=False, gc=False, cuts=(1, 3)),
        truth.HOLE,
    ),
    Case(
        "a log that is emptied and goes on",
        Bounds(sinks=1, compactors=1, passes=2, stored=(1, 2), timely=False, gc=False),
        truth.EMPTIED,
    ),
    Case(
        "retention beside a pass",
        Bounds(compactors=1, passes=3, expires=2, stored=(1, 2, 4), timely=False, gc=False),
    ),
    Case("retention beside a sink", Bounds(sinks=1, compactors=1, expires=1, stored=(1, 2), gc=False)),
    Case(
        "a log that expires as a whole and goes on",
        Bounds(sinks=1, compactors=1, expires=2, stored=(2,), timely=False, cuts=(1, 2), gc=False),
        truth.RETURNS,
    ),
    Case("what expired is collected", Bounds(compactors=1, expires=1, stored=(1, 4), faults=1)),
    Case(
        "retention between the parts of a pass",
        Bounds(compactors=1, passes=2, parts=1, expires=1, stored=(1, 2, 3, 4), gc=False),
    ),
    Case(
        "retention by a second compactor between two parts",
        Bounds(compactors=2, parts=1, expires=1, stored=(1, 2, 4), gc=False, reader=False),
    ),
    Case(
        "a lost manifest",
        Bounds(sinks=1, starts=2, compactors=1, faults=1, reader=False, cuts=(2,), manifest_may_be_lost=True),
    ),
]

LARGE = [
    Case("two sinks and a reader, a fault", Bounds(sinks=2, faults=1)),
    Case("two sinks, two faults", Bounds(sinks=2, faults=2, reader=False)),
    Case("two passes, a fault, three segments", Bounds(compactors=1, passes=2, stored=(1, 2, 4), faults=1)),
    Case("two passes, two faults", Bounds(compactors=1, passes=2, stored=(1, 4), faults=2)),
    Case("three passes of four segments", Bounds(compactors=1, passes=3, stored=(1, 2, 3, 4))),
    Case(
        "three passes, a fault, nothing is waited for",
        Bounds(compactors=1, passes=3, stored=(1, 2, 4), faults=1, timely=False),
    ),
    Case("five records, three passes", Bounds(compactors=1, passes=3, stored=(1, 3, 5)), truth.FIVE),
    Case("five records, three passes, a fault", Bounds(compactors=1, passes=3, stored=(1, 3, 5), faults=1), truth.FIVE),
    Case("two compactors, a fault", Bounds(compactors=2, stored=(1, 2, 4), faults=1)),
    Case("two compactors, two passes each", Bounds(compactors=2, passes=2, stored=(1, 4))),
    Case("two compactors, two faults", Bounds(compactors=2, stored=(1, 4), faults=2)),
    Case("a sink and two passes", Bounds(sinks=1, compactors=1, passes=2, cuts=(1, 2))),
    Case("a sink with two starts and two passes, a fault", Bounds(sinks=1, starts=2, compactors=1, passes=2, faults=1)),
    Case(
        "a sink and two passes, nothing is waited for",
        Bounds(sinks=1, compactors=1, passes=2, faults=1, cuts=(1, 2), timely=False),
    ),
    Case("two sinks and two compactors", Bounds(sinks=2, compactors=2, cuts=(2,))),
    Case("two sinks and a compactor, a fault", Bounds(sinks=2, compactors=1, faults=1, reader=False, cuts=(2,))),
    Case("parts, collected", Bounds(compactors=1, passes=2, parts=1, stored=(1, 2, 4))),
    Case("two compactors with leases and a reader", Bounds(compactors=2, stored=(1, 4), faults=1, leases=True)),
    Case("parts, a fault", Bounds(compactors=1, passes=2, parts=1, stored=(1, 2, 3, 4), faults=1)),
    Case(
        "parts, a fault, nothing is waited for",
        Bounds(compactors=1, passes=2, parts=1, stored=(1, 2, 4), faults=1, timely=False),
    ),
    Case("an emptied log, a fault", Bounds(sinks=1, compactors=1, passes=2, stored=(1, 2), faults=1), truth.EMPTIED),
    Case("holes, a fault", Bounds(sinks=1, compactors=1, passes=2, stored=(1,), faults=1, timely=False), truth.HOLE),
    Case(
        "retention, a sink and two passes, a fault",
        Bounds(sinks=1, compactors=1, passes=2, expires=1, stored=(1, 2), faults=1),
    ),
    Case(
        "retention, a sink and a pass in parts, nothing is waited for",
        Bounds(sinks=1, compactors=1, parts=1, expires=2, stored=(1, 2), faults=1, timely=False),
        truth.FIVE,
    ),
    Case(
        "retention by two compactors, parts, a reader",
        Bounds(compactors=2, parts=1, expires=2, stored=(1, 2, 4), timely=False),
    ),
    Case(
        "a lost manifest, two sinks",
        Bounds(sinks=2, starts=2, compactors=1, faults=1, reader=False, cuts=(2,), manifest_may_be_lost=True),
    ),
]


@pytest.mark.sharded
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_no_invariant_is_violated(case: Case) -> None:
    result = explore(World(case.kafka, bounds=case.bounds))
    print(f"{case.name}: {result}")
    assert result.holds, str(result)
    assert result.is_complete


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", LARGE, ids=lambda c: c.name)
def test_no_invariant_is_violated_in_a_large_world(case: Case) -> None:
    result = explore(World(case.kafka, bounds=case.bounds), limit=SOAK_STATES)
    print(f"{case.name}: {result}")
    assert result.holds, str(result)
