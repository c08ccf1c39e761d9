"""A small object that many processes may change by compare-and-swap: read, apply the change, write with `If-Match`.

    swap          one write over a known version; a request without an answer is repeated unchanged until the store
                  accepts or refuses it
    CasObject     a value of any type that is changed with `swap`
    CasDocument   a `CasObject` of JSON with the fields `version` and `changes`

A `CasObject` keeps the ids of its last changes. So a process whose write is refused sees whether an earlier attempt of
its own has landed, also if other changes followed. No change is lost or made twice (decision 12 describes it for a
sink's desired state). A caller of `swap` recognises its own bytes itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Generic, TypeVar

from keyfold.errors import (
    AlreadyExists,
    ConditionUndecided,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
)
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import Backoff, RetryPolicy
from keyfold.store.api import Blob, Create, ObjectStore, Update
from keyfold.store.documents import DOCUMENT_BYTES_MAX, DocumentUnreadable, load_json

T = TypeVar("T")

_CHANGES_KEPT: Final = 64
DOCUMENT_TIMEOUT_S: Final = 15.0
_DELAYS: Final = Backoff(first_ms=50, cap_ms=2000)


def document_retry(clock: Clock, random: Random, timeout_s: float = DOCUMENT_TIMEOUT_S) -> RetryPolicy:
    """Return how long a request that a user waits for is retried."""
    return RetryPolicy(clock, random, _DELAYS, timeout_s)


def swap(store: ObjectStore, key: str, data: bytes, etag: str, retry: RetryPolicy | None = None) -> str | None:
    """PUT over the version `etag` (empty: there is no object) and return the new ETag; None if the store refuses.

    With `retry`, an undecided request is repeated unchanged. A refusal may then be about an earlier attempt of the same
    call that has landed. Raise the store's error if the request stays undecided; it may still take effect.
    """
    mode = Update(etag) if etag else Create()
    try:
        result = store.put(key, data, mode) if retry is None else retry.repeat(lambda: store.put(key, data, mode))
    except (AlreadyExists, PreconditionFailed, ObjectNotFound):
        return None
    return result.etag


@dataclass(frozen=True, slots=True)
class CasFormat(Generic[T]):
    """How a `CasObject` is stored.

    `change_ids` returns the ids of the last changes of a value. `stamped` returns the next version of a value from the
    current one (None: no object), the changed one and the id of the change.
    """

    decode: Callable[[Blob], T]
    encode: Callable[[T], bytes]
    change_ids: Callable[[T], tuple[str, ...]]
    stamped: Callable[[T | None, T, str], T]


class CasObject(Generic[T]):
    """One object that is changed by compare-and-swap. Keeps nothing, so several threads may use it."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        stored_as: CasFormat[T],
        retry: RetryPolicy,
        random: Random,
        *,
        undecided: str = "the store gave no certain answer",
        undecided_hint: str = "the request may still take effect; check before you retry",
    ) -> None:
        self._store = store
        self.key = key
        self._format = stored_as
        self._retry = retry
        self._random = random
        self._undecided = undecided
        self._undecided_hint = undecided_hint

    def read(self) -> T | None:
        """Return the newest value, with one request; None if there is no object."""
        return self._read()[0]

    def read_with_retries(self) -> T | None:
        """Return the newest value; None if there is no object."""
        return self._retry.repeat(self._read)[0]

    def change(self, change: Callable[[T | None], T | None]) -> T | None:
        """Make a change once; return the value after it.

        `change` returns None or the same object if there is nothing to change. Raise what it raises, and
        `StoreUnavailable` if the store gave no certain answer for too long. The change may then still take effect.
        """
        change_id = f"{self._random.getrandbits(64):016x}"
        while True:
            before, etag = self._retry.repeat(self._read)
            if before is not None and change_id in self._format.change_ids(before):
                return before
            changed = change(before)
            if changed is None or changed is before:
                return before
            after = self._format.stamped(before, changed, change_id)
            if self._write(after, etag):
                return after

    def remove(self) -> None:
        """Remove the object."""
        self._retry.repeat(lambda: self._store.delete(self.key))

    def _read(self) -> tuple[T | None, str]:
        try:
            blob = self._store.get(self.key, DOCUMENT_BYTES_MAX)
        except ObjectNotFound:
            return None, ""
        return self._format.decode(blob), blob.etag

    def _write(self, value: T, etag: str) -> bool:
        try:
            return swap(self._store, self.key, self._format.encode(value), etag, self._retry) is not None
        except (StoreUnavailable, ConditionUndecided) as error:
            message = f"{self._undecided}: {error.message}"
            raise StoreUnavailable(self.key, message, hint=self._undecided_hint) from error


DocumentBody = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """One version of a document. `body` is None if the object does not exist."""

    body: DocumentBody | None
    version: int = 0
    changes: tuple[str, ...] = ()


class CasDocument:
    """A JSON object with a version and the ids of its last changes. Fields that nobody changes are kept."""

    def __init__(self, store: ObjectStore, key: str, clock: Clock, random: Random) -> None:
        stored_as = CasFormat(self._decode, _encode, lambda document: document.changes, _stamped)
        self._object = CasObject(store, key, stored_as, document_retry(clock, random), random)
        self.key = key

    def read(self) -> DocumentVersion:
        """Return the newest version. Raise `DocumentUnreadable`, and what the store raises when retries run out."""
        return self._object.read_with_retries() or DocumentVersion(None)

    def change(self, change: Callable[[DocumentBody | None], DocumentBody | None]) -> DocumentVersion:
        """Make a change once; return the version after it. See `CasObject.change`."""

        def changed(before: DocumentVersion | None) -> DocumentVersion | None:
            body = None if before is None else before.body
            after = change(body)
            return None if after is None or after is body else DocumentVersion(after)

        return self._object.change(changed) or DocumentVersion(None)

    def remove(self) -> None:
        """Remove the object."""
        self._object.remove()

    def _decode(self, blob: Blob) -> DocumentVersion:
        try:
            body = dict(load_json(blob.data))
            version, changes = int(body.pop("version")), tuple(map(str, body.pop("changes")))
        except (ValueError, TypeError, KeyError) as error:
            hint = "look at the object, delete it, and repeat the commands that had written it"
            raise DocumentUnreadable(self.key, f"is not a document of keyfold: {error!r}", hint=hint) from error
        return DocumentVersion(body, version, changes)


def _encode(document: DocumentVersion) -> bytes:
    assert document.body is not None
    stored = {"version": document.version, **document.body, "changes": document.changes}
    return json.dumps(stored, indent=2, ensure_ascii=False).encode()


def _stamped(before: DocumentVersion | None, changed: DocumentVersion, change_id: str) -> DocumentVersion:
    newest = before or DocumentVersion(None)
    return DocumentVersion(changed.body, newest.version + 1, (*newest.changes, change_id)[-_CHANGES_KEPT:])
