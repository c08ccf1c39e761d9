"""Holds: during a large copy, the source's manifest names the version that a replica still needs.

The hold has a version and an expiry time. It is only advice for the source's garbage collection: if an object is
deleted anyway, the copy gets a 404 and the round plans again. So a hold is renewed in the background, and a failed
renewal ends nothing. A hold that a crash has left expires, or the next round's cursor removes it earlier. Options and
metrics call it a pin (`replica.pin.min.bytes`).
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from keyfold.errors import KeyfoldError
from keyfold.log.commit import Pinned
from keyfold.log.partition_log import PartitionLog


class SourceHold:
    """Hold the version `source`, and renew the hold every third of `pin_ms` while this context is open.

    `log` must be this hold's own, because another thread uses it. Leaving the context only ends the renewals. The
    round's cursor removes the hold; without a cursor it stays for the next attempt.
    """

    def __init__(self, log: PartitionLog, hold_name: str, source: Pinned, pin_ms: int) -> None:
        self._log = log
        self._hold_name = hold_name
        self._version = source.manifest.version
        self._pin_ms = pin_ms
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keyfold-hold", daemon=True)
        self.pinned: Pinned = log.hold(hold_name, self._version, pin_ms, pinned=source)
        """The source when the hold was committed. Objects that it names stay: it is no older than the held version."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with self._lock:  # a renewal in flight would land after the cursor
            pass

    def _keep(self) -> None:
        while not self._over.wait(self._pin_ms / 3000):
            self.renew()

    def renew(self) -> None:
        """Hold for another `pin_ms`, unless the round has ended."""
        with self._lock:
            if self._over.is_set():
                return
            try:
                self._log.hold(self._hold_name, self._version, self._pin_ms)
            except KeyfoldError:
                return  # the next renewal may succeed; until then the hold lasts for its remaining time
