"""Which of the segments in a folder make up the log, when the manifest that said so is lost. Pure.

More objects are there than the log had: sources that a pass replaced, outputs of a pass that never committed, uploads
of a sink that was fenced. What is known of them:

    one offset, one record      wherever an offset occurs, it is the same record (the caller has checked it)
    never committed             a sink's upload inside which a sink of a higher epoch begins: that one saw a log that
                                ended there, and fenced it. Such uploads are left out
    removed                     an offset inside the span of a compactor's output (from the base in its name to its
                                last record) that the output has not: it was superseded, or a tombstone that was due,
                                when the pass was planned, whether or not the pass committed
    alive       the last of its key among all objects, or without a key, and not removed

The cover is the set of segments without overlap that has the most alive records, then the fewest removed ones, then
the most others (superseded records in the head, which a reader may still want to see). Then it is proved: every alive
record must be in it, and no key may have come back whose newer record, a purged tombstone, is not in the cover. A
segment that only brings back keys and has nothing alive is dropped; what cannot be mended so is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from keyfold.log.index import Ints
from keyfold.log.names import ObjectName, Role


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """A segment that could be part of the log: its name and, record by record, offset, key and tombstone flag."""

    name: ObjectName
    offsets: Ints
    keys: Sequence[bytes | None]
    is_tombstone: Sequence[bool]

    @property
    def base_offset(self) -> int:
        """Where its range begins, at most: the base in its name."""
        return min(self.name.base_offset, self.first_offset)

    @property
    def first_offset(self) -> int:
        """Its first record."""
        return int(self.offsets[0])

    @property
    def last_offset(self) -> int:
        """Its last record."""
        return int(self.offsets[-1])


@dataclass(frozen=True, slots=True)
class Cover:
    """The choice: segments in order, and why each other one was left out.

    `missing` are alive offsets, and `resurrected` offsets of deleted keys, that the choice could not mend; both empty
    in a good cover.
    """

    chosen: tuple[Candidate, ...]
    left_out: tuple[tuple[Candidate, str], ...]
    missing: tuple[int, ...]
    resurrected: tuple[int, ...]


def choose_cover(candidates: Sequence[Candidate]) -> Cover:
    """Choose among all segments of a folder."""
    orphans = never_committed(candidates)
    rest = [c for c in candidates if c not in orphans]
    known = _Known(rest)
    chosen = _best(rest, known)
    resurrected = known.resurrected(chosen)
    hopeless = [c for c in chosen if resurrected & set(c.offsets.tolist()) and not known.alive_in(c)]
    if hopeless:
        chosen = [c for c in chosen if c not in hopeless]
        resurrected = known.resurrected(chosen)
    left_out = [(c, "a sink's upload that was never committed") for c in orphans]
    left_out += [(c, "it would bring back deleted keys and has no latest record") for c in hopeless]
    taken = [*chosen, *hopeless]
    left_out += [(c, "its records are in other segments, or superseded") for c in rest if c not in taken]
    return Cover(tuple(chosen), tuple(left_out), tuple(sorted(known.missing(chosen))), tuple(sorted(resurrected)))


def never_committed(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Uploads of a sink that cannot have been committed, ever."""
    return [c for c in candidates if _is_never_committed(c, candidates)]


def _is_never_committed(one: Candidate, candidates: Iterable[Candidate]) -> bool:
    if one.name.role is not Role.SINK:
        return False
    begin, end = one.name.base_offset, one.last_offset
    return any(
        other.name.role is Role.SINK and other.name.epoch > one.name.epoch and begin <= other.name.base_offset <= end
        for other in candidates
    )


class _Known:
    """What all candidates together say about each offset."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._last: dict[bytes, int] = {}
        for one in candidates:
            for offset, key in zip(one.offsets.tolist(), one.keys, strict=True):
                if key is not None:
                    self._last[key] = max(offset, self._last.get(key, -1))
        none: list[Ints] = [np.empty(0, np.int64)]
        everything = np.unique(np.concatenate([c.offsets for c in candidates] or none))
        removed = [_removed_by(one, everything) for one in candidates if one.name.role is Role.COMPACTOR]
        self.removed = frozenset(np.unique(np.concatenate(removed or none)).tolist())
        self.alive = frozenset(
            offset
            for one in candidates
            for offset, key in zip(one.offsets.tolist(), one.keys, strict=True)
            if offset not in self.removed and (key is None or self._last[key] == offset)
        )

    def alive_in(self, one: Candidate) -> int:
        """How many of its records are alive."""
        return sum(offset in self.alive for offset in one.offsets.tolist())

    def weight(self, one: Candidate) -> tuple[int, int, int]:
        """What choosing it is worth."""
        alive = self.alive_in(one)
        removed = sum(offset in self.removed for offset in one.offsets.tolist())
        return alive, -removed, len(one.offsets) - alive - removed

    def missing(self, chosen: Iterable[Candidate]) -> set[int]:
        """Alive offsets that no chosen segment has."""
        return set(self.alive).difference(*(one.offsets.tolist() for one in chosen))

    def resurrected(self, chosen: Iterable[Candidate]) -> set[int]:
        """Offsets of values that would be the latest of their key, although a newer record is known."""
        latest: dict[bytes, tuple[int, bool]] = {}
        for one in chosen:
            for offset, key, dead in zip(one.offsets.tolist(), one.keys, one.is_tombstone, strict=True):
                if key is not None and offset > latest.get(key, (-1, False))[0]:
                    latest[key] = offset, dead
        return {offset for key, (offset, dead) in latest.items() if not dead and offset != self._last[key]}


def _removed_by(output: Candidate, everything: Ints) -> Ints:
    """Offsets that a compactor's output proves to have been removed.

    Nothing is concluded from behind its last record: a source may have been cut into several outputs.
    """
    spanned = everything[(everything >= output.base_offset) & (everything <= output.last_offset)]
    return np.setdiff1d(spanned, output.offsets, assume_unique=True)


def _best(candidates: Sequence[Candidate], known: _Known) -> list[Candidate]:
    """Weighted interval scheduling: the heaviest set without overlap, in order."""
    ordered = sorted(candidates, key=lambda c: (c.last_offset, c.name.epoch, c.name.attempt))
    ends = [c.last_offset for c in ordered]
    weights: list[tuple[int, int, int]] = [(0, 0, 0)]
    takes: list[int | None] = [None]
    for number, one in enumerate(ordered):
        before = bisect_right(ends, one.first_offset - 1, hi=number)
        a, b, c = known.weight(one)
        p, q, r = weights[before]
        with_it = (a + p, b + q, c + r)
        # Of two that are worth the same the newer epoch wins: it comes later in the order.
        takes.append(before if with_it >= weights[number] and with_it != weights[before] else None)
        weights.append(max(with_it, weights[number]))
    chosen: list[Candidate] = []
    at = len(ordered)
    while at:
        before_it = takes[at]
        if before_it is None:
            at -= 1
        else:
            chosen.append(ordered[at - 1])
            at = before_it
    return chosen[::-1]
