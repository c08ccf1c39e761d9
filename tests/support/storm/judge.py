"""What a reader may see of a log at one moment. Pure, and without keyfold: lists in, sentences out.

A version of a log says its range, `[start, end)`. What is read in it must be the state of the topic at exactly that
prefix:

    every row       is the record that Kafka has at this offset, once, in order, and says itself where it belongs
    state           the last record of each key is that of Kafka's records in `[start, end)`; a deleted key is not there
    not compacted   nothing is missing in the range
    compacted       what is missing was superseded in the range; or it is a tombstone up to `purged_to` that is older
                    than `delete.retention.ms`. Records without a key, and all from `first_dirty` on, are there
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.support.storm.truth import History, Row

SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Version:
    """What a manifest says of its log, and when it was read (ms of this machine, which is the broker's too)."""

    log_id: str
    number: int
    start: int
    end: int
    first_dirty: int
    purged_to: int
    read_at_ms: int
    ancestors: Mapping[str, int]
    """Logs that this one goes on with, and up to which offset."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the storm has configured for a topic."""

    is_compacted: bool
    expires: bool
    delete_retention_ms: int


def fold(rows: Iterable[Row]) -> dict[bytes, Row]:
    """Return the last record of each key; deleted keys are left out."""
    state: dict[bytes, Row] = {}
    for row in rows:
        if row.key is None:
            continue
        if row.value is None:
            state.pop(row.key, None)
        else:
            state[row.key] = row
    return state


def states_itself(topic: str, partition: int, row: Row) -> bool:
    """Return whether a value names the topic, the partition and the key that it was found at."""
    if row.value is None:
        return row.key is not None
    key = b"-" if row.key is None else row.key
    return row.value.startswith(b"%s|%d|%s|" % (topic.encode(), partition, key))


def sequence_of(row: Row) -> int:
    """Return the producer's number in a value."""
    return int((row.value or b"").split(b"|", 4)[3])


def row_flaws(topic: str, partition: int, rows: Sequence[Row]) -> list[str]:
    """Return flaws that rows show by themselves: no truth is needed."""
    strange = [row for row in rows if not states_itself(topic, partition, row)]
    if strange:
        return [f"{row} does not belong to {topic}-{partition}" for row in strange]
    flaws = [f"offset {b.offset} comes after {a.offset}" for a, b in pairwise(rows) if b.offset <= a.offset]
    numbers = [sequence_of(row) for row in rows if row.value is not None]
    return flaws + [f"sequence {b} comes after {a}" for a, b in pairwise(numbers) if b <= a]


def snapshot_flaws(history: History, version: Version, rules: Rules, rows: Sequence[Row]) -> list[str]:
    """Return flaws of all records that a version has."""
    known = history.between(version.start, version.end)
    if version.start and not rules.expires:
        return [f"the log starts at {version.start}, and nothing may expire"]
    if [*rows] == known:
        return []
    if not rules.is_compacted:
        return _differences(known, rows)
    flaws = _unknown(history, version, rows)
    flaws += state_flaws(history, version.start, version.end, fold(rows))
    offsets = {row.offset for row in rows}
    last = {row.key: row.offset for row in known}
    for row in known:
        why = "" if row.offset in offsets else _why_missed(row, version, rules, is_last=last[row.key] == row.offset)
        if why:
            flaws.append(f"{row} is missing: {why}")
    return flaws


def state_flaws(history: History, start: int, end: int, state: Mapping[bytes, Row]) -> list[str]:
    """Return how a state differs from that of the prefix `[start, end)`."""
    expected = fold(history.between(start, end))
    if expected == state:
        return []
    wrong = sorted(key for key in expected.keys() | state.keys() if expected.get(key) != state.get(key))
    return [f"key {key!r} is {state.get(key)}, and in [{start}, {end}) it is {expected.get(key)}" for key in wrong]


def backwards(before: Version, after: Version) -> str:
    """Return how a version that was read later lies before an earlier one; "" where it does not.

    The manifest of a bucket only goes forward. The log's range goes forward as long as it is the same log. A log that
    goes on with it from offset N may give up records from N on, which is what a fail-over does, and nothing below.
    """
    if after.number < before.number:
        return f"version {after.number} was read after version {before.number}"
    if after.log_id == before.log_id:
        if after.end < before.end or after.start < before.start:
            return f"[{after.start}, {after.end}) was read after [{before.start}, {before.end}) of the same log"
        return ""
    parted = after.ancestors.get(before.log_id)
    if parted is None:
        return f"log {after.log_id} does not go on with log {before.log_id}"
    if after.end < min(before.end, parted):
        return f"it ends at {after.end}, had {before.end} before, and goes on with that log from {parted}"
    return ""


def _why_missed(row: Row, version: Version, rules: Rules, *, is_last: bool) -> str:
    """Return why a record of a compacted log may not be missing; "" where it may."""
    if row.key is None:
        return "it has no key"
    if row.offset >= version.first_dirty:
        return f"the log is dirty from {version.first_dirty} on"
    if row.value is not None or not is_last:
        return "nothing has superseded it" if is_last else ""
    if row.offset > version.purged_to:
        return f"tombstones were purged up to {version.purged_to} only"
    if row.timestamp + rules.delete_retention_ms > version.read_at_ms:
        return f"it was written {version.read_at_ms - row.timestamp} ms before, and delete.retention.ms is longer"
    return ""


def _unknown(history: History, version: Version, rows: Sequence[Row]) -> list[str]:
    return [
        f"{row} is not what Kafka has: {history.at(row.offset)}"
        for row in rows
        if history.at(row.offset) != row or not version.start <= row.offset < version.end
    ]


def _differences(known: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    ours, theirs = {row.offset: row for row in rows}, {row.offset: row for row in known}
    wrong = sorted(offset for offset in ours.keys() | theirs.keys() if ours.get(offset) != theirs.get(offset))
    return [f"offset {offset} is {ours.get(offset)}, and Kafka has {theirs.get(offset)}" for offset in wrong] or [
        f"{len(rows)} records were read, and Kafka has {len(known)}: some come twice"
    ]
