"""Objects from one bucket into another: each once, whole or not at all, and only with the bytes that the manifest names.

    Transfer.copy(jobs)      one call per round; many may run at once and share the threads fairly

A job is an object of a partition that the source's manifest names, with its size and SHA-256. It becomes visible at the
replica, create-only, when all its bytes have been summed up and agree:

    small          one GET, one PUT
    large          fetched in ranges that are the parts of an upload; `complete` comes after the sum. What an earlier
                   process has sent of it is not sent again (`ResumingStore`)
    inside a store copied by the store itself where both ends are its own and it says the SHA-256 (`CopyingStore`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from keyfold.log.commit import Patience
from keyfold.log.names import Place
from keyfold.store.api import ObjectStore
from keyfold.store.pace import Pacer

DEFAULT_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class CopyJob:
    """An object of the source partition at `place`, by its name in the partition's folder, as its manifest has it."""

    place: Place
    name: str
    size_bytes: int
    sha256: bytes


class Way(Enum):
    """How an object came to be at the replica."""

    SENT = "sent"
    COPIED_BY_STORE = "copied by the store"
    WAS_THERE = "was there"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """One object that is at the replica now. `sent_bytes` went out from here for it, repetitions not counted."""

    job: CopyJob
    way: Way
    sent_bytes: int


class Transfer:
    """Copies between two stores, with one set of threads for all partitions. Thread-safe; close it.

    `topics_dir` is the replica's; the source's is in each job's place. Stores that pace by themselves (`S3Store` with a
    pacer) need no `pacer` here; else it is asked for each byte once, as it is fetched.
    """

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        *,
        topics_dir: str,
        patience: Patience,
        threads: int = DEFAULT_THREADS,
        pacer: Pacer | None = None,
    ) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what is under way at its next request, and wait for it. Parts that were sent stay for the next one."""

    def copy(self, jobs: Iterable[CopyJob]) -> Iterator[CopyResult]:
        """Copy each job's object; results as they come, in any order. Consume it: nothing happens before.

        Fails with the first error, after what was under way has ended (and was given out); what is there stays there.
        `ObjectNotFound`: the *source* has not the object any more, plan again. `Corrupt`: its bytes are not the
        manifest's, or other bytes of another size are under its name at the replica. `StoreUnavailable` after patience.
        Closing the iterator early stops the rest.
        """
        raise NotImplementedError

    def copy_schemas(self, topics_dir: str, schemas: Iterable[int | str]) -> int:
        """Copy kept schemas (`_schemas/<id>.avsc`) from the source's `topics_dir`; how many were sent.

        One that the source has not kept is passed over: it was kept or not before there were replicas. Raises `StoreError`
        where the replica has another schema under the id.
        """
        raise NotImplementedError
