"""Copy jobs and their results, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from keyfold.errors import KeyfoldError
from keyfold.log.names import Place


class TransferStopped(KeyfoldError):
    """The copy was stopped before its end; nothing is wrong with the object."""

    retriable = True


@dataclass(frozen=True, slots=True)
class CopyJob:
    """An object of the source partition at `place`, by its name in the partition's folder, as its manifest has it."""

    place: Place
    name: str
    size_bytes: int
    sha256: bytes

    @property
    def key(self) -> str:
        """The object's key at the source."""
        return self.place.key(self.name)


class CopyMethod(Enum):
    """How an object got to the replica."""

    SENT = "sent"
    COPIED_BY_STORE = "copied by the store"
    WAS_THERE = "was there"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """One object that is now at the replica. `sent_bytes` were sent from here for it, without retries."""

    job: CopyJob
    way: CopyMethod
    sent_bytes: int
