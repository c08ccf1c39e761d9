"""Checks before a replica is registered: can it work at all, and what will the first rounds do?

    store     answers, honours conditional writes, allows deletion (`keyfold.store.probe`, and an object of its own)
    place     is another log directory than the source's, and neither contains the other
    logs      the replica's folder has a replica of this source's logs, or nothing
    rule      which topics were compacted, and whether compaction is enabled at the replica

Problems are raised as errors; things worth knowing are in `Admission.notes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Final

from keyfold.errors import (
    ConfigError,
    FirstCopyUnfinished,
    KeyfoldError,
    LogNotFound,
    ManifestLost,
    ObjectNotFound,
    ReplicaDiverged,
    StoreError,
)
from keyfold.log import catalog
from keyfold.log.manifest import Manifest, was_compacted
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.replicas.documents import Enablement, Registration
from keyfold.runtime.clock import Clock
from keyfold.runtime.text import names_text
from keyfold.store.api import Create
from keyfold.store.cas_document import DOCUMENT_TIMEOUT_S, document_retry
from keyfold.store.probe import PROBE_FOLDER, probe
from keyfold_replicator.registry.replica_pair import LogDirectory

AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Admission:
    """Result of the checks: how many partitions the source has for this replica, and how many the replica already has.

    `size_bytes` are stored bytes of all segments and indexes of the covered logs at the source. `compacted` are the
    topics that were compacted, `not_enabled` those for which the replica's bucket does not enable compaction.
    """

    partitions: int = 0
    partitions_there: int = 0
    size_bytes: int = 0
    compacted: tuple[str, ...] = ()
    not_enabled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def admit(
    registration: Registration,
    source: LogDirectory,
    replica: LogDirectory,
    enablement: Enablement,
    *,
    clock: Clock,
    random: Random,
) -> Admission:
    """Check both sides. Raise `ConfigError`, `ReplicaDiverged`, and what the stores raise."""
    repeat = document_retry(clock, random).repeat
    probe(replica.store, replica.topics_dir, clock, random, retry_timeout_s=DOCUMENT_TIMEOUT_S)
    notes = repeat(lambda: [*_judge_place(source, replica, random)])
    there = repeat(lambda: [*catalog.places(source.store, source.topics_dir)])
    covered = frozenset(registration.choose({place.topic for place in there}))
    places = [place for place in there if place.topic in covered]
    notes += _judge_topics(registration, {place.topic for place in places})
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="keyfold-admit") as pool:
        pairs = list(pool.map(lambda place: _look(place, source, replica, clock, random), places))
    found = [(mine, theirs) for mine, theirs in pairs if mine is not None]
    for mine, theirs in found:
        if theirs is not None:
            require_follows(mine, theirs, registration.name)
    compacted = sorted({mine.topic for mine, _ in found if was_compacted(mine)})
    return Admission(
        partitions=len(found),
        partitions_there=sum(theirs is not None for _, theirs in found),
        size_bytes=sum(e.size_bytes + e.index_size_bytes for mine, _ in found for e in mine.segments),
        compacted=tuple(compacted),
        not_enabled=topics_not_enabled(compacted, enablement),
        notes=tuple(notes),
    )


def _judge_topics(registration: Registration, found: set[str]) -> Iterator[str]:
    """Note topics that are missing: they may come later, or be misspelt."""
    missing = sorted({*registration.options.topics} - found)
    if missing:
        yield f"topics not found at the source yet: {names_text(missing)}"
    elif not found:
        yield "the source has no topic for this replica yet"


def require_follows(source: Manifest, replica: Manifest, name: str) -> None:
    """Raise `ReplicaDiverged` if the log at the replica is not the replica of this name of this log."""
    state = replica.replica
    if state is None:
        raise ReplicaDiverged(
            source.topic,
            source.partition,
            "the replica's folder holds a log of its own",
            hint="choose an empty folder; or turn that log into a replica with `keyfold replica demote`",
        )
    if not _is_of(state.source_log_id, source):
        raise _other_log(source, state.source_log_id, state.source)
    if state.name != name:
        raise ReplicaDiverged(
            source.topic,
            source.partition,
            f"the replica's folder holds the replica `{state.name}` of this source",
            hint=f"choose an empty folder for `{name}`; or register this one as `{state.name}`, if that name is free",
        )


def topics_not_enabled(compacted: Iterable[str], enablement: Enablement) -> tuple[str, ...]:
    """Return the compacted topics for which the replica's bucket does not enable compaction."""
    entries = {topic: enablement.entry(topic) for topic in compacted}
    return tuple(topic for topic, entry in entries.items() if entry is None or not entry.enabled)


