"""A log, its replica that is promoted, and a reader that changes over, as a graph of states.

Two buckets, each commit one step made by the real edits; that objects are there is `replica_world`'s matter. After the
promotion both sides may go on by themselves, with other records at the same offsets: the network is cut, and each sink
has a Kafka of its own. Then the old log may become the replica of the new one.

A reader reads whatever version it has pinned, record by record, and may at any moment go on in the newest version of
either bucket, where `keyfold.read.position` lets it. What it has at an end must be what that log's records fold to.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from keyfold.errors import LogError, OffsetOutOfRange
from keyfold.log import edits, edits_replica
from keyfold.log.edits import Edit, Replacement, Swap
from keyfold.log.edits_replica import Following
from keyfold.log.manifest import Manifest, content, stamped
from keyfold.log.names import ObjectName, Role
from keyfold.read.position import Anchor, anchor_of, check_resumed
from tests.model.book import Violation
from tests.model.search import Label
from tests.support.manifests import entry

Kafka = tuple[tuple[str, int | None], ...]
Row = tuple[int, int]
"""(offset, epoch of the pass that marked it, or 0)."""
Latest = tuple[tuple[str, tuple[int, int]], ...]

NONE = 0
OLD, NEW = "old", "new"
TO_NEW, TO_OLD = Following("new", "old"), Following("old", "new")


@dataclass(frozen=True, slots=True)
class PromotionRules:
    """Every default is right."""

    asks_what_was_seen: bool = True
    counts_only_common_passes: bool = True
    asks_for_the_position: bool = True
    fences_the_old_log_first: bool = True


@dataclass(frozen=True, slots=True)
class PromotionBounds:
    """`passes` of each side; `forced`: the old log continues by itself, else it is fenced and no record is lost.

    `begun`: this number of records is in both logs at the start.
    """

    passes: int = 1
    forced: bool = True
    begun: int = 0


class Reader(NamedTuple):
    """0 not begun, 1 open, 2 over; `reads` is the manifest that it has pinned."""

    step: int = 0
    anchor: int = 0
    reads: int = NONE
    position: int = 0
    latest: Latest = ()


class State(NamedTuple):
    """`parted_at`: where the new log's records begin to be its own, -1 before the promotion."""

    old: int
    new: int
    parted_at: int
    old_passes: int
    new_passes: int
    reader: Reader = Reader()


Step = tuple[Label, State]


