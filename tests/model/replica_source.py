"""A source's history, made by the real edits: the versions that a replica may take over, and what objects hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from keyfold.log import edits
from keyfold.log.edits import Edit, Replacement, Swap
from keyfold.log.manifest import Manifest, SegmentEntry, stamped
from keyfold.log.names import ObjectName, Role
from tests.model import truth
from tests.support.manifests import entry

Rows = tuple[tuple[int, int], ...]
"""(offset, epoch of the pass that marked it, or 0), in offset order."""


@dataclass
class History:
    """Versions of one log, and the rows of every object by its segment's name."""

    kafka: truth.KafkaLog
    versions: list[Manifest] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=dict)
    _now: Manifest = field(
        default_factory=lambda: Manifest("t", 0, log_id="source", sync_marker=bytes(16), version=0), repr=False
    )

    def append(self, offset: int) -> History:
        """A sink adds one record."""
        self._apply(edits.claim(Role.SINK, self._now.sink.epoch))
        epoch = self._now.sink.epoch
        new = self._entry(ObjectName(offset, epoch, Role.SINK, f"{offset:016x}"), ((offset, 0),), offset, offset + 1)
        self._apply(edits.append(epoch, new, base_offset=offset, next_offset=offset + 1))
        return self._done()

    def clean(self, *, purge: bool = False) -> History:
        """A pass over the whole log: only the last record of each key stays, and a tombstone until it may be purged."""
        self._apply(edits.claim(Role.COMPACTOR, self._now.compactor.epoch))
        epoch, old = self._now.compactor.epoch, self._now.segments
        rows = [row for e in old for row in self.rows[e.name]]
        last = {self._key(o): o for o, _ in rows}
        kept: list[tuple[int, int]] = []
        purged = [0, -1]
        for offset, mark in rows:
            if last[self._key(offset)] != offset:
                continue
            if self._is_tombstone(offset) and purge and mark:
                purged = [max(purged[0], mark), offset]
                continue
            kept.append((offset, mark or epoch if self._is_tombstone(offset) else 0))
        name = ObjectName(old[0].base_offset, epoch, Role.COMPACTOR, f"{epoch:016x}")
        new = self._entry(name, tuple(kept), old[0].base_offset, old[-1].next_offset)
        swap = Swap(old, (new,))
        end = old[-1].next_offset
        self._apply(
            edits.replace_segments(epoch, Replacement((swap,), end, purged_epoch=purged[0], purged_to=purged[1]))
        )
        return self._done()

    def _entry(self, name: ObjectName, rows: Rows, base: int, end: int) -> SegmentEntry:
        self.rows[str(name)] = rows
        tombstones = [mark for o, mark in rows if self._is_tombstone(o)]
        return entry(
            name, base, end, last_offset=rows[-1][0], record_count=len(rows), tombstones=len(tombstones),
            unmarked=tombstones.count(0), cleaned_epochs=tuple(sorted({m for m in tombstones if m})),
        )  # fmt: skip

    def _apply(self, edit: Edit) -> None:
        self._now = replace(edit(stamped(self._now, 0), 0), version=self._now.version + 1)

    def _done(self) -> History:
        self.versions.append(self._now)
        return self

    def _key(self, offset: int) -> str:
        record = self.kafka[offset]
        assert record is not None
        return record[0]

    def _is_tombstone(self, offset: int) -> bool:
        record = self.kafka[offset]
        return record is not None and record[1] is None


def cleaned() -> History:
    """Appended, cleaned, appended, purged."""
    return History(truth.FIVE).append(0).append(1).append(2).clean().append(3).clean(purge=True)
