"""Tombstones that are held for a replica, state by state: a log, its cleaner, who replicates, and a follower there.

The rules are the real ones (`purge_of`, `retain`), asked with the manifest of each state. The model's own are the order
of steps, and time: a pass is fresh, due (past `delete.retention.ms`), or overdue (past `replica.hold.max.ms` too).

    run      knows the registrations as they were when it began; claims and plans by a later manifest; commits later yet
    round    pins a version, commits it at the replica, writes the cursor; may die between any two of these
    people   register the replica, move it to another place, remove it

A follower reads at the replica whatever comes there, at once. It must know what Kafka's log says up to where the
replica is; and a resync must have a reason: a tombstone that went overdue, or while nobody was registered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from keyfold.log.manifest import NO_VERSION, Hold, Pass
from keyfold.store.api import STORE_TIME_RESOLUTION_MS
from keyfold_compactor.decide.horizon import purge_of
from keyfold_compactor.decide.retain import retain
from keyfold_compactor.decide.settings import TopicSettings
from tests.model.book import Violation
from tests.support.manifests import empty_manifest

# Two keys, each deleted; one of them comes again.
KAFKA: Final = (("a", True), ("b", True), ("a", False), ("b", False), ("a", True))
"""Key, and whether the record has a value; the offset is the position."""

NOW: Final = 1_000_000_000
RETENTION: Final = 1_000
HOLD_MAX: Final = 10_000
FRESH, DUE, OVERDUE = range(3)
COMMITTED: Final = (
    NOW,
    NOW - STORE_TIME_RESOLUTION_MS - RETENTION,
    NOW - STORE_TIME_RESOLUTION_MS - RETENTION - HOLD_MAX,
)

RecordMarks = tuple[tuple[int, int], ...]
"""A version's records: offset, and the pass that marked it (0: none)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be done wrongly; every default is right."""

    holds: bool = True
    cursor_after_commit: bool = True
    cursor_of_the_commit: bool = True
    resync_is_noticed: bool = True
    places_have_cursors: bool = True


class SourceVersion(NamedTuple):
    """A version of the source, as a replica takes it."""

    kept: RecordMarks
    end: int
    purged_to: int


class Plan(NamedTuple):
    """A pass that is to be committed: what goes, what is marked, by which pass; `late` of what goes was overdue."""

    gone: frozenset[int]
    marked: frozenset[int]
    epoch: int
    purged_to: int
    excused_to: int


class State(NamedTuple):
    """Everything. `place` counts the places that the replica's name has stood for, `hold` belongs to one of them.

    `run` is the place that the run knows (0: none) until it has a plan. `excused_to` is the highest tombstone that went
    although the replica may not have had it. `is_old_at_work`: who replicated to the place before has not noticed yet.
    """

    source: SourceVersion
    ages: tuple[tuple[int, int], ...] = ()
    epoch: int = 0
    excused_to: int = -1
    is_registered: bool = False
    place: int = 1
    moves: int = 0
    hold: tuple[int, int] | None = None
    run: int | None = None
    plan: Plan | None = None
    round: SourceVersion | None = None
    cursor: int = -1
    replica: SourceVersion | None = None
    known: tuple[tuple[str, int], ...] = ()
    is_old_at_work: bool = False