class PromotionWorld:
    """See the module. `kafka` is the old log's, `other` what the new one's has instead."""

    def __init__(
        self, kafka: Kafka, other: Kafka, bounds: PromotionBounds, rules: PromotionRules | None = None
    ) -> None:
        self.kafka = kafka
        self.other = other
        self.bounds = bounds
        self.rules = rules or PromotionRules()
        fresh = Manifest("t", 0, log_id=OLD, sync_marker=bytes(16))
        self.manifests: list[Manifest] = [fresh, fresh]
        self.anchors: list[Anchor] = []
        self._numbers: dict[Hashable, int] = {}
        self._made: dict[Hashable, int] = {}
        self._rows: dict[str, tuple[Row, ...]] = {}

    def initial(self) -> State:
        """The old log is empty, the replica not there; or both have what they begin with."""
        old, new = 1, NONE
        for _ in range(self.bounds.begun):
            old = self._append(old, OLD)
        if self.bounds.begun:
            new = self._number(edits_replica.first_mirror(self.manifests[old], TO_NEW, "", ""))
        return State(old, new, -1, self.bounds.passes, self.bounds.passes)

    def describe(self, label: Label) -> str:
        """A step in words."""
        return str(label[0]).format(*label[1:])

    def check(self, state: State) -> None:
        """Only one of both may be written, unless the promotion was forced; a replica is what its source had."""
        old, new = self.manifests[state.old], self.manifests[state.new]
        if state.new and not self.bounds.forced and not old.is_replica and not new.is_replica:
            raise Violation("both logs have writers")

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        yield from self._writes(state, OLD)
        if state.new:
            yield from self._writes(state, NEW)
        yield from self._follows(state)
        yield from self._reads(state)

    # writers

    def _writes(self, state: State, side: str) -> Iterator[Step]:
        number = state.old if side == OLD else state.new
        manifest = self.manifests[number]
        if manifest.is_replica:
            return
        if manifest.next_offset < len(self.kafka):
            yield (
                (f"the {side} log gets offset {{}}", manifest.next_offset),
                self._at(state, side, self._append(number, side)),
            )
        left = state.old_passes if side == OLD else state.new_passes
        if left:
            for count in range(1, len(manifest.segments) + 1):
                for purge in (False, True):
                    made = self._clean(number, side, state.parted_at, count, purge)
                    if made:
                        told = f"the {side} log is cleaned up to {{}}, purge: {{}}"
                        after = self._at(state, side, made)
                        spent = {"old_passes": left - 1} if side == OLD else {"new_passes": left - 1}
                        yield (told, manifest.segments[count - 1].next_offset, purge), after._replace(**spent)  # type: ignore[arg-type]  # fields by name, of any type

    def _append(self, number: int, side: str) -> int:
        key = ("append", number, side)
        if key not in self._made:
            manifest = self._edited(self.manifests[number], edits.claim(Role.SINK, self.manifests[number].sink.epoch))
            offset, epoch = manifest.next_offset, manifest.sink.epoch
            name = self._name(offset, epoch, Role.SINK, ((offset, 0),), side)
            new = entry(name, offset, offset + 1)
            made = self._edited(manifest, edits.append(epoch, new, base_offset=offset, next_offset=offset + 1))
            self._made[key] = self._number(made)
        return self._made[key]

    def _clean(self, number: int, side: str, parted_at: int, count: int, purge: bool) -> int:
        """A pass over the first `count` segments; 0 where nothing would survive."""
        key = ("clean", number, side, parted_at, count, purge)
        if key not in self._made:
            base = self.manifests[number]
            manifest = self._edited(base, edits.claim(Role.COMPACTOR, base.compactor.epoch))
            epoch, old = manifest.compactor.epoch, manifest.segments[:count]
            rows = [row for e in old for row in self._rows[e.name]]
            truth = self._truth(side, parted_at)
            last = {truth[o][0]: o for o, _ in rows}
            kept, purged = [], (0, -1)
            for offset, mark in rows:
                if last[truth[offset][0]] != offset:
                    continue
                tombstone = truth[offset][1] is None
                if tombstone and mark and purge:
                    purged = (max(purged[0], mark), offset)
                else:
                    kept.append((offset, (mark or epoch) if tombstone else 0))
            self._made[key] = 0
            if kept:
                self._made[key] = self._number(self._replaced(manifest, tuple(kept), truth, side, count, purged))
        return self._made[key]

    def _replaced(
        self, manifest: Manifest, kept: tuple[Row, ...], truth: Kafka, side: str, count: int, purged: tuple[int, int]
    ) -> Manifest:
        epoch, old = manifest.compactor.epoch, manifest.segments[:count]
        base, end = old[0].base_offset, old[-1].next_offset
        marks = [mark for o, mark in kept if truth[o][1] is None]
        new = entry(
            self._name(base, epoch, Role.COMPACTOR, kept, side), base, end, last_offset=kept[-1][0],
            record_count=len(kept), tombstones=len(marks), unmarked=0, cleaned_epochs=tuple(sorted(set(marks))),
        )  # fmt: skip
        replacement = Replacement((Swap(old, (new,)),), end, purged_epoch=purged[0], purged_to=purged[1])
        return self._edited(manifest, edits.replace_segments(epoch, replacement))

    # who follows whom

    def _follows(self, state: State) -> Iterator[Step]:
        old, new = self.manifests[state.old], self.manifests[state.new]
        if not state.new:
            if not old.is_replica and old.segments:
                first = edits_replica.first_mirror(old, TO_NEW, "", "")
                yield ("the replica begins",), self._at(state, NEW, self._number(first))
            return
        if new.is_replica:
            assert new.replica is not None
            edit = edits_replica.mirror(new.replica.token, old)
            yield from self._edit(
                state, NEW, "the replica takes over the old log's version", edit, from_number=state.old
            )
            if self.bounds.forced:
                promote = edits_replica.promote(new.replica.token, NEW)
                for label, after in self._edit(state, NEW, "the replica is promoted by force", promote):
                    yield label, after._replace(parted_at=new.next_offset)
            elif not old.is_replica:
                yield from self._edit(state, OLD, "the old log is fenced", edits_replica.demote(new, TO_OLD))
            if not self.bounds.forced and (old.is_replica or not self.rules.fences_the_old_log_first):
                promote = edits_replica.promote(new.replica.token, NEW, source=old)
                for label, after in self._edit(state, NEW, "the replica is promoted", promote, from_number=state.old):
                    yield label, after._replace(parted_at=new.next_offset)
            return
        if old.is_replica:
            assert old.replica is not None
            mirror = edits_replica.mirror(old.replica.token, new)
            yield from self._edit(
                state, OLD, "the old log takes over the new one's version", mirror, from_number=state.new
            )
        else:
            demote = edits_replica.demote(new, TO_OLD, discard=True)
            yield from self._edit(state, OLD, "the old log follows the new one", demote, from_number=state.new)

    def _edit(self, state: State, side: str, told: str, edit: Edit, *, from_number: int = NONE) -> Iterator[Step]:
        number = state.old if side == OLD else state.new
        key = (told, number, from_number)
        if key not in self._made:
            manifest = self.manifests[number]
            try:
                made = self._edited(manifest, edit)
                same = content(made) == content(manifest) and made.is_replica == manifest.is_replica
                self._made[key] = 0 if same else self._number(made)
            except LogError:
                self._made[key] = 0
        if self._made[key]:
            yield (told,), self._at(state, side, self._made[key])

    # the reader

    def _reads(self, state: State) -> Iterator[Step]:
        reader = state.reader
        places = [(OLD, state.old), (NEW, state.new)] if state.new else [(OLD, state.old)]
        if reader.step == 0:
            for side, number in places:
                if self.manifests[number].segments:
                    begun = Reader(1, self._anchor(anchor_of(self.manifests[number])), number)
                    yield (f"the reader begins in the {side} log",), state._replace(reader=begun)
        if reader.step != 1:
            return
        yield self._read_on(state)
        for side, number in places:
            if number == reader.reads:
                continue
            anchor = self._resumed(self.anchors[reader.anchor], reader.position, self.manifests[number])
            if anchor is not None:
                after = reader._replace(anchor=self._anchor(anchor), reads=number)
                yield (f"the reader goes on at {{}} in the {side} log", reader.position), state._replace(reader=after)

    def _read_on(self, state: State) -> Step:
        reader = state.reader
        manifest = self.manifests[reader.reads]
        side = NEW if manifest.log_id == NEW else OLD
        truth = self._truth(side, state.parted_at)
        for segment in manifest.segments:
            rows = [o for o, _ in self._rows[segment.name] if o >= reader.position]
            if not rows:
                continue
            position = rows[0] + 1 if rows[1:] else segment.next_offset
            after = reader._replace(position=position, latest=_folded(truth, rows[:1], reader.latest))
            return ("the reader reads {}", rows[0]), state._replace(reader=after)
        expected = _folded(truth, range(manifest.next_offset))
        if reader.latest != expected:
            raise Violation(
                f"the reader ends with {dict(reader.latest)}, its log has {dict(expected)}", "the reader ends"
            )
        return ("the reader ends",), state._replace(reader=Reader(2))

    def _resumed(self, anchor: Anchor, position: int, manifest: Manifest) -> Anchor | None:
        if not self.rules.asks_what_was_seen:
            anchor = replace(anchor, seen_to=-1)
        if not self.rules.counts_only_common_passes:
            manifest = replace(manifest, lineage=tuple(replace(a, last_epoch=1 << 30) for a in manifest.lineage))
        if not self.rules.asks_for_the_position:
            manifest = replace(manifest, lineage=tuple(replace(a, next_offset=1 << 30) for a in manifest.lineage))
        try:
            return check_resumed(anchor, position, manifest)
        except OffsetOutOfRange:
            return None

    # numbers

    def _truth(self, side: str, parted_at: int) -> Kafka:
        return self.kafka if side == OLD or parted_at < 0 else self.kafka[:parted_at] + self.other[parted_at:]

    @staticmethod
    def _edited(manifest: Manifest, edit: Edit) -> Manifest:
        return replace(edit(stamped(manifest, 0), 0), version=manifest.version + 1)

    @staticmethod
    def _at(state: State, side: str, number: int) -> State:
        return state._replace(old=number) if side == OLD else state._replace(new=number)

    def _name(self, base: int, epoch: int, role: Role, rows: tuple[Row, ...], side: str) -> ObjectName:
        attempt = hash((rows, side)) & (1 << 64) - 1
        name = ObjectName(base, epoch, role, f"{attempt:016x}")
        self._rows[str(name)] = rows
        return name

    def _number(self, manifest: Manifest) -> int:
        key = repr(manifest)
        if key not in self._numbers:
            self._numbers[key] = len(self.manifests)
            self.manifests.append(manifest)
        return self._numbers[key]

    def _anchor(self, anchor: Anchor) -> int:
        key = (anchor, anchor.seen_to)
        if key not in self._numbers:
            self._numbers[key] = len(self.anchors)
            self.anchors.append(anchor)
        return self._numbers[key]


def _folded(truth: Kafka, offsets: range | list[int], latest: Latest = ()) -> Latest:
    state = dict(latest)
    for offset in offsets:
        key, value = truth[offset]
        state.pop(key, None)
        if value is not None:
            state[key] = (offset, value)
    return tuple(sorted(state.items()))
