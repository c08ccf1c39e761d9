"""The model finds planted mistakes; otherwise its silence about the protocol would mean nothing.

B1 to B12 are planted bugs, W1 to W9 what the first draft of the design had wrong, P1 and on are mistakes in what was
decided since then (the reader's rule for purges, parts of a pass, indexes of their own), R1 to R4 are retention's.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.model import truth
from tests.model.rules import Bounds, Rules
from tests.model.search import explore
from tests.model.world import World

LIMIT_STATES = 400_000

TWO_SINKS = {"sinks": 2, "compactors": 0}
LONG_LOG = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake, the smallest world in which it shows, and what the model must say about it."""

    name: str
    rules: Rules
    bounds: Bounds
    says: str
    kafka: truth.KafkaLog = truth.FOUR


PLANTED = [
    Planted(
        "B1 commits without its epoch",
        Rules(epoch_required=False),
        Bounds(sinks=2, reader=False),
        "is not there",
    ),
    Planted(
        "B2 appends wherever the log ends",
        Rules(epoch_required=False, next_offset_required=False, orphans="never"),
        Bounds(sinks=2, reader=False),
        "range",
    ),
    Planted(
        "B3 replaces what is not listed any more",
        Rules(epoch_required=False, still_listed_required=False, orphans="never"),
        Bounds(compactors=2, stored=(1, 2, 4), reader=False),
        "",
    ),
    Planted(
        "B4 other bytes under a name whose upload is unknown, 412 taken for its own",
        Rules(names="epoch", upload_unknown="other bytes"),
        Bounds(sinks=1, faults=1),
        "other bytes",
    ),
    Planted(
        "B5 as B4, and uploads are not create-only",
        Rules(names="epoch", upload_unknown="other bytes", create_only=False),
        Bounds(sinks=1, faults=1),
        "other bytes",
    ),
    Planted(
        "B6 removes a tombstone without waiting",
        Rules(waits_for_purge=False),
        Bounds(compactors=1, passes=2, stored=LONG_LOG),
        "timely reader is refused",
    ),
    Planted(
        "B7 removes a tombstone while an older record stays",
        Rules(marks="at once", purge_needs_no_older_record=False),
        Bounds(compactors=1, passes=2, stored=LONG_LOG, reader=False),
        "revived",
    ),
    Planted("B8 orphans by age", Rules(orphans="age"), Bounds(sinks=1, reader=False), "is not there"),
    Planted(
        "B9 deletes what was replaced at once",
        Rules(waits_for_deletion=False),
        Bounds(compactors=1, stored=(1, 2, 4)),
        "404",
    ),
    Planted(
        "B10 concludes from a read that a commit did not land",
        Rules(concludes_from_a_read=True),
        Bounds(sinks=1, faults=1, reader=False),
        "is not there",
    ),
    Planted(
        "B11 a sink removes what it thinks lost",
        Rules(landed_by="commit id", removes_what_it_thinks_lost=True),
        Bounds(sinks=2, faults=1, reader=False),
        "is not there",
    ),
    Planted(
        "B12 parts of one pass use a name again, 412 taken for its own",
        Rules(names="epoch", upload_unknown="other bytes"),
        Bounds(compactors=1, passes=2, parts=1, stored=LONG_LOG, reader=False),
        "",
    ),
    Planted(
        "W1 orphans judged by the compactor's epoch alone",
        Rules(orphans="compactor"),
        Bounds(sinks=1, compactors=1, reader=False),
        "is not there",
    ),
    Planted(
        "W2 unlink time taken when the manifest is built",
        Rules(unlink_stamp="build"),
        Bounds(compactors=1, stored=(1, 2, 4)),
        "404",
    ),
    Planted(
        "W3 delete horizon taken when the pass is planned",
        Rules(pass_stamp="plan"),
        Bounds(compactors=1, passes=2, stored=LONG_LOG),
        "timely reader is refused",
    ),
    Planted(
        "W4 tombstone marked although an older record stays",
        Rules(marks="at once"),
        Bounds(compactors=1, passes=2, stored=LONG_LOG, timely=False),
        "the reader ends",
    ),
    Planted(
        "W5 first_dirty_offset moves over garbage that was skipped",
        Rules(first_dirty="end of range"),
        Bounds(compactors=1, stored=LONG_LOG, reader=False),
        "below first_dirty_offset",
    ),
    Planted(
        "W6 a lost manifest is replaced by an empty one",
        Rules(create_only_where_empty=False),
        Bounds(sinks=2, starts=2, stored=(2,), reader=False, manifest_may_be_lost=True),
        "manifest was lost is deleted",
    ),
    Planted(
        "W7 a sink that lost the race claims over the winner",
        Rules(claim_keeps_expected_epoch=False),
        Bounds(sinks=2, reader=False, watch_owner=True),
        "fences",
    ),
    Planted(
        "W8 an upload of an older epoch is kept over a new claim",
        Rules(names="epoch", upload_unknown="keep over a new claim"),
        Bounds(sinks=1, faults=1, reader=False),
        "is not there",
    ),
    Planted(
        "W9 a compactor removes what it thinks lost",
        Rules(landed_by="commit id", removes_what_it_thinks_lost=True),
        Bounds(compactors=2, faults=1, stored=(1, 2, 4), reader=False),
        "is not there",
    ),
    Planted(
        "P1 a purge is not written into the manifest",
        Rules(records_purges=False),
        Bounds(compactors=1, passes=2, stored=LONG_LOG, timely=False),
        "the reader ends",
    ),
    Planted(
        "P2 a reader that stands on the purged tombstone goes on",
        Rules(resume="<"),
        Bounds(compactors=1, passes=2, stored=LONG_LOG, timely=False),
        "the reader ends",
    ),
    Planted(
        "P3 a reader goes on without asking about purges",
        Rules(resume="unchecked"),
        Bounds(compactors=1, passes=2, stored=LONG_LOG, timely=False),
        "the reader ends",
    ),
    Planted(
        "P4 a part of a pass counts as a whole one",
        Rules(every_part_marks=True, every_part_is_whole=True),
        Bounds(compactors=1, passes=2, parts=1, stored=(1, 2, 3), timely=False, gc=False),
        "the reader ends",
        truth.TWO_TOMBSTONES,
    ),
    Planted(
        "P7 a part of a pass marks, and the pass never comes to its end",
        Rules(every_part_marks=True),
        Bounds(compactors=1, passes=2, parts=1, stored=(1, 2, 4), faults=1, gc=False),
        "timely reader is refused",
    ),
    Planted(
        "P5 a reader stops where its first version ended",
        Rules(reads_to="first end"),
        Bounds(sinks=1, compactors=1, stored=(1, 2)),
        "the reader ends",
        truth.UPDATES,
    ),
    Planted(
        "P6 a replacement ends its range where it was planned to end",
        Rules(range_from="plan"),
        Bounds(sinks=1, compactors=1, cuts=(1,), stored=(1, 2), reader=False),
        "range",
        truth.ENDS_IN_A_HOLE,
    ),
    Planted(
        "R1 retention takes as many segments as it has judged, whatever they are by now",
        Rules(expires="as many"),
        Bounds(compactors=2, expires=1, stored=(1, 2, 4), reader=False),
        "nobody had judged them",
    ),
    Planted(
        "R2 retention takes an old segment from behind a young one",
        Rules(expires="any"),
        Bounds(compactors=1, expires=1, stored=(2, 3, 4), reader=False),
        "revived",
    ),
    Planted(
        "R3 a reader goes on where the log starts now, over what it has not read",
        Rules(resume="below the log start"),
        Bounds(compactors=1, expires=1, stored=(1, 3, 4), gc=False),
        "the reader ends",
    ),
    Planted(
        "R4 what expired is deleted at once",
        Rules(waits_for_deletion=False),
        Bounds(compactors=1, expires=1, stored=(1, 2, 4)),
        "404",
    ),
]


@pytest.mark.sharded
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_the_model_finds(planted: Planted) -> None:
    world = World(planted.kafka, rules=planted.rules, bounds=planted.bounds)
    result = explore(world, limit=LIMIT_STATES)
    print(f"{planted.name}: {result}")
    assert not result.holds, f"nothing found in {result.states} states"
    assert planted.says in result.violation
    assert result.trace


@pytest.mark.sharded
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_the_same_world_holds_without_the_planted_bug(planted: Planted) -> None:
    result = explore(World(planted.kafka, bounds=planted.bounds), limit=6_000)
    assert result.holds, str(result)
