"""Output of records and logs: JSON for programs, lines for people. Pure: values in, text out."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from keyfold.cli.segment_strip import is_compacted_topic
from keyfold.log.gaps import records_in, totals
from keyfold.log.manifest import NO_VERSION, WHOLE_RANGE, Ancestor, Gap, Hold, Manifest, ReplicaState, SegmentEntry
from keyfold.log.record import Record
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import count_text, size_text, time_text
from keyfold.verify.findings import VerifyReport
from keyfold.verify.repair import RepairPlan

ROW_INDENT: Final = 11
"""Columns before the values of `keyfold log describe`."""
_GAPS_SHOWN: Final = 10


def dumps(value: object) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as a string if they are valid UTF-8, otherwise as {"base64": ...}; null stays null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def record_json(topic: str, partition: int, record: Record) -> JsonObject:
    """Return a record as `keyfold log cat --json` prints it."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [[name, json_bytes(value)] for name, value in record.headers],
    }


def record_line(topic: str, partition: int, record: Record) -> str:
    """Return a record for people: position, time, key, value and headers, separated by tabs."""
    value = "(tombstone)" if record.is_tombstone else text(record.value)
    cells = [f"{topic}-{partition}@{record.offset}", time_text(record.timestamp), text(record.key), value]
    if record.headers:
        cells.append(" ".join(f"{text(name.encode())}={text(v)}" for name, v in record.headers))
    return "\t".join(cells)


def text(data: bytes | None) -> str:
    """Return bytes on one line: printable UTF-8 unchanged, control characters escaped, anything else in hex."""
    if data is None:
        return "(null)"
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return decoded if decoded.isprintable() else json.dumps(decoded, ensure_ascii=False)[1:-1]


def dirty_ratio(manifest: Manifest) -> float:
    """Return Kafka's measure: the share of stored bytes from `first_dirty_offset` on. An empty log is clean."""
    dirty = sum(s.size_bytes for s in dirty_segments(manifest))
    return dirty / manifest.size_bytes if dirty else 0.0


def dirty_segments(manifest: Manifest) -> tuple[SegmentEntry, ...]:
    """Return the segments with a record at or above `first_dirty_offset`."""
    return tuple(s for s in manifest.segments if s.last_offset >= manifest.first_dirty_offset)


def manifest_json(manifest: Manifest) -> JsonObject:
    """Return the output of `keyfold log describe --json` about one partition."""
    segments = manifest.segments
    times = [t for s in segments for t in (s.min_timestamp, s.max_timestamp) if t >= 0]
    return {
        "topic": manifest.topic,
        "partition": manifest.partition,
        "version": manifest.version,
        "log_id": manifest.log_id,
        "topic_id": manifest.topic_id,
        "cluster_id": manifest.cluster_id,
        "log_start_offset": manifest.log_start_offset,
        "first_dirty_offset": manifest.first_dirty_offset,
        "next_offset": manifest.next_offset,
        "segments": len(segments),
        "records": manifest.record_count,
        "tombstones": sum(s.tombstone_count for s in segments),
        "unmarked_tombstones": sum(s.unmarked_tombstone_count for s in segments),
        "keyless_records": sum(s.keyless_count for s in segments),
        "size_bytes": manifest.size_bytes,
        "index_size_bytes": sum(s.index_size_bytes for s in segments),
        "dirty_ratio": round(dirty_ratio(manifest), 4),
        # Below first_dirty_offset a key occurs once, so every dirty record supersedes at most one other.
        "garbage_records_max": sum(s.record_count for s in dirty_segments(manifest)),
        "min_timestamp": min(times, default=None),
        "max_timestamp": max(times, default=None),
        "purged_to": manifest.purged_to,
        "epochs": {
            "last": manifest.last_epoch,
            "sink": manifest.sink.epoch,
            "compactor": manifest.compactor.epoch,
            "last_pass": manifest.last_pass_epoch,
        },
        "lease": {"holder": manifest.compactor.lease_holder, "until_ms": manifest.compactor.lease_until_ms},
        "gaps": [_gap_json(gap) for gap in manifest.gaps],
        "gap_records": totals(manifest.gaps),
        "replica_of": None if manifest.replica is None else _following_json(manifest.replica),
        "lineage": [_ancestor_json(ancestor) for ancestor in manifest.lineage],
        "holds": [_hold_json(hold) for hold in manifest.holds],
        "replaced": len(manifest.replaced),
        "settings": dict(manifest.settings),
        "min_reader": manifest.min_reader,
        "min_writer": manifest.min_writer,
        "features": list(manifest.features),
    }


