"""A small JSON object that many processes may change: read, apply the change, write with `If-Match`.

A request without an answer is repeated unchanged until the store accepts or refuses it. The object keeps the ids of its
last changes. So a process whose write is refused sees whether an earlier attempt of its own has landed, also if other
changes followed. No change is lost or made twice (decision 12 describes the same for a sink's desired state).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from keyfold.errors import (
    AlreadyExists,
    ConditionUndecided,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
)
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import Create, ObjectStore, Update
from keyfold.store.documents import DOCUMENT_BYTES_MAX, DocumentUnreadable, load_json

_CHANGES_KEPT: Final = 64
PATIENCE_S: Final = 15.0
_DELAYS: Final = Backoff(first_ms=50, cap_ms=2000)

Body = Mapping[str, Any]
Change = Callable[[Body | None], Body | None]
"""A function from the current body (None: no object) to the new one; the same object, or None, means no change."""


@dataclass(frozen=True, slots=True)
class Found:
    """One version of the object. `body` is None if it does not exist."""

    body: Body | None
    version: int = 0
    changes: tuple[str, ...] = ()
    etag: str = ""


def patience(clock: Clock, random: Random) -> RetryPolicy:
    """Return how long a command waits for a store."""
    return RetryPolicy(clock, random, _DELAYS, PATIENCE_S)


class SwappedObject:
    """One such object. Used by one thread at a time."""

    def __init__(self, store: ObjectStore, key: str, clock: Clock, random: Random) -> None:
        self._store = store
        self.key = key
        self._random = random
        self._patience = patience(clock, random)

    def read(self) -> Found:
        """Return the newest version. Raise `DocumentUnreadable`, and what the store raises when retries run out."""
        try:
            blob = self._patience.repeat(lambda: self._store.get(self.key, DOCUMENT_BYTES_MAX))
        except ObjectNotFound:
            return Found(None)
        try:
            body = dict(load_json(blob.data))
            version, changes = int(body.pop("version")), tuple(map(str, body.pop("changes")))
        except (ValueError, TypeError, KeyError) as error:
            hint = "look at the object, delete it, and repeat the commands that had written it"
            raise DocumentUnreadable(self.key, f"is not a document of keyfold: {error!r}", hint=hint) from error
        return Found(body, version, changes, blob.etag)

    def change(self, change: Change) -> Found:
        """Make a change once; return the object after it.

        Raise what `change` raises, and `StoreUnavailable` if the store gave no certain answer for too long. The change
        may then still take effect.
        """
        change_id = f"{self._random.getrandbits(64):016x}"
        while True:
            found = self.read()
            if change_id in found.changes:
                return found
            changed = change(found.body)
            if changed is None or changed is found.body:
                return found
            changes = (*found.changes, change_id)[-_CHANGES_KEPT:]
            if self._write({"version": found.version + 1, **changed, "changes": changes}, found.etag):
                return Found(changed, found.version + 1, changes)

    def remove(self) -> None:
        """Remove the object."""
        self._patience.repeat(lambda: self._store.delete(self.key))

    def _write(self, document: Body, etag: str) -> bool:
        """PUT until the store accepts or refuses."""
        data = json.dumps(document, indent=2, ensure_ascii=False).encode()
        mode = Update(etag) if etag else Create()
        try:
            self._patience.repeat(lambda: self._store.put(self.key, data, mode))
        except (AlreadyExists, PreconditionFailed, ObjectNotFound):
            return False
        except (StoreUnavailable, ConditionUndecided) as error:
            raise StoreUnavailable(
                self.key,
                f"the store gave no certain answer: {error.message}",
                hint="the request may still take effect; check before you retry",
            ) from error
        return True
