"""What a reader may see of a log that is written and cleaned while it reads. Pure: lists in, flaws out.

The model is the producer's own history of a partition. A reader sees versions of the log, and a version ends where a
commit ended, so

    latest state    is the fold of the history up to one commit that ended between begin and end of the read
    ordered read    is a subsequence of the history up to such a commit. What it lacks was superseded later in it, or is
                    a tombstone that nothing is left of; at and above the first dirty offset it lacks nothing
    prefix          of an ordered read or of a stream: what it lacks may be superseded later than it has come
    near reader     who is never further behind than min.compaction.lag.ms lacks nothing at all
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from keyfold.log.record import Record

Kind = Literal["lost", "doubled", "invented", "reordered", "resurrected", "never existed"]


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that must not be."""

    kind: Kind
    what: str


@dataclass(slots=True)
class History:
    """What was written into a partition, in offset order, and where its commits ended.

    `written_s` is, for each record, a moment that is not after its commit. All is told here before the commit begins,
    so that nobody can read what is not here. Which commits are over, the log's own end tells.
    """

    records: list[Record] = field(default_factory=list)
    written_s: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])

    def write(self, batch: Sequence[Record], end: int, at_s: float) -> None:
        """Records that are about to be committed, up to offset `end`, exclusive."""
        self.written_s += [at_s] * len(batch)
        self.records += batch
        self.ends.append(end)

    def between(self, start: int, end: int) -> list[Record]:
        """Records with offsets in `[start, end)`."""
        return self.records[self.place(start) : self.place(end)]

    def ends_between(self, begin: int, end: int) -> list[int]:
        """Ends of commits in `[begin, end]`."""
        return self.ends[bisect_left(self.ends, begin) : bisect_right(self.ends, end)]

    def at(self, offset: int) -> Record | None:
        """The record at an offset."""
        place = self.place(offset)
        found = self.records[place : place + 1]
        return found[0] if found and found[0].offset == offset else None

    def place(self, offset: int) -> int:
        """How many records are before an offset."""
        return bisect_left(self.records, offset, key=lambda r: r.offset)


def fold(records: Iterable[Record]) -> dict[bytes, Record]:
    """The specification of a compacted log: a dict."""
    state: dict[bytes, Record] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record
    return state


def sequence_flaws(history: History, found: Iterable[Record]) -> list[Flaw]:
    """Records that were never written, that come twice, or not in the order of their offsets."""
    flaws: list[Flaw] = []
    seen: set[int] = set()
    last = -1
    for record in found:
        if history.at(record.offset) != record:
            flaws.append(Flaw("invented", f"{record} was never written"))
        elif record.offset in seen:
            flaws.append(Flaw("doubled", f"offset {record.offset} comes twice"))
        elif record.offset < last:
            flaws.append(Flaw("reordered", f"offset {record.offset} comes after {last}"))
        seen.add(record.offset)
        last = max(last, record.offset)
    return flaws


def prefix_flaws(
    history: History, found: Sequence[Record], *, start: int = 0, end: int, horizon: int, dense_from: int
) -> list[Flaw]:
    """Flaws of what was read in order from `start` up to `end`, exclusive, of versions that end at most at `horizon`.

    At and above `dense_from`, the newest first dirty offset, nothing may be missing.
    """
    flaws = sequence_flaws(history, found)
    flaws += [
        Flaw("invented", f"offset {r.offset} is outside [{start}, {end})") for r in found if not start <= r.offset < end
    ]
    known = history.between(start, horizon)
    last = {r.key: r.offset for r in known}
    offsets = {r.offset for r in found}
    keys = {r.key for r in found}
    for record in known:
        if record.offset >= end:
            break
        if record.offset in offsets:
            continue
        why = _why_missed(record, last[record.key], dense_from)
        if why:
            flaws.append(Flaw("lost", f"{record} is missing: {why}"))
        elif record.value is None and last[record.key] == record.offset and record.key in keys:
            flaws.append(Flaw("resurrected", f"{record} is missing, and an older record of its key is there"))
    return flaws


def _why_missed(record: Record, last: int, dense_from: int) -> str:
    """Why this record may not be missing; "" where it may."""
    if record.key is None:
        return "it has no key"
    if record.offset >= dense_from:
        return f"the log is dirty from {dense_from} on"
    if last == record.offset and record.value is not None:
        return "nothing has superseded it"
    return ""


def ordered_flaws(
    history: History, found: Sequence[Record], *, start: int = 0, begin: int, end: int, dense_from: int
) -> list[Flaw]:
    """Flaws of a whole read from `start` to the end of a version, which lies between `begin` and `end`."""
    least = max(begin, found[-1].offset + 1 if found else 0)
    flaws: list[Flaw] = [Flaw("invented", f"it goes on to {least}, and no commit ended in [{least}, {end}]")]
    for candidate in history.ends_between(least, end):
        flaws = prefix_flaws(history, found, start=start, end=candidate, horizon=candidate, dense_from=dense_from)
        if not flaws:
            break
    return flaws


def latest_flaws(history: History, found: Sequence[Record], *, begin: int, end: int) -> list[Flaw]:
    """Flaws of a latest state that was read while the log's end went from `begin` to `end`.

    In which order its records are is not looked at; `sequence_flaws` does.
    """
    flaws = sequence_flaws(history, sorted(found, key=lambda r: r.offset))
    state = {r.key: r for r in found if r.key is not None}
    if len(state) != len(found):
        flaws.append(Flaw("doubled", "a key comes twice, or a record has none"))
    if flaws:
        return flaws
    model = fold(history.between(0, begin))
    wrong = {key for key in model.keys() | state.keys() if model.get(key) != state.get(key)}
    nearest, at = (len(wrong), begin), begin
    for candidate in history.ends_between(begin, end):
        for record in history.between(at, candidate):
            _step(model, state, wrong, record)
        at = candidate
        if not wrong:
            return []
        nearest = min(nearest, (len(wrong), candidate))
    count, at = nearest
    return [
        Flaw("never existed", f"no commit in [{begin}, {end}] had this state; {count} keys differ from that at {at}")
    ]


def _step(model: dict[bytes, Record], state: dict[bytes, Record], wrong: set[bytes], record: Record) -> None:
    """One more record of the model, and whether its key is as in `state` then."""
    key = record.key
    if key is None:
        return
    if record.value is None:
        model.pop(key, None)
    else:
        model[key] = record
    (wrong.discard if model.get(key) == state.get(key) else wrong.add)(key)


def lag_flaws(
    history: History, seen: Sequence[tuple[Record, float]], *, start: int = 0, end: int, ended_s: float, lag_s: float
) -> list[Flaw]:
    """Records that a reader missed although it had passed them less than `lag_s` seconds after they were written.

    `seen` is what it read and when, `end` how far it has come, at `ended_s`. Whoever passes a record at a moment reads
    a version that is not younger, and in that one a record younger than min.compaction.lag.ms is still there.
    """
    first, last = history.place(start), history.place(end)
    offsets = [record.offset for record, _ in seen]
    flaws: list[Flaw] = []
    for record, written_s in zip(history.records[first:last], history.written_s[first:last], strict=True):
        place = bisect_left(offsets, record.offset)
        passed_s = seen[place][1] if place < len(seen) else ended_s
        is_missing = place == len(seen) or offsets[place] != record.offset
        if is_missing and passed_s < written_s + lag_s:
            flaws.append(Flaw("lost", f"{record} was passed {passed_s - written_s:.3f} s after it was written"))
    return flaws