def _following_json(state: ReplicaState) -> JsonObject:
    return {
        "source": state.source,
        "name": state.name,
        "log_id": state.source_log_id,
        "version": state.source_version,
        "received_at_ms": state.received_at_ms,
        "epoch": state.epoch,
    }


def _ancestor_json(ancestor: Ancestor) -> JsonObject:
    return {"log_id": ancestor.log_id, "version": ancestor.version, "next_offset": ancestor.next_offset}


def _hold_json(hold: Hold) -> JsonObject:
    return {
        "replica": hold.replica,
        "version": hold.version,
        "until_ms": hold.expires_at_ms,
        "received_to": hold.received_to,
        "received_at_ms": hold.received_at_ms,
    }


def _gap_json(gap: Gap) -> JsonObject:
    return {
        "from_offset": gap.from_offset,
        "to_offset": gap.to_offset,
        "reason": gap.reason,
        "records": records_in(gap),
        "whole_range": gap.record_count == WHOLE_RANGE,
    }


def _gap_rows(gaps: Sequence[Gap]) -> Iterable[tuple[str, str]]:
    """Yield the newest gaps one by one. If there are many, yield the number of offsets by reason before."""
    if len(gaps) > _GAPS_SHOWN:
        for reason, count in sorted(totals(gaps).items()):
            yield "gaps", f"{count_text(count, 'offset')}: {reason}"
        yield "gaps", f"the newest {_GAPS_SHOWN} of {len(gaps)} ranges (all with --json):"
    for gap in gaps[-_GAPS_SHOWN:]:
        some = "" if gap.record_count == WHOLE_RANGE else f"{gap.record_count:,} of them: "
        yield "gap", f"[{gap.from_offset}, {gap.to_offset}) {some}{gap.reason}"


def manifest_lines(manifest: Manifest, strip: Iterable[str], garbage: int | None = None) -> Iterable[str]:
    """Yield the output of `keyfold log describe` about one partition. `garbage`: its superseded records, if counted."""
    yield f"{manifest.topic}-{manifest.partition}"
    drawn = (("" if at else "segments", line) for at, line in enumerate(strip))
    rows = (*_content_rows(manifest, garbage), *drawn, *_state_rows(manifest))
    yield from (f"  {name:<{ROW_INDENT - 2}}{value}" for name, value in rows)


def _content_rows(manifest: Manifest, garbage: int | None) -> Iterable[tuple[str, str]]:
    data: dict[str, Any] = manifest_json(manifest)
    start, dirty, end = manifest.log_start_offset, manifest.first_dirty_offset, manifest.next_offset
    compacted = is_compacted_topic(manifest)
    yield "offsets", f"start {start}, dirty from {dirty}, next {end}" if compacted else f"start {start}, next {end}"
    unmarked = f" ({data['unmarked_tombstones']:,} unmarked)" if compacted else ""
    tombstones = f"{count_text(data['tombstones'], 'tombstone')}{unmarked}"
    keyless = f", {data['keyless_records']:,} without a key" if data["keyless_records"] else ""
    yield "records", f"{data['records']:,} in {count_text(data['segments'], 'segment')}, {tombstones}{keyless}"
    yield "stored", f"{size_text(data['size_bytes'])}, indexes {size_text(data['index_size_bytes'])}"
    if compacted:
        most = f"at most {count_text(data['garbage_records_max'], 'superseded record')}"
        superseded = most if garbage is None else count_text(garbage, "superseded record")
        yield "dirty", f"{data['dirty_ratio']:.0%} of the bytes, {superseded}"
    if data["max_timestamp"] is not None:
        yield "time", f"{time_text(data['min_timestamp'])} to {time_text(data['max_timestamp'])}"


def _state_rows(manifest: Manifest) -> Iterable[tuple[str, str]]:
    sink, compactor = manifest.sink, manifest.compactor
    yield "version", f"{manifest.version} of log {manifest.log_id}"
    yield "epochs", f"last {manifest.last_epoch}, sink {sink.epoch}, compactor {compactor.epoch}"
    if compactor.lease_holder:
        yield "lease", f"{compactor.lease_holder} until {time_text(compactor.lease_until_ms)}"
    if manifest.replaced:
        yield "replaced", f"{count_text(len(manifest.replaced), 'object')} pending deletion"
    if manifest.purged_to >= 0:
        yield "purged", f"tombstones up to offset {manifest.purged_to}"
    yield from _replica_rows(manifest)
    yield from _gap_rows(manifest.gaps)
    for name, value in sorted(manifest.settings.items()):
        yield "setting", f"{name}={value}"


