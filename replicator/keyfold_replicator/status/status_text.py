"""A replica's status as one JSON document, and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from keyfold.log.names import Place
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import count_text, duration_text, size_text, time_text
from keyfold_replicator.state.figures import Lag, Pending
from keyfold_replicator.state.partition_groups import grouped, without_partition
from keyfold_replicator.state.states import NEVER_MS, PartitionState, RoundFailure, SyncState
from keyfold_replicator.status.assessment import Assessment
from keyfold_replicator.status.status import ReplicaStatus
from keyfold_replicator.status.status_report import StatusReport
from keyfold_replicator.status.summary import WORST_FIRST, FailingPartitions, ReplicaSummary

LINES_MAX: Final = 20
"""Partitions that are not in sync are limited to this number of lines, the worst first. Equal ones share a line."""

_RANK: Final = {state: rank for rank, state in enumerate(WORST_FIRST)}


# JSON


def status_document(status: ReplicaStatus) -> JsonObject:
    """Return the whole replica, then each partition. Times are ms since 1970, -1 if there is none."""
    reported = status.reported
    return {
        "name": status.registration.name,
        "source": status.source_url,
        "replica": status.registration.url,
        "paused": status.registration.is_paused,
        "seen_at_ms": status.seen_ms,
        **summary_document(status.summary),
        "process": None
        if reported is None
        else {
            "holder": reported.holder,
            "running": status.is_replicating,
            "written_at_ms": reported.written_at_ms,
            "age_ms": reported.age_ms,
            "error": reported.error,
            "totals": dict(reported.totals),
        },
        "partitions": [_assessment_document(assessment) for assessment in status.partitions],
    }


def summary_document(found: ReplicaSummary) -> JsonObject:
    """Return all partitions together."""
    return {
        "state": found.state.value,
        "is_up_to_date": found.state is SyncState.IN_SYNC,
        "partition_count": found.partitions,
        "partitions_by_state": {state.value: count for state, count in found.by_state.items()},
        "pending_bytes": found.pending.bytes,
        "pending_records": found.pending.records,
        "pending_segments": found.pending.segments,
        "earliest_pending_ms": found.pending.earliest_ms,
        "latest_pending_ms": found.pending.latest_ms,
        "lag_records": found.lag.records,
        "lag_existing_records": found.lag.existing_records,
        "lag_ms": found.lag.ms,
        "by_cursor": found.is_by_cursor,
        "backoff_ms": found.backoff_ms,
        "last_attempt_ms": found.last_attempt_ms,
        "next_attempt_ms": found.next_attempt_ms,
        "last_success_ms": found.last_success_ms,
        "errors": [
            {**_error(failing.failure), "partitions": [str(place) for place in failing.places]}
            for failing in found.errors
        ],
    }


def _assessment_document(assessment: Assessment) -> JsonObject:
    plain = assessment.state.as_json()
    for key in ("code", "host", "message", "hint"):
        del plain[key]
    return {**plain, "by_cursor": assessment.is_by_cursor, "errors": [_error(error) for error in assessment.errors]}


def _error(error: RoundFailure) -> dict[str, str]:
    return {"code": error.code, "host": error.host, "message": error.message, "hint": error.hint}


# Text


def status_lines(status: ReplicaStatus, *, all_partitions: bool = False) -> Iterable[str]:
    """Yield the whole replica, its errors and what to do, and the partitions that are not in sync."""
    found = status.summary
    yield f"{status.registration.name}: {found.state.value}: {status.source_url} -> {status.registration.url}"
    yield f"  {_counts(found)}"
    yield f"  {_process(status)}"
    yield f"  {pending_text(found.pending)}; {lag_text(found.lag)}"
    if found.is_by_cursor:
        yield "  the replica did not answer for every partition: these figures leave out what passes have rewritten"
    if status.reported is not None and status.is_replicating and found.next_attempt_ms != NEVER_MS:
        wait_s = status.reported.in_ms(found.next_attempt_ms) / 1000
        yield f"  next attempt in {duration_text(wait_s)}, longest backoff {duration_text(found.backoff_ms / 1000)}"
    for failing in found.errors:
        yield from _error_lines(failing)
    yield from _partition_lines(status, all_partitions=all_partitions)


def _counts(found: ReplicaSummary) -> str:
    parts = ", ".join(f"{count} {state.value}" for state, count in found.by_state.items())
    return f"{count_text(found.partitions, 'partition')}: {parts}" if parts else "no partition of this replica's topics"


def _process(status: ReplicaStatus) -> str:
    reported = status.reported
    if reported is None:
        return f"no replicator has run yet: `keyfold replica run {status.source_url} {status.registration.name}`"
    ago = duration_text(reported.age_ms / 1000)
    if status.is_replicating:
        return f"replicated by {reported.holder}, which reported {ago} ago"
    ended = "ended" if not reported.is_running else "last reported"
    why = f": {reported.error}" if reported.error else ""
    return f"no replicator is running: {reported.holder} {ended} {ago} ago{why}"


def pending_text(pending: Pending) -> str:
    """Describe what is left to copy."""
    if pending == Pending():
        return "nothing pending"
    records, segments = count_text(pending.records, "record"), count_text(pending.segments, "segment")
    what = f"{size_text(pending.bytes)}, {records}, {segments} pending"
    if pending.earliest_ms == NEVER_MS:
        return what
    return f"{what}, from {time_text(pending.earliest_ms)} to {time_text(pending.latest_ms)}"


def lag_text(lag: Lag) -> str:
    """Describe how far the replica is behind: in offsets, in records that exist at these offsets, and in time."""
    offsets, records = count_text(lag.records, "offset"), count_text(lag.existing_records, "record")
    return f"lag {offsets}, {records}, {duration_text(lag.ms / 1000)}"


def _error_lines(failing: FailingPartitions) -> Iterable[str]:
    error = failing.failure
    message = without_partition(error.message, failing.places[0]) if failing.places else error.message
    yield f"  {error.code} at {error.host}{_places_text(failing.places)}: {message}"
    if error.hint:
        yield f"    {error.hint}"


def _places_text(places: Sequence[Place]) -> str:
    if not places:
        return ""
    shown = ", ".join(str(place) for place in places[:3])
    return f" ({count_text(len(places), 'partition')}: {shown}{', ...' if len(places) > 3 else ''})"


def _partition_lines(status: ReplicaStatus, *, all_partitions: bool) -> Iterable[str]:
    process = status.reported if status.is_replicating else None
    if all_partitions:
        for found in (assessment.state for assessment in status.partitions):
            yield f"  {found.place}: {_partition_text(found, process)}"
        return
    behind = [assessment.state for assessment in status.partitions if assessment.state.state is not SyncState.IN_SYNC]
    behind.sort(key=lambda s: (_RANK[s.state], -s.lag.ms, s.place.topic, s.place.partition))
    groups = grouped((s.place.topic, s.place.partition, _partition_text(s, process)) for s in behind)
    for group, text in groups[:LINES_MAX]:
        yield f"  {group}: {text}"
    left = sum(len(group.partitions) for group, _ in groups[LINES_MAX:])
    if left:
        yield f"  ... and {count_text(left, 'more partition')} not in sync (--json has all)"


def _partition_text(found: PartitionState, process: StatusReport | None) -> str:
    text = found.state.value
    if found.code:
        text += f" ({found.code})"
    text += f": {pending_text(found.pending)}; {lag_text(found.lag)}"
    if process is not None and found.backoff_ms and found.next_attempt_ms != NEVER_MS:
        text += f"; try {found.attempts + 1} in {duration_text(process.in_ms(found.next_attempt_ms) / 1000)}"
    return text
