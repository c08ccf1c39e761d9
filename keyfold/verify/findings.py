"""Findings of a verification, as values.

*Damage* breaks a promise of the log; a *note* informs the operator, and no record is affected. Every finding names an
object, and block, record and offset if they are known. It describes the problem, the loss, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold.log.names import Place


class FindingKind(Enum):
    """Kinds of findings, with their printed names."""

    FIRST_COPY = "first-copy"
    NOT_VERIFIED = "not-verified"
    MANIFEST_LOST = "manifest-lost"
    MANIFEST_DAMAGED = "manifest-damaged"
    MANIFEST_OUTDATED = "manifest-outdated"
    SEGMENT_MISSING = "segment-missing"
    SEGMENT_TRUNCATED = "segment-truncated"
    SEGMENT_CHECKSUM = "segment-checksum"
    SEGMENT_SWAPPED = "segment-swapped"
    SEGMENT_DOUBLED = "segment-doubled"
    SEGMENT_FOREIGN = "segment-foreign"
    BLOCK_DAMAGED = "block-damaged"
    INDEX_MISSING = "index-missing"
    INDEX_DAMAGED = "index-damaged"
    INDEX_DIFFERS = "index-differs"
    RECORD_LOST = "record-lost"
    TOMBSTONE_LOST = "tombstone-lost"
    RECORD_DIFFERS = "record-differs"
    RECORD_UNEXPECTED = "record-unexpected"
    OFFSETS_WRONG = "offsets-wrong"
    COUNT_WRONG = "count-wrong"
    TIMES_WRONG = "times-wrong"
    MARKS_WRONG = "marks-wrong"
    RECORD_SUPERSEDED = "record-superseded"
    KEY_RESURRECTED = "key-resurrected"
    TOPIC_DIFFERS = "topic-differs"
    NOT_COMPARED = "not-compared"
    MANIFEST_COPY = "manifest-copy"
    ORPHAN = "orphan"
    REPLACED = "replaced"
    UNFINISHED_UPLOAD = "unfinished-upload"
    UNKNOWN_OBJECT = "unknown-object"

    @property
    def is_damage(self) -> bool:
        """Whether it breaks a promise of the log."""
        return self not in _NOTES


_NOTES: Final = frozenset({
    FindingKind.FIRST_COPY, FindingKind.NOT_VERIFIED, FindingKind.NOT_COMPARED, FindingKind.MANIFEST_COPY,
    FindingKind.ORPHAN, FindingKind.REPLACED, FindingKind.UNFINISHED_UPLOAD, FindingKind.UNKNOWN_OBJECT,
})  # fmt: skip

NOTHING: Final = "nothing"
RESTORE: Final = "restore this object from an older version of the bucket or from a replica"
REPORT: Final = "leave the bucket unchanged, and report this: a keyfold process wrote it"
MAX_ALIKE: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `object` is a key in the bucket, or a topic partition in Kafka.

    `block`, `record` (its number in the block, from 0) and `offset` are -1 if they do not apply.
    """

    kind: FindingKind
    object: str
    what: str
    lost: str = NOTHING
    to_do: str = RESTORE
    block: int = -1
    offset: int = -1
    record: int = -1

    def __str__(self) -> str:
        where = self.object
        where += f", block {self.block}" if self.block >= 0 else ""
        where += f", record {self.record}" if self.record >= 0 else ""
        where += f", offset {self.offset}" if self.offset >= 0 else ""
        text = f"{self.kind.value}: {where}: {self.what}"
        return f"{text}; lost: {self.lost}; to do: {self.to_do}" if self.kind.is_damage else text


@dataclass(slots=True)
class Findings:
    """A list of at most `MAX_ALIKE` findings of one kind about one object; further ones are counted."""

    _kept: dict[tuple[FindingKind, str], list[Finding]] = field(default_factory=dict)
    _more: dict[tuple[FindingKind, str], int] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Add a finding, or count it."""
        alike = self._kept.setdefault((finding.kind, finding.object), [])
        if len(alike) < MAX_ALIKE:
            alike.append(finding)
        else:
            key = finding.kind, finding.object
            self._more[key] = self._more.get(key, 0) + 1

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add all of them."""
        for finding in findings:
            self.add(finding)

    def __iter__(self) -> Iterator[Finding]:
        for key, alike in self._kept.items():
            yield from alike
            if key in self._more:
                yield Finding(*key, f"{self._more[key]} more like this", alike[-1].lost, alike[-1].to_do)

    def __len__(self) -> int:
        return sum(map(len, self._kept.values())) + sum(self._more.values())

    def __bool__(self) -> bool:
        return bool(self._kept)

    def has(self, kind: FindingKind) -> bool:
        """Return whether there is a finding of this kind."""
        return any(found is kind for found, _ in self._kept)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verifying one partition. `version` is -1 if no manifest could be read.

    `compared` is the number of offsets compared with Kafka; -1 without a comparison.
    """

    place: Place
    version: int
    segments: int
    records: int
    findings: tuple[Finding, ...]
    size_bytes: int = 0
    compared: int = -1

    @property
    def damage(self) -> tuple[Finding, ...]:
        """The findings that are damage."""
        return tuple(f for f in self.findings if f.kind.is_damage)

    @property
    def is_sound(self) -> bool:
        """Whether the log was verified and has no damage."""
        return not (self.damage or self.is_first_copy or self.is_unverified)

    @property
    def is_first_copy(self) -> bool:
        """Whether the first copy of a replica is not complete, so there is no log to verify yet."""
        return any(f.kind is FindingKind.FIRST_COPY for f in self.findings)

    @property
    def is_unverified(self) -> bool:
        """Whether the log could not be verified; a finding has the reason."""
        return any(f.kind is FindingKind.NOT_VERIFIED for f in self.findings)


def unverified(place: Place, error: KeyfoldError) -> VerifyReport:
    """Return the report of a partition that cannot be verified because of this error."""
    return VerifyReport(place, -1, 0, 0, (Finding(FindingKind.NOT_VERIFIED, place.manifest_key, str(error)),))
