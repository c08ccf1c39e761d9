"""Copy kept writer schemas (`_schemas/*`) to the replica before the records that name them.

Segments do not list the schemas of their records, so the folders are compared. A schema is kept before the first record
with it is committed. So a listing that starts after a manifest was read has every schema that its records name. Rounds
of many partitions share a listing. A caller that arrives during one waits for the next, which may have started too
early.
"""

from __future__ import annotations

import re
import threading
from typing import Final

from keyfold.log.names import SCHEMAS_FOLDER
from keyfold.runtime.retry import RetryPolicy
from keyfold_replicator.copy.transfer import Transfer
from keyfold_replicator.registry.replica_pair import LogDirectory, ReplicaPair
from keyfold_replicator.state.totals import RoundTotals, Tally

_SUFFIX: Final = ".avsc"
_MD5: Final = re.compile(r"[0-9a-f]{32}")


class SchemaCopier:
    """Copies the schemas of one replica. Thread-safe."""

    def __init__(self, pair: ReplicaPair, transfer: Transfer, tally: Tally, retry: RetryPolicy) -> None:
        self._pair = pair
        self._transfer = transfer
        self._tally = tally
        self._repeat = retry.repeat
        self._lock = threading.Lock()
        self._round = threading.Lock()
        self._asked = 0
        self._done = 0
        self._there: set[str] = set()

    def copy_missing(self) -> None:
        """Return when the replica has every schema that was kept when this was called.

        Raise what the stores raise, and `StoreError` if the replica has another schema for an id.
        """
        with self._lock:
            self._asked += 1
            mine = self._asked
        with self._round:
            if self._done >= mine:
                return  # a listing that began after the call has been carried out by another thread
            with self._lock:
                up_to = self._asked
            self._copy_missing()
            self._done = up_to

    def _copy_missing(self) -> None:
        kept = self._repeat(lambda: _stems(self._pair.source))
        if kept.keys() <= self._there:
            return
        there = self._repeat(lambda: _stems(self._pair.replica))
        missing = sorted(kept.keys() - there.keys())
        # Equal MD5 ETags mean equal schemas. The bytes of the others are compared, once.
        doubtful = sorted(s for s in kept.keys() & there.keys() - self._there if not kept[s] or kept[s] != there[s])
        sent = self._transfer.copy_schemas(self._pair.source.topics_dir, missing)
        self._tally.add(RoundTotals(schemas_sent=sent))
        self._transfer.copy_schemas(self._pair.source.topics_dir, doubtful)
        self._there |= kept.keys()


def _stems(side: LogDirectory) -> dict[str, str]:
    """Return ids, each with its object's ETag if that looks like the MD5 of its bytes."""
    prefix = f"{side.topics_dir}/{SCHEMAS_FOLDER}" if side.topics_dir else SCHEMAS_FOLDER
    listed = ((info.key.removeprefix(prefix), info.etag.strip('"')) for info in side.store.list(prefix))
    return {
        name.removesuffix(_SUFFIX): etag if _MD5.fullmatch(etag) else ""
        for name, etag in listed
        if name.endswith(_SUFFIX) and "/" not in name
    }
