"""Exact translation of consumer groups' offsets from the source topic to the target topic.

    in      exported by Kafka's own tool:  kafka-consumer-groups.sh --reset-offsets --export --dry-run
                one group        topic,partition,offset
                several          group,topic,partition,offset
    out     the same form, which its --reset-offsets --from-file takes

A group continues at its committed offset. In the target that is the first restored record at or after it, at the
target offset in the journal; or the end of the restored records if there is none.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Final

import numpy as np

from keyfold.errors import ConfigError
from keyfold.restore.errors import RestoreRefused
from keyfold.restore.journal import Journal
from keyfold.restore.window import Window

_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_SHOWN: Final = 200
_EXPORT: Final = "export it with kafka-consumer-groups.sh --reset-offsets --export --dry-run"


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A row of the file. `group` is None in the form without groups."""

    group: str | None
    topic: str
    partition: int
    offset: int


def parse_offsets(text: str, source: str) -> list[GroupOffset]:
    """Rows of an exported file; `source` names it in messages. Raises `ConfigError`."""
    found: list[GroupOffset] = []
    try:
        rows = list(csv.reader(StringIO(text), skipinitialspace=True))
    except csv.Error as error:
        raise ConfigError(source, f"is not CSV: {error}", hint=_EXPORT) from error
    for number, row in enumerate(rows, 1):
        if not row or (number == 1 and row[-1].strip().lower() == "offset"):
            continue
        *names, partition, offset = [cell.strip() for cell in row] if len(row) in {3, 4} else ["", "", ""]
        if not names or not all(names) or not _NUMBER.fullmatch(partition) or not _NUMBER.fullmatch(offset):
            shown = ",".join(row)[:_SHOWN]
            raise ConfigError(
                source,
                f"line {number} is neither topic,partition,offset nor group,topic,partition,offset: {shown!r}",
                hint=_EXPORT,
            )
        group = names[0] if len(names) > 1 else None
        found.append(GroupOffset(group, names[-1], int(partition), int(offset)))
    if len({row.group is None for row in found}) > 1:
        raise ConfigError(source, "has lines with a group and lines without one", hint="split it into two files")
    return found


def format_offsets(rows: Iterable[GroupOffset]) -> str:
    """Rows as Kafka's tool reads them."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([*([] if row.group is None else [row.group]), row.topic, row.partition, row.offset])
    return out.getvalue()


def translate(
    rows: Sequence[GroupOffset], journal: Journal, partitions: Iterable[int], source_topic: str, target_topic: str
) -> tuple[list[GroupOffset], list[GroupOffset]]:
    """Rows about the source topic in the target's offsets, in their order; and the rows about other topics.

    Raises `RestoreRefused` for a partition that is not restored, or not yet in full.
    """
    ours = [row for row in rows if row.topic == source_topic]
    others = [row for row in rows if row.topic != source_topic]
    known = frozenset(partitions)
    wanted: dict[int, list[int]] = {}
    for row in ours:
        if row.partition not in known:
            raise RestoreRefused(
                f"the file has an offset for {source_topic}-{row.partition}, but that partition was not restored",
                hint="restore the partition too, or remove its lines from the file",
            )
        wanted.setdefault(row.partition, []).append(row.offset)
    found = {partition: translate_partition(journal, partition, offsets) for partition, offsets in wanted.items()}
    return [replace(row, topic=target_topic, offset=found[row.partition][row.offset]) for row in ours], others


def translate_partition(journal: Journal, partition: int, offsets: Iterable[int]) -> Mapping[int, int]:
    """Source offset -> target offset, for a finished partition. One window is held at a time."""
    numbers = journal.numbers(partition)
    if not numbers or not (last := journal.read(partition, numbers[-1])).finished:
        raise RestoreRefused(
            f"partition {partition} is not restored completely, so its last offsets are not known yet",
            hint="finish the restore, then translate the offsets",
        )
    asked = np.array(sorted(set(offsets)), np.int64)
    found = np.full(len(asked), last.base, np.int64)
    for window in journal.in_force(partition, numbers):
        _place(window, asked, found)
    return dict(zip(asked.tolist(), found.tolist(), strict=True))


def _place(window: Window, asked: np.ndarray[tuple[int], np.dtype[np.int64]],
           found: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:  # fmt: skip
    """Windows come from the last to the first, so what an earlier one holds goes before."""
    at = np.searchsorted(window.offsets, asked)
    here = at < len(window.offsets)
    found[here] = window.base + at[here]
