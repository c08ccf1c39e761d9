"""What verification may find, as values.

A *damage* is anything that breaks what the log promises; a *note* is something that an operator may want to know and
that costs nobody a record. Every finding names an object, and block and offset where they are known, says what is
wrong, what is lost by it, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from keyfold.log.names import Place


class Kind(Enum):
    """Kinds of findings; the value is the name that is printed."""

    MANIFEST_LOST = "manifest-lost"
    MANIFEST_DAMAGED = "manifest-damaged"
    SEGMENT_MISSING = "segment-missing"
    SEGMENT_TRUNCATED = "segment-truncated"
    SEGMENT_CHECKSUM = "segment-checksum"
    SEGMENT_SWAPPED = "segment-swapped"
    SEGMENT_FOREIGN = "segment-foreign"
    BLOCK_DAMAGED = "block-damaged"
    INDEX_MISSING = "index-missing"
    INDEX_DAMAGED = "index-damaged"
    INDEX_DIFFERS = "index-differs"
    RECORD_LOST = "record-lost"
    TOMBSTONE_LOST = "tombstone-lost"
    RECORD_UNEXPECTED = "record-unexpected"
    OFFSETS_WRONG = "offsets-wrong"
    COUNT_WRONG = "count-wrong"
    TIMES_WRONG = "times-wrong"
    MARKS_WRONG = "marks-wrong"
    RECORD_SUPERSEDED = "record-superseded"
    KEY_RESURRECTED = "key-resurrected"
    ORPHAN = "orphan"
    REPLACED = "replaced"
    UNFINISHED_UPLOAD = "unfinished-upload"
    UNKNOWN_OBJECT = "unknown-object"

    @property
    def is_damage(self) -> bool:
        """Whether the log breaks a promise by it."""
        return self not in _NOTES


_NOTES: Final = frozenset({Kind.ORPHAN, Kind.REPLACED, Kind.UNFINISHED_UPLOAD, Kind.UNKNOWN_OBJECT})

NOTHING: Final = "nothing"
RESTORE: Final = "restore this object from an older version of the bucket or from a replica"
REPORT: Final = "keep the bucket as it is and report this: a writer of keyfold made it"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `object` is a key in the bucket; `block` and `offset` are -1 where they say nothing."""

    kind: Kind
    object: str
    what: str
    lost: str = NOTHING
    to_do: str = RESTORE
    block: int = -1
    offset: int = -1

    def __str__(self) -> str:
        where = self.object
        where += f", block {self.block}" if self.block >= 0 else ""
        where += f", offset {self.offset}" if self.offset >= 0 else ""
        text = f"{self.kind.value}: {where}: {self.what}"
        return f"{text}; lost: {self.lost}; to do: {self.to_do}" if self.kind.is_damage else text


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification of one partition saw. `version` is -1 where no manifest could be read."""

    place: Place
    version: int
    segments: int
    records: int
    findings: tuple[Finding, ...]

    @property
    def damage(self) -> tuple[Finding, ...]:
        """The findings that break a promise."""
        return tuple(f for f in self.findings if f.kind.is_damage)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage
