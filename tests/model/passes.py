"""All that a cleaning pass might do with a log, as the replacements that it would commit.

The compactor's own planner is one policy among many: it is free to skip segments, to merge, to clean a part. So the
model lets a pass take *any* run of neighbouring segments, and merge its survivors into one segment or rewrite each
alone. What every policy has to keep to are the rules for records, marks and the first dirty offset, and they are here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keyfold.log.edits import Replacement, Swap
from keyfold.log.manifest import NO_EPOCH, NO_OFFSET, Manifest, SegmentEntry
from keyfold.log.names import ObjectName, Role
from tests.model import truth
from tests.model.book import Book, Row
from tests.model.rules import Rules


@dataclass(frozen=True, slots=True)
class Job:
    """A compactor with its epoch looks at a manifest: `due` are the passes whose delete horizon is over."""

    manifest: Manifest
    epoch: int
    attempt: int
    due: frozenset[int]
    may_mark: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """A replacement (by number), the objects that it needs, and what happens in words."""

    replacement: int
    uploads: tuple[int, ...]
    words: str


def plans(book: Book, rules: Rules, job: Job, *, whole: bool) -> Iterator[Plan]:
    """Every replacement that a pass over this manifest might commit."""
    segments = job.manifest.segments
    met: set[int] = set()
    for first in range(len(segments)):
        for last in range(first, len(segments)):
            cleaned = _clean(book, rules, job, first, last)
            for is_merge in (False, True) if last > first else (False,):
                swaps, uploads = _swaps(book, job, segments[first : last + 1], cleaned.kept, is_merge=is_merge)
                if not swaps:
                    continue
                replacement = Replacement(
                    swaps=tuple(swaps),
                    first_dirty_offset=cleaned.first_dirty_offset,
                    whole=whole or rules.every_part_marks,
                    purged_to=cleaned.purged_to if rules.records_purges else NO_OFFSET,
                    purged_epoch=cleaned.purged_epoch if rules.records_purges else NO_EPOCH,
                )
                number = book.add_replacement(replacement)
                if number not in met:
                    met.add(number)
                    yield Plan(number, tuple(uploads), _words(book, swaps))


@dataclass(frozen=True, slots=True)
class _Cleaned:
    kept: list[list[Row]]
    first_dirty_offset: int
    purged_to: int
    purged_epoch: int


def _clean(book: Book, rules: Rules, job: Job, first: int, last: int) -> _Cleaned:
    """Decide about the records of segments `first` to `last`; keys of the dirty part decide, up to the run's end."""
    kafka, segments = book.kafka, job.manifest.segments
    rows = [book.rows(s) for s in segments]
    end = segments[last].next_offset
    map_last = {_key(kafka, o): o for r in rows for o, _ in r if job.manifest.first_dirty_offset <= o < end}
    survivors = [[(o, m) for o, m in r if map_last.get(_key(kafka, o), NO_OFFSET) <= o] for r in rows[first : last + 1]]
    outside = [o for n, r in enumerate(rows) if not first <= n <= last for o, _ in r]
    left = sorted(outside + [o for r in survivors for o, _ in r])
    kept: list[list[Row]] = []
    purged: list[Row] = []
    for run in survivors:
        kept.append([])
        for offset, mark in run:
            is_clean_below = not any(_key(kafka, o) == _key(kafka, offset) for o in left if o < offset)
            if not _is_tombstone(kafka, offset):
                kept[-1].append((offset, mark))
            elif not mark:
                may_mark = job.may_mark and (is_clean_below or rules.marks == "at once")
                kept[-1].append((offset, job.epoch if may_mark else NO_EPOCH))
            elif (mark in job.due or not rules.waits_for_purge) and (
                is_clean_below or not rules.purge_needs_no_older_record
            ):
                purged.append((offset, mark))
            else:
                kept[-1].append((offset, mark))
    rest = sorted(outside + [o for r in kept for o, _ in r])
    is_clean = not truth.superseded(kafka, rest, end)
    return _Cleaned(
        kept,
        first_dirty_offset=end if is_clean or rules.first_dirty == "end of range" else 0,
        purged_to=max((o for o, _ in purged), default=NO_OFFSET),
        purged_epoch=max((m for _, m in purged), default=NO_EPOCH),
    )


def _swaps(
    book: Book, job: Job, old: Sequence[SegmentEntry], kept: list[list[Row]], *, is_merge: bool
) -> tuple[list[Swap], list[int]]:
    """Swaps and uploads that bring `kept` about: all in one segment, or each segment for itself."""
    if is_merge:
        rows = tuple(row for run in kept for row in run)
        new = _new_entry(book, job, old, rows)
        return [Swap(tuple(old), () if new is None else (new,))], [] if new is None else list(book.blobs_of(new))
    swaps: list[Swap] = []
    uploads: list[int] = []
    for entry, run in zip(old, kept, strict=True):
        before, after = book.rows(entry), tuple(run)
        if before == after:
            continue
        new = _new_entry(book, job, [entry], after)
        if new is not None and [o for o, _ in before] == [o for o, _ in after]:
            new = _reindexed(book, entry, new)
            uploads.append(book.blobs_of(new)[1])
        elif new is not None:
            uploads += book.blobs_of(new)
        swaps.append(Swap((entry,), () if new is None else (new,)))
    return swaps, uploads


def _new_entry(book: Book, job: Job, old: Sequence[SegmentEntry], rows: tuple[Row, ...]) -> SegmentEntry | None:
    if not rows:
        return None
    name = ObjectName(old[0].base_offset, job.epoch, Role.COMPACTOR, f"{job.attempt:016x}")
    return book.make_entry(name, name.index, rows, old[0].base_offset, old[-1].next_offset)


def _reindexed(book: Book, old: SegmentEntry, new: SegmentEntry) -> SegmentEntry:
    """Only marks changed: the segment stays, the index is new."""
    changed = {f: getattr(new, f) for f in ("index_name", "index_checksum", "cleaned_epochs")}
    changed["unmarked_tombstone_count"] = new.unmarked_tombstone_count
    return book.replace_entry(old, **changed)


def _words(book: Book, swaps: Sequence[Swap]) -> str:
    def ranges(entries: Sequence[SegmentEntry]) -> str:
        return " + ".join(str(book.blob(book.blobs_of(e)[0])) for e in entries) or "nothing"

    marks = sorted({row for s in swaps for e in s.new for row in book.rows(e) if row[1]})
    told = "; ".join(f"{ranges(s.old)} becomes {ranges(s.new)}" for s in swaps)
    return told + (f", marks {dict(marks)}" if marks else "")


def _key(kafka: truth.KafkaLog, offset: int) -> str:
    record = kafka[offset]
    assert record is not None
    return record[0]


def _is_tombstone(kafka: truth.KafkaLog, offset: int) -> bool:
    record = kafka[offset]
    return record is not None and record[1] is None
