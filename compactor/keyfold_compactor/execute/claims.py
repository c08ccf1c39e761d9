"""The compactor's claims on the partitions of one batch, and their leases.

The epoch ensures safety. The lease only prevents two runs from fencing each other forever. Threads of the driver renew
the leases of a pass every third of their length. A session is used by one thread at a time: a thread that commits first
takes the claim's lock, so that the keeper does not use the session (`PartitionClaim.lock`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, Self

from keyfold.errors import KeyfoldError
from keyfold.log.partition_log import CompactorSession
from keyfold_compactor.decide.policy import CleaningDecision
from keyfold_compactor.decide.settings import TopicSettings
from keyfold_compactor.decide.work import LogJob

# One renewal takes two requests: five hundred in sequence would take longer than a lease.
RENEWALS_IN_PARALLEL: Final = 16


@dataclass(slots=True)
class PartitionClaim:
    """One claimed partition: the session, the job and the settings; `size_bytes` as the run saw it."""

    session: CompactorSession
    job: LogJob
    decision: CleaningDecision
    settings: TopicSettings
    lock: threading.Lock = field(default_factory=threading.Lock)
    keep: bool = True
    size_bytes: int = 0


class LeaseKeeper:
    """Renew leases every third of their length until the batch ends, except for claims without `keep`.

    Claims may be added to the list in the meantime. A renewal that hangs (a prefix that S3 slows down, a commit that is
    retried) does not delay the next renewals of other claims.
    """

    def __init__(self, claims: Sequence[PartitionClaim], lease_ms: int) -> None:
        self._claims = claims
        self._lease_ms = lease_ms
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keyfold-lease", daemon=True)
        self._pool = ThreadPoolExecutor(RENEWALS_IN_PARALLEL, "keyfold-renew")
        self._under_way: dict[int, Future[None]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._pool.shutdown()  # waits for renewals in progress: other threads use the sessions from now on

    def renew(self) -> None:
        """Renew every lease once, and wait for it."""
        wait(self.start_renewals())

    def start_renewals(self) -> list[Future[None]]:
        """Start to renew every lease, many at a time, except where the last renewal is still in progress."""
        for number, claim in enumerate(self._claims):
            before = self._under_way.get(number)
            if claim.keep and (before is None or before.done()):
                self._under_way[number] = self._pool.submit(self._renew, claim)
        return list(self._under_way.values())

    def _renew(self, claim: PartitionClaim) -> None:
        with claim.lock:
            if claim.keep and not self._over.is_set():
                _renew(claim, self._lease_ms)

    def _run(self) -> None:
        while not self._over.wait(self._lease_ms / 3000):
            self.start_renewals()


def _renew(claim: PartitionClaim, lease_ms: int) -> None:
    try:
        claim.session.renew(lease_ms)
    except KeyfoldError as error:
        # The commit detects a lost claim. A failed renewal is retried with the next ones.
        claim.keep = error.retriable
    except Exception:  # noqa: BLE001, S110 - what is wrong with one must not end the renewal of all others
        pass
