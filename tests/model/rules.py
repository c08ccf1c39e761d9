"""What a model run is made of: the protocol's rules as switches, and the bounds of the world.

`Rules()` is the protocol as it is. Every other value is a mistake that somebody could make (or that the first draft
of the design made): the planted bugs of `test_planted_bugs.py` are `Rules` with one or two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol; every default is right."""

    # who may commit
    epoch_required: bool = True
    next_offset_required: bool = True
    still_listed_required: bool = True
    claim_keeps_expected_epoch: bool = True
    # names and uploads
    names: Literal["fresh", "epoch"] = "fresh"
    upload_unknown: Literal["repeat", "other bytes", "keep over a new claim"] = "repeat"
    create_only: bool = True
    create_only_where_empty: bool = True
    # what a writer concludes
    landed_by: Literal["commit id and objects", "commit id"] = "commit id and objects"
    removes_what_it_thinks_lost: bool = False
    concludes_from_a_read: bool = False
    # time
    unlink_stamp: Literal["next commit", "build"] = "next commit"
    pass_stamp: Literal["next commit", "plan"] = "next commit"
    waits_for_deletion: bool = True
    waits_for_purge: bool = True
    # garbage collection
    orphans: Literal["role", "compactor", "age", "never"] = "role"
    # the pass
    marks: Literal["no older record", "at once"] = "no older record"
    purge_needs_no_older_record: bool = True
    first_dirty: Literal["clean below", "end of range"] = "clean below"
    every_part_is_whole: bool = False
    every_part_marks: bool = False
    range_from: Literal["newest", "plan"] = "newest"
    records_purges: bool = True
    # retention
    expires: Literal["the first as listed", "as many", "any"] = "the first as listed"
    # the reader
    resume: Literal["<=", "<", "unchecked", "below the log start"] = "<="
    reads_to: Literal["newest end", "first end"] = "newest end"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The world: who is there and how much may go wrong.

    `starts`: assignments of each sink; `passes`: claims of each compactor; `parts`: commits of one pass that are not
    its last; `cuts`: how many offsets one segment may span; `stored`: ends of the segments that are in the log at the
    start; `faults`: time-outs, crashes and repeated DELETEs altogether; `expires`: commits of retention, each of as
    many of the log's first segments as it likes, by any compactor, before its pass or between its parts.
    `timely`: waits last longer than any reader's session (so a reader must be served); otherwise nothing is waited
    for, and a reader may be refused but never deceived.
    """

    sinks: int = 0
    starts: int = 1
    compactors: int = 0
    passes: int = 1
    parts: int = 0
    faults: int = 0
    expires: int = 0
    reader: bool = True
    timely: bool = True
    gc: bool = True
    leases: bool = False
    forgets: bool = True
    manifest_may_be_lost: bool = False
    watch_owner: bool = False
    cuts: tuple[int, ...] = (1, 2)
    stored: tuple[int, ...] = ()
