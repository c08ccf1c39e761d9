"""The report of a replicator, in `<topics.dir>/_replicas/<name>/status.json` of the source's bucket.

It is for people and dashboards. No decision depends on it, it may be late or missing, and the last writer wins. So
`keyfold replica status` shows waits, errors and attempts of a process that runs elsewhere. Fields with
default values are not stored. So a replica with thousands of partitions in sync has a small object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from keyfold.errors import AlreadyExists, KeyfoldError, ObjectNotFound, ObjectTooLarge, PreconditionFailed
from keyfold.log.names import Place
from keyfold.replicas.documents import registration_key, status_key
from keyfold.runtime.clock import Clock
from keyfold.runtime.json_types import JsonObject, JsonValue
from keyfold.store.api import Create, ObjectStore, Update
from keyfold.store.documents import DOCUMENT_BYTES_MAX, load_json
from keyfold_replicator.state.states import NEVER_MS, PartitionState
from keyfold_replicator.state.totals import Tally

HEARTBEAT_MS: Final = 60_000
"""A running process writes at least so often, also when nothing changes."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StatusReport:
    """One such object. `holder` is the process (`host:pid`); `written_at_ms` and all times in states are by its clock.

    `age_ms` is how long ago it was written, by the store's clock, so no local clock has to be right. `is_running` is
    False in the last report of a process that ended normally. `error`: why a run failed as a whole.
    """

    holder: str = ""
    written_at_ms: int = 0
    is_running: bool = False
    error: str = ""
    totals: Mapping[str, JsonValue] = field(default_factory=dict)
    partitions: Mapping[Place, PartitionState] = field(default_factory=dict)
    age_ms: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether the process still replicates, by its last report."""
        return self.is_running and self.age_ms < 3 * HEARTBEAT_MS

    def in_ms(self, time_ms: int) -> int:
        """Return the time until a time that the process has named; 0 if it has passed."""
        return max(0, time_ms - self.written_at_ms - self.age_ms)


def report_document(reported: StatusReport) -> JsonObject:
    """Return the object as it is stored."""
    return {
        "holder": reported.holder,
        "written_at_ms": reported.written_at_ms,
        "running": reported.is_running,
        "error": reported.error,
        "totals": dict(reported.totals),
        "partitions": [_short(state) for state in reported.partitions.values()],
    }


def _short(state: PartitionState) -> JsonObject:
    usual = PartitionState(state.place).as_json()
    keys = {"topic", "partition", "state"}
    return {key: value for key, value in state.as_json().items() if key in keys or value != usual[key]}


def report_of(data: bytes, topics_dir: str, age_ms: int = 0) -> StatusReport | None:
    """Read an object; None if no version of keyfold writes such a one. `topics_dir` is the source's."""
    try:
        found = load_json(data)
        states = [PartitionState.of_json(each, topics_dir) for each in found["partitions"]]
        return StatusReport(
            holder=str(found["holder"]),
            written_at_ms=int(found["written_at_ms"]),
            is_running=bool(found["running"]),
            error=str(found.get("error", "")),
            totals=dict(found.get("totals", {})),
            partitions={state.place: state for state in states},
            age_ms=age_ms,
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def load_report(store: ObjectStore, topics_dir: str, name: str) -> StatusReport | None:
    """Return the last report about the replica `name`; None if there is none. One GET."""
    try:
        blob = store.get(status_key(topics_dir, name), DOCUMENT_BYTES_MAX)
    except (ObjectNotFound, ObjectTooLarge):
        return None
    return report_of(blob.data, topics_dir, max(0, blob.date_ms - blob.last_modified_ms))


class StatusWriter:
    """Write the object for a process. A failed write is a warning, and replication continues.

    A `Runner` calls `write_running`, at most every 2 s while something changes; `write_ended` comes last. The report of
    an earlier process is not lost: it has the time of a partition's last success, and states that this process did not
    learn.
    """

    def __init__(
        self, store: ObjectStore, topics_dir: str, name: str, *, holder: str, clock: Clock, tally: Tally
    ) -> None:
        self._store = store
        self._key = status_key(topics_dir, name)
        self._registration_key = registration_key(topics_dir, name)
        self._holder = holder
        self._clock = clock
        self._tally = tally
        self._topics_dir = topics_dir
        self._name = name
        self._states: tuple[PartitionState, ...] | None = None
        self._earlier: Mapping[Place, PartitionState] | None = None
        self._etag = ""

    def write_running(self, states: Sequence[PartitionState]) -> None:
        """Report the states of all partitions."""
        self._states = tuple(states)
        self._write(is_running=True)

    def write_ended(self, error: str = "") -> None:
        """Report that this process has stopped replicating."""
        self._write(is_running=False, error=error)

    def _write(self, *, is_running: bool, error: str = "") -> None:
        now_ms, totals = self._clock.now_ms(), self._tally.totals.document()
        try:
            reported = StatusReport(self._holder, now_ms, is_running, error, totals, self._partitions())
            data = json.dumps(report_document(reported), separators=(",", ":"), ensure_ascii=False).encode()
            self._etag = self._put(data)
        except KeyfoldError as failure:
            log.warning("writing the replica status failed", key=self._key, error=str(failure))

    def _partitions(self) -> Mapping[Place, PartitionState]:
        if self._earlier is None:
            earlier = load_report(self._store, self._topics_dir, self._name)
            self._earlier = {} if earlier is None else earlier.partitions
        if self._states is None:
            return self._earlier
        return {state.place: self._with_success(state, self._earlier.get(state.place)) for state in self._states}

    def _with_success(self, state: PartitionState, earlier: PartitionState | None) -> PartitionState:
        if earlier is None or state.last_success_ms != NEVER_MS:
            return state
        return replace(state, last_success_ms=earlier.last_success_ms)

    def _put(self, data: bytes) -> str:
        """Overwrite the object. If another process writes at the same time, retry once, then give up."""
        try:
            return self._put_over(data, self._etag) if self._etag else self._create(data)
        except (PreconditionFailed, AlreadyExists):
            return self._put_over(data, self._found_etag(self._key))
        except ObjectNotFound:
            return self._create(data)

    def _create(self, data: bytes) -> str:
        """Create the object, unless it was removed with its registration."""
        return self._put_over(data, "") if self._found_etag(self._registration_key) else ""

    def _put_over(self, data: bytes, etag: str) -> str:
        return self._store.put(self._key, data, Update(etag) if etag else Create()).etag

    def _found_etag(self, key: str) -> str:
        try:
            return self._store.head(key).etag
        except ObjectNotFound:
            return ""
