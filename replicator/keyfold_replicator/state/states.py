"""The state of one partition's replication, and what an error means for it.

    in-sync           the replica has everything that the source has
    pending           something is to be copied, and nothing prevents it
    copying           a round is in progress
    waiting           the last round failed with a temporary error, or a permission is missing: retried with backoff
    broken            the last round failed with a permanent error: retried only with the longest backoff
    resync-required   the source has removed tombstones that the replica never received; `keyfold replica resync`
                      accepts that
    paused            nothing is tried until `keyfold replica resume`

Every state but `paused` ends by itself once its cause is gone, because rounds are retried in all of them. The states
differ in how soon that happens, and in whether somebody has to act.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from keyfold.errors import (
    AlreadyExists,
    CommitUnknown,
    ConditionUndecided,
    Fenced,
    FirstCopyUnfinished,
    KeyfoldError,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UploadLost,
)
from keyfold.log.names import Place
from keyfold.runtime.json_types import JsonObject
from keyfold_replicator.state.figures import Lag, Pending

NEVER_MS: Final = -1


class SyncState(StrEnum):
    """The states; see the module's documentation."""

    IN_SYNC = "in-sync"
    PENDING = "pending"
    COPYING = "copying"
    WAITING = "waiting"
    BROKEN = "broken"
    RESYNC_REQUIRED = "resync-required"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class RoundFailure:
    """Why a round failed: a `code` that does not change between releases, the `host` that it is about, and a hint.

    `state` is the partition's resulting state.
    """

    state: SyncState
    code: str
    host: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one partition, as its replicator knows it.

    `place` is the source's. Times are local, in ms, -1 if there is none. After `attempts` failures in a row the
    replicator waits `backoff_ms`, until `next_attempt_ms`. `source_version` and `source_next_offset` are the newest
    that were read, `replica_version` is the source version that the replica has.
    """

    place: Place
    state: SyncState = SyncState.PENDING
    code: str = ""
    host: str = ""
    message: str = ""
    hint: str = ""
    attempts: int = 0
    backoff_ms: int = 0
    last_attempt_ms: int = NEVER_MS
    next_attempt_ms: int = NEVER_MS
    last_success_ms: int = NEVER_MS
    pending: Pending = field(default_factory=Pending)
    lag: Lag = field(default_factory=Lag)
    source_version: int = 0
    source_next_offset: int = NEVER_MS
    replica_version: int = 0
    replica_next_offset: int = NEVER_MS

    @property
    def has_failed(self) -> bool:
        """Whether the last round ended with an error."""
        return bool(self.code)

    def failed(self, failure_of: RoundFailure, *, now_ms: int, backoff_ms: int) -> PartitionState:
        """Return the state after a failed round."""
        return replace(
            self,
            state=failure_of.state,
            code=failure_of.code,
            host=failure_of.host,
            message=failure_of.message,
            hint=failure_of.hint,
            attempts=self.attempts + 1,
            backoff_ms=backoff_ms,
            last_attempt_ms=now_ms,
            next_attempt_ms=now_ms + backoff_ms,
        )

    def succeeded(self, *, now_ms: int, next_attempt_ms: int) -> PartitionState:
        """Return the state after a round that left nothing to send."""
        return replace(
            self,
            state=SyncState.IN_SYNC,
            code="",
            host="",
            message="",
            hint="",
            attempts=0,
            backoff_ms=0,
            last_attempt_ms=now_ms,
            next_attempt_ms=next_attempt_ms,
            last_success_ms=now_ms,
            pending=Pending(),
        )

    def as_json(self) -> JsonObject:
        """Return the state for `status.json` and `--json`: flat, without secrets."""
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "state": self.state.value,
            "code": self.code,
            "host": self.host,
            "message": self.message,
            "hint": self.hint,
            "attempts": self.attempts,
            "backoff_ms": self.backoff_ms,
            "last_attempt_ms": self.last_attempt_ms,
            "next_attempt_ms": self.next_attempt_ms,
            "last_success_ms": self.last_success_ms,
            "pending_bytes": self.pending.bytes,
            "pending_records": self.pending.records,
            "pending_segments": self.pending.segments,
            "earliest_pending_ms": self.pending.earliest_ms,
            "latest_pending_ms": self.pending.latest_ms,
            "lag_records": self.lag.records,
            "lag_existing_records": self.lag.existing_records,
            "lag_ms": self.lag.ms,
            "source_version": self.source_version,
            "source_next_offset": self.source_next_offset,
            "replica_version": self.replica_version,
            "replica_next_offset": self.replica_next_offset,
        }

    @staticmethod
    def of_json(found: Mapping[str, Any], topics_dir: str) -> PartitionState:
        """Read what `as_json` of any version wrote: missing fields have defaults, unknown ones are ignored.

        Raise `TypeError` for a field of the wrong type, `KeyError` and `ValueError` if there is no partition.
        """
        usual = PartitionState(Place(topics_dir, "", 0)).as_json()
        for key in usual.keys() & found.keys():
            if type(found[key]) is not type(usual[key]):
                raise TypeError(f"`{key}` is {type(found[key]).__name__}, but must be {type(usual[key]).__name__}")
        values = {name: found[name] for name in _PLAIN if name in found}
        pending = {name: found[key] for key, name in _PENDING.items() if key in found}
        lag = {name: found[key] for key, name in _LAG.items() if key in found}
        place = Place(topics_dir, str(found["topic"]), int(found["partition"]))
        known = found.get("state") in {s.value for s in SyncState}
        state = SyncState(found["state"]) if known else SyncState.PENDING
        return PartitionState(place, state, pending=Pending(**pending), lag=Lag(**lag), **values)


_PLAIN: Final = (
    "code", "host", "message", "hint", "attempts", "backoff_ms", "last_attempt_ms", "next_attempt_ms",
    "last_success_ms", "source_version", "source_next_offset", "replica_version", "replica_next_offset",
)  # fmt: skip
_PENDING: Final = {
    "pending_bytes": "bytes",
    "pending_records": "records",
    "pending_segments": "segments",
    "earliest_pending_ms": "earliest_ms",
    "latest_pending_ms": "latest_ms",
}
_LAG: Final = {"lag_records": "records", "lag_existing_records": "existing_records", "lag_ms": "ms"}

# Errors that are not retriable as calls, but after which a new round may well succeed.
_NEW_ROUND: Final[tuple[type[KeyfoldError], ...]] = (
    AlreadyExists, ConditionUndecided, CommitUnknown, Fenced, FirstCopyUnfinished, ObjectNotFound, PreconditionFailed,
    StoreUnavailable, UploadLost,
)  # fmt: skip
_WAITING_CODES: Final = frozenset({"CompactionNotEnabled", "ReplicaFormatTooOld"})
_RESYNC_CODES: Final = frozenset({"ResyncRequired"})


def failure_of(error: BaseException, host: str) -> RoundFailure:
    """Return what an error of a round means. `host` is used if the error names none."""
    host = getattr(error, "host", "") or host
    if not isinstance(error, KeyfoldError):
        said = f"{type(error).__name__}: {error}"
        return RoundFailure(SyncState.BROKEN, "Internal", host, said, "this is a bug in keyfold; please report it")
    code = code_of(error)
    state = SyncState.WAITING if error.retriable or isinstance(error, _NEW_ROUND) else SyncState.BROKEN
    if type(error).__name__ in _WAITING_CODES:
        state = SyncState.WAITING
    if type(error).__name__ in _RESYNC_CODES:
        state = SyncState.RESYNC_REQUIRED
    return RoundFailure(state, code, host, error.message, error.hint or "")


def code_of(error: KeyfoldError) -> str:
    """Return the store's error code if it gave one (`SlowDown`), else the name of the error's class."""
    said = error.code if isinstance(error, StoreError) else ""
    return said if re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", said) else type(error).__name__
