"""A replica's status as one JSON document, and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from keyfold.log.names import Place
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import duration_text, size_text, time_text
from keyfold_replicator.state.figures import Lag, Pending
from keyfold_replicator.state.states import NEVER_MS, RoundFailure, SyncState
from keyfold_replicator.status.assessment import Assessment
from keyfold_replicator.status.status import ReplicaStatus
from keyfold_replicator.status.status_report import StatusReport
from keyfold_replicator.status.summary import WORST_FIRST, FailingPartitions, ReplicaSummary

LINES_MAX: Final = 20
"""Partitions that are not in sync are limited to this number of lines, the worst ones first."""

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
    return f"{_partitions(found.partitions)}: {parts}" if parts else "no partition of this replica's topics"


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
    what = f"{size_text(pending.bytes)}, {pending.records:,} records, {pending.segments:,} segments pending"
    if pending.earliest_ms == NEVER_MS:
        return what
    return f"{what}, from {time_text(pending.earliest_ms)} to {time_text(pending.latest_ms)}"


def lag_text(lag: Lag) -> str:
    """Describe how far the replica is behind."""
    return f"lag {lag.records:,} records, {duration_text(lag.ms / 1000)}"


def _error_lines(failing: FailingPartitions) -> Iterable[str]:
    error = failing.failure
    yield f"  {error.code} at {error.host}{_places_text(failing.places)}: {error.message}"
    if error.hint:
        yield f"    {error.hint}"


def _places_text(places: Sequence[Place]) -> str:
    if not places:
        return ""
    shown = ", ".join(str(place) for place in places[:3])
    return f" ({_partitions(len(places))}: {shown}{', ...' if len(places) > 3 else ''})"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _partition_lines(status: ReplicaStatus, *, all_partitions: bool) -> Iterable[str]:
    wanted = [s for s in status.partitions if all_partitions or s.state.state is not SyncState.IN_SYNC]
    if not all_partitions:
        wanted.sort(key=lambda s: (_RANK[s.state.state], -s.state.lag.ms, str(s.state.place)))
    for assessment in wanted if all_partitions else wanted[:LINES_MAX]:
        yield f"  {_partition_text(assessment, status.reported if status.is_replicating else None)}"
    if not all_partitions and len(wanted) > LINES_MAX:
        yield f"  ... and {len(wanted) - LINES_MAX} more that are not in sync (--json has all)"


def _partition_text(assessment: Assessment, process: StatusReport | None) -> str:
    found = assessment.state
    text = f"{found.place}: {found.state.value}"
    if found.code:
        text += f" ({found.code})"
    text += f": {pending_text(found.pending)}; {lag_text(found.lag)}"
    if process is not None and found.backoff_ms and found.next_attempt_ms != NEVER_MS:
        text += f"; try {found.attempts + 1} in {duration_text(process.in_ms(found.next_attempt_ms) / 1000)}"
    return text