def _replica_rows(manifest: Manifest) -> Iterable[tuple[str, str]]:
    state = manifest.replica
    if state is not None:
        received = f"has source version {state.source_version}" if state.source_version else "has received nothing yet"
        at = f", received {time_text(state.received_at_ms)}" if state.received_at_ms >= 0 else ""
        yield "replica", f"`{state.name}` of {state.source}, {received}{at}; only the replicator writes to it"
    for ancestor in manifest.lineage:
        yield "lineage", f"continues log {ancestor.log_id} from offset {ancestor.next_offset}"
    for hold in manifest.holds:
        received = f"has offsets below {hold.received_to}" if hold.received_to >= 0 else "has received nothing yet"
        until = time_text(hold.expires_at_ms)
        pin = "" if hold.version == NO_VERSION else f"; holds version {hold.version} until {until}"
        yield "held for", f"replica `{hold.replica}`, which {received}{pin}"


def report_json(report: VerifyReport) -> JsonObject:
    """Return the output of `keyfold log verify --json` about one partition."""
    return {
        "topic": report.place.topic,
        "partition": report.place.partition,
        "version": report.version,
        "ok": report.is_sound,
        "segments": report.segments,
        "records": report.records,
        "size_bytes": report.size_bytes,
        "compared": report.compared if report.compared >= 0 else None,
        "findings": [
            {
                "kind": f.kind.value,
                "damage": f.kind.is_damage,
                "object": f.object,
                "block": f.block if f.block >= 0 else None,
                "record": f.record if f.record >= 0 else None,
                "offset": f.offset if f.offset >= 0 else None,
                "what": f.what,
                "lost": f.lost if f.kind.is_damage else None,
                "to_do": f.to_do if f.kind.is_damage else None,
            }
            for f in report.findings
        ],
    }


def report_lines(report: VerifyReport) -> Iterable[str]:
    """Yield the output of `keyfold log verify` about one partition."""
    for finding in report.findings:
        yield f"{'DAMAGE' if finding.kind.is_damage else 'note'} {report.place} {finding}"
    outcome = "ok" if report.is_sound else _not_sound(report)
    counts = f"{count_text(report.records, 'record')} in {count_text(report.segments, 'segment')}"
    version = f"version {report.version}" if report.version >= 0 else "no readable manifest"
    compared = f", {count_text(report.compared, 'record')} compared with Kafka" if report.compared >= 0 else ""
    yield f"{report.place}: {outcome}, {counts}, {version}{compared}"


def _not_sound(report: VerifyReport) -> str:
    if report.damage:
        return f"{len(report.damage)} damaged"
    return "not complete" if report.is_first_copy else "not verified"


def repair_json(plan: RepairPlan, *, dry_run: bool) -> JsonObject:
    """Return the output of `keyfold log repair --json`."""
    manifest = plan.manifest
    return {
        "topic": plan.place.topic,
        "partition": plan.place.partition,
        "written": not dry_run,
        "source": plan.source,
        "replaces_damaged": plan.damaged is not None,
        "log_id": manifest.log_id,
        "log_start_offset": manifest.log_start_offset,
        "next_offset": manifest.next_offset,
        "last_epoch": manifest.last_epoch,
        "records": manifest.record_count,
        "segments": [s.name for s in manifest.segments],
        "new_indexes": [name for name, _ in plan.new_indexes],
        "left_out": [{"object": name, "why": why} for name, why in plan.left_out],
        "notes": list(plan.notes),
    }


def repair_lines(plan: RepairPlan, *, dry_run: bool) -> Iterable[str]:
    """Yield the output of `keyfold log repair`."""
    manifest = plan.manifest
    yield f"from  {plan.source}"
    for entry in manifest.segments:
        records = count_text(entry.record_count, "record")
        yield f"take  [{entry.base_offset}, {entry.next_offset}) {records}: {entry.name}"
    for name, why in plan.left_out:
        yield f"leave {name}: {why}"
    for note in plan.notes:
        yield f"note  {note}"
    for name, data in plan.new_indexes:
        yield f"index {name}, {size_text(len(data))}"
    done = "nothing was written (--dry-run)" if dry_run else "the manifest was written"
    offsets = f"[{manifest.log_start_offset}, {manifest.next_offset})"
    records = count_text(manifest.record_count, "record")
    yield f"{plan.place}: {done}; {records} in {offsets}, epochs from {manifest.last_epoch}"
