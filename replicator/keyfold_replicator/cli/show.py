"""Output of replicas: JSON for programs, lines for people, without secrets. Pure: values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from keyfold.replicas.documents import ALL_TOPICS, Enablement, Registration
from keyfold.runtime.json_types import JsonObject
from keyfold.runtime.text import count_text, names_text, size_text, time_text
from keyfold_replicator.promotion.steps import PromotionOutcome, PromotionStep
from keyfold_replicator.registry.admission import Admission
from keyfold_replicator.rounds.runner import RunSummary
from keyfold_replicator.state.partition_groups import grouped, without_partition
from keyfold_replicator.state.states import RoundFailure, SyncState


def registration_json(registration: Registration) -> JsonObject:
    """Return a registration as `keyfold replica list --json` prints it."""
    return {
        "name": registration.name,
        "url": registration.url,
        "paused": registration.is_paused,
        "topics": [name.strip() for name in registration.config.get("topics", "").split(",") if name.strip()],
        "topics_regex": registration.config.get("topics.regex", ""),
        "endpoint": registration.config.get("store.url", ""),
        "region": registration.config.get("s3.region", ""),
        "encryption": registration.config.get("s3.ssea.name", ""),
        "config": dict(registration.config),
        "hold_name": registration.hold_name,
        "added_at_ms": registration.added_at_ms,
        "changed_at_ms": registration.changed_at_ms,
    }


def registration_lines(registration: Registration) -> Iterator[str]:
    """Yield the lines of a registration for people."""
    said = "paused" if registration.is_paused else "running"
    yield f"{registration.name}: {registration.url}, {topics_text(registration.config)}, {said}"
    for key in ("store.url", "s3.region", "aws.profile", "s3.ssea.name"):
        if registration.config.get(key):
            yield f"    {key} = {registration.config[key]}"
    yield f"    added {time_text(registration.added_at_ms)}, changed {time_text(registration.changed_at_ms)}"


def topics_text(config: Mapping[str, str]) -> str:
    """Return the text for the topics that a replica takes."""
    if config.get("topics"):
        return f"topics {config['topics']}"
    return f"topics that match {config['topics.regex']}" if config.get("topics.regex") else "all topics"


def admission_json(found: Admission) -> JsonObject:
    """Return what `add` found on both sides."""
    return {
        "partitions": found.partitions,
        "partitions_there": found.partitions_there,
        "size_bytes": found.size_bytes,
        "topics_not_enabled": list(found.not_enabled),
        "notes": list(found.notes),
    }


def admission_lines(found: Admission, named: str) -> Iterator[str]:
    """Yield the same for people; `named` is the replica as commands take it."""
    there = f", {found.partitions_there:,} of them already at the replica" if found.partitions_there else ""
    yield f"{count_text(found.partitions, 'partition')} with {size_text(found.size_bytes)}{there}"
    if found.not_enabled:
        yield f"note: compacted logs, not replicated until compaction is enabled: {names_text(found.not_enabled)}"
        yield f"      keyfold replica enable-compaction {named}"
    yield from (f"note: {note}" for note in found.notes)


def enablement_json(enablement: Enablement, url: str, kept: Sequence[str] = ()) -> JsonObject:
    """Return what a replica's bucket allows. `kept` topics have older entries that the last change did not replace."""
    entries = {
        topic: {"enabled": entry.enabled, "format": entry.format, "changed_at_ms": entry.changed_at_ms}
        for topic, entry in enablement.compaction.items()
    }
    return {"url": url, "compaction": entries, "kept_topics": list(kept)}


def enablement_lines(enablement: Enablement, url: str, kept: Sequence[str] = (), again: str = "") -> Iterator[str]:
    """Yield the same for people, the entry for all topics first. `again` is the command that left `kept` topics."""
    if not enablement.compaction:
        yield f"{url}: compaction is not enabled"
    for topic, entry in sorted(enablement.compaction.items(), key=lambda item: (item[0] != ALL_TOPICS, item[0])):
        whose = "all topics" if topic == ALL_TOPICS else topic
        if entry.enabled:
            yield f"{url}: compaction is enabled for {whose}, up to format {entry.format}"
        else:
            yield f"{url}: compaction is disabled for {whose}"
    if kept:
        yield f"{url}: older entries of single topics say otherwise and still apply: {', '.join(kept)}"
        yield f"    to change one, run `{again} --topic TOPIC`; to remove all of them, add --replace-topics"


def run_json(name: str, found: RunSummary) -> JsonObject:
    """Return the state of a replica after `keyfold replica run --once`."""
    return {
        "name": name,
        "in_sync": found.is_in_sync,
        "paused": found.is_paused,
        "error": found.error,
        "partitions": [state.as_json() for state in found.states],
    }


def run_lines(name: str, found: RunSummary) -> Iterator[str]:
    """Yield the same for people. Partitions of a topic that failed for one reason share a line."""
    in_sync = sum(state.state is SyncState.IN_SYNC for state in found.states)
    in_sync_text = f"{in_sync:,} of {count_text(len(found.states), 'partition')} in sync"
    yield f"{name}: {'paused, nothing was replicated' if found.is_paused else in_sync_text}"
    if found.error:
        yield f"{name}: error: {found.error}"
    failures = (
        (
            s.place.topic,
            s.place.partition,
            RoundFailure(s.state, s.code, s.host, without_partition(s.message, s.place), s.hint),
        )
        for s in found.states
        if s.has_failed
    )
    for group, failure in grouped(failures):
        yield f"{name}: {group}: {failure.state.value}: {failure.code} at {failure.host}: {failure.message}"
        if failure.hint:
            yield f"    {failure.hint}"


def outcome_json(found: PromotionOutcome) -> JsonObject:
    """Return one partition of a promotion or demotion."""
    return {
        "topic": found.topic,
        "partition": found.partition,
        "step": found.step.value,
        "log_id": found.log_id,
        "next_offset": found.next_offset,
        "source_version": found.source_version,
        "received_at_ms": found.received_at_ms,
        "error": found.error,
        "hint": found.hint,
        "lost_from": found.lost_from,
        "lost_to": found.lost_to,
    }


def outcomes_lines(outcomes: Iterable[PromotionOutcome], done: str) -> Iterator[str]:
    """Yield the same for people; `done` is the word for a partition that is switched.

    Partitions of a topic with one outcome share a line.
    """
    texts = ((o.topic, o.partition, _outcome_text(o, done)) for o in outcomes)
    for group, (text, *more) in grouped(texts):
        yield f"{group}: {text}"
        yield from (f"    {line}" for line in more)


def _outcome_text(found: PromotionOutcome, done: str) -> tuple[str, ...]:
    """Return what is said of a partition, and the lines after it."""
    hint = (found.hint,) if found.hint else ()
    error = without_partition(found.error, f"{found.topic}-{found.partition}")
    if found.step is PromotionStep.FAILED:
        return (f"error: {error}", *hint)
    if found.step is PromotionStep.MISSING and error:
        return (f"not promoted: {error}", *hint)
    if found.step is PromotionStep.MISSING:
        return ("received nothing yet; the first round will replicate what the source has",)
    words = {
        PromotionStep.READY: "ready",
        PromotionStep.FENCED: "ready, and the source is fenced already",
        PromotionStep.DONE: done,
    }
    received = f", received {time_text(found.received_at_ms)}" if found.received_at_ms >= 0 else ""
    text = f"{words[found.step]}, ends at offset {found.next_offset}{received}"
    if found.source_version == 0:
        return (
            text,
            "the replica has received nothing of the log that it follows, and continues with what it had before",
        )
    return (text,)