def _judge_place(source: LogDirectory, replica: LogDirectory, random: Random) -> Iterator[str]:
    """Check that the replica is another directory, by an object that is written there and read here."""
    head = f"{replica.topics_dir}/" if replica.topics_dir else ""
    key = f"{head}{PROBE_FOLDER}{random.getrandbits(128):032x}"
    try:
        replica.store.put(key, b"which bucket is this?", Create())
        is_one_bucket = _sees(source, key)
    finally:
        with contextlib.suppress(StoreError):
            replica.store.delete(key)
    if _sees(replica, key):
        yield "these credentials cannot delete objects at the replica: replaced objects will pile up there"
    mine, theirs = (f"{side.topics_dir}/" if side.topics_dir else "" for side in (source, replica))
    if is_one_bucket and mine == theirs:
        raise ConfigError("--to", f"{replica.url} is the source itself")
    if is_one_bucket and (mine.startswith(theirs) or theirs.startswith(mine)):
        raise ConfigError("--to", f"{replica.url} and the source {source.url} overlap: one folder contains the other")
    if is_one_bucket:
        yield "source and replica are in the same bucket: if the bucket is lost, both are lost"


def _sees(side: LogDirectory, key: str) -> bool:
    try:
        side.store.head(key)
    except ObjectNotFound:
        return False
    return True


def _look(
    place: Place, source: LogDirectory, replica: LogDirectory, clock: Clock, random: Random
) -> tuple[Manifest | None, Manifest | None]:
    mine = _load(source, place, clock, random)
    there = replica.place(place.topic, place.partition)
    try:
        return mine, _load(replica, there, clock, random, following=mine)
    except ManifestLost as error:
        # A first copy begun by version 0.1 looks the same as a log whose manifest was lost.
        raise ReplicaDiverged(
            place.topic,
            place.partition,
            f"the replica's folder `{there.folder}` holds segments without a manifest",
            hint="if a replicator of this source left them before its first commit, use --no-probe; otherwise choose "
            "an empty folder",
        ) from error


def _load(
    side: LogDirectory, place: Place, clock: Clock, random: Random, *, following: Manifest | None = None
) -> Manifest | None:
    """Return the newest manifest; None if nothing was committed, as during a first copy (of the log `following`)."""
    log = PartitionLog(side.store, place, clock=clock, random=Random(random.getrandbits(64)))
    try:
        return log.load().manifest
    except LogNotFound:
        return None
    except FirstCopyUnfinished as error:
        if following is not None and not _is_of(error.source_log_id, following):
            raise _other_log(following, error.source_log_id, error.source) from error
        return None
    except KeyfoldError as error:
        if error.hint is None:
            error.hint = f"found in {side.url}"
        raise


def _is_of(source_log_id: str, source: Manifest) -> bool:
    """Whether a replica of the log `source_log_id` may continue with `source`."""
    return source_log_id in {"", source.log_id} or source.ancestor(source_log_id) is not None


def _other_log(source: Manifest, source_log_id: str, url: str) -> ReplicaDiverged:
    return ReplicaDiverged(
        source.topic,
        source.partition,
        f"the replica's folder follows another log: {source_log_id} at {url}, not {source.log_id}",
        hint="choose an empty folder",
    )