class Holding:
    """The world for `tests.model.search.explore`."""

    def __init__(self, rules: Rules, *, passes: int = 2, moves: int = 2) -> None:
        self.rules = rules
        self._passes = passes
        self._moves = moves

    def initial(self) -> State:
        return State(SourceVersion((), 0, -1))

    def describe(self, label: tuple[object, ...]) -> str:
        return " ".join(map(str, label))

    def check(self, state: State) -> None:
        """All is checked on the way (`_mirrored`)."""

    def steps(self, state: State) -> Iterator[tuple[tuple[object, ...], State]]:
        yield from self._log(state)
        yield from self._run(state)
        yield from self._round(state)
        yield from self._people(state)

    def _log(self, state: State) -> Iterator[tuple[tuple[object, ...], State]]:
        source = state.source
        if source.end < len(KAFKA):
            kept = (*source.kept, (source.end, 0))
            yield ("append", source.end), state._replace(source=source._replace(kept=kept, end=source.end + 1))
        older = tuple((epoch, min(OVERDUE, age + 1)) for epoch, age in state.ages)
        if older != state.ages:
            yield ("time passes",), state._replace(ages=older)

    def _run(self, state: State) -> Iterator[tuple[tuple[object, ...], State]]:
        if state.run is None and state.plan is None and state.epoch < self._passes:
            yield ("a run begins",), state._replace(run=state.place if state.is_registered else 0)
        if state.run is not None:
            plan = self._planned(state, state.run)
            yield ("it plans", *map(list, plan[:2])), state._replace(run=None, plan=plan, epoch=plan.epoch)
        if state.plan is not None:
            yield ("it commits",), _committed(state, state.plan)._replace(plan=None)
            yield ("it dies",), state._replace(plan=None)

    def _planned(self, state: State, follows: int) -> Plan:
        held = state.hold if state.hold is not None and state.hold[0] == follows else None
        replicas = (f"place {follows}",) if follows and self.rules.holds else ()
        received_to = -1 if held is None else held[1]
        last = {KAFKA[offset][0]: offset for offset, _ in state.source.kept}
        rows = tuple((o, mark, last[KAFKA[o][0]] > o) for o, mark in state.source.kept)
        gone = _gone(rows, state.ages, replicas, received_to)
        ages = dict(state.ages)
        purged = {o for o, mark, is_old in rows if o in gone and not is_old}
        for offset, mark, is_old in rows:
            if mark and not is_old and ages[mark] == OVERDUE and offset not in gone:
                raise Violation(f"the tombstone at {offset} is overdue and stays")
        late = {o for o, mark, _ in rows if o in purged and (ages[mark] == OVERDUE or not follows)}
        marked = frozenset(o for o, mark, _ in rows if not mark and o not in gone and not KAFKA[o][1])
        return Plan(gone, marked, state.epoch + 1, max(purged, default=-1), max(late, default=-1))

    def _round(self, state: State) -> Iterator[tuple[tuple[object, ...], State]]:
        if state.is_registered and state.round is None and state.cursor < 0:
            begun = state._replace(round=state.source)
            if not self.rules.cursor_after_commit:
                begun = begun._replace(hold=(state.place, state.source.end))
            yield ("a round pins", state.source), begun
        if state.round is not None:
            yield ("it commits at the replica",), self._mirrored(state, state.round)
            yield ("the round dies",), state._replace(round=None)
        if state.cursor >= 0:
            end = state.cursor if self.rules.cursor_of_the_commit else state.source.end
            yield ("cursor", end), state._replace(hold=(state.place, end), cursor=-1)
            yield ("the round dies",), state._replace(cursor=-1)
        if state.is_old_at_work:
            # Its cursor is another entry of the manifest, unless places share one.
            shared = state.hold if self.rules.places_have_cursors else (state.place, state.source.end)
            yield ("cursor of the old place", state.source.end), state._replace(hold=shared, is_old_at_work=False)

    def _mirrored(self, state: State, version: SourceVersion) -> State:
        known = dict(state.known)
        position = 0 if state.replica is None else state.replica.end
        if state.replica is not None and version.purged_to >= position and self.rules.resync_is_noticed:
            if state.excused_to < position:
                raise Violation(f"a resync for the tombstone at {version.purged_to}, which nobody had let go")
            known, position = {}, 0
        for offset, _ in version.kept:
            key, has_value = KAFKA[offset]
            if offset >= position:
                known[key] = offset
                if not has_value:
                    del known[key]
        truth = {key: offset for offset, (key, _) in enumerate(KAFKA[: version.end])}
        if known != {key: offset for key, offset in truth.items() if KAFKA[offset][1]}:
            raise Violation(f"a follower of the replica knows {known} at {version.end}")
        return state._replace(
            replica=version, round=None, cursor=version.end, known=tuple(sorted(known.items()))
        )  # fmt: skip

    def _people(self, state: State) -> Iterator[tuple[tuple[object, ...], State]]:
        if state.moves == self._moves:
            return
        moved = state._replace(moves=state.moves + 1, round=None, cursor=-1)
        if not state.is_registered:
            # Registered again it is where it was, and goes by a cursor of its own.
            fresh = state.place + 1 if self.rules.places_have_cursors else state.place
            yield ("registered",), moved._replace(is_registered=True, place=fresh)
            return
        yield ("removed",), moved._replace(is_registered=False)
        fresh = state.place + 1 if self.rules.places_have_cursors else state.place
        old = state.replica is not None
        yield ("moved elsewhere",), moved._replace(place=fresh, replica=None, known=(), is_old_at_work=old)


def _committed(state: State, plan: Plan) -> State:
    source = state.source
    kept = tuple((o, plan.epoch if o in plan.marked else mark) for o, mark in source.kept if o not in plan.gone)
    marks = {mark for _, mark in kept}
    ages = (*state.ages, (plan.epoch, FRESH)) if plan.marked else state.ages
    return state._replace(
        source=SourceVersion(kept, source.end, max(source.purged_to, plan.purged_to)),
        ages=tuple((epoch, age) for epoch, age in ages if epoch in marks),
        excused_to=max(state.excused_to, plan.excused_to),
    )


@cache
def _gone(
    rows: tuple[tuple[int, int, bool], ...],
    ages: tuple[tuple[int, int], ...],
    replicas: tuple[str, ...],
    received_to: int,
) -> frozenset[int]:
    """What a pass of these rows (offset, mark, whether a later one is there) removes, by the real rules."""
    manifest = empty_manifest(
        passes=tuple(Pass(epoch, COMMITTED[age]) for epoch, age in ages),
        holds=tuple(Hold(name, NO_VERSION, 0, received_to) for name in replicas if received_to >= 0),
    )
    settings = TopicSettings(delete_retention_ms=RETENTION, replica_hold_max_ms=HOLD_MAX, replicas=replicas)
    offsets = [offset for offset, _, _ in rows]
    table = pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([KAFKA[o][0].encode() for o in offsets], pa.binary()),
            "is_tombstone": pa.array([not KAFKA[o][1] for o in offsets], pa.bool_()),
            "cleaned_epoch": pa.array([mark or None for _, mark, _ in rows], pa.int32()),
            "length": pa.array([1] * len(rows), pa.int32()),
        }
    )
    superseded = np.array([is_old for _, _, is_old in rows], np.bool_)
    keep = retain(table, superseded, purge=purge_of(manifest, settings, NOW), remove_keyless=False).keep
    return frozenset(o for o, stays in zip(offsets, keep.tolist(), strict=True) if not stays)
