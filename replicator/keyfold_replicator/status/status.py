"""The current state of a registered replica: read both sides, and the replicator's last report.

    gather            two GETs for each partition, several at a time, besides a listing of topics
    ReplicaStatus     the result, as a value (`keyfold_replicator.status.status_text` shows it)

A side that does not answer is an error like others, with code and host. A replica that does not answer the first
request gets no other, and the figures are computed from the cursor at the source. The source's own listing must
succeed, because without it the partitions are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from keyfold.errors import KeyfoldError, ObjectNotFound
from keyfold.log import catalog
from keyfold.log.commit import Pinned, get_manifest
from keyfold.log.manifest import Manifest
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import Place
from keyfold.replicas.documents import Enablement, Registration, enablement_key, enablement_of
from keyfold.store.api import ObjectStore
from keyfold.store.documents import DOCUMENT_BYTES_MAX, load_json
from keyfold_replicator.registry.replica_pair import LogDirectory
from keyfold_replicator.state.states import failure_of
from keyfold_replicator.status.assessment import Assessment, BothManifests, ReplicaFacts, assess
from keyfold_replicator.status.status_report import StatusReport, load_report
from keyfold_replicator.status.summary import FailingPartitions, ReplicaSummary, summary

THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica at `seen_ms` (local time). `reported` is None if no process has reported."""

    registration: Registration
    source_url: str
    seen_ms: int
    summary: ReplicaSummary
    partitions: tuple[Assessment, ...] = ()
    reported: StatusReport | None = None

    @property
    def is_replicating(self) -> bool:
        """Whether a process replicates, by its last report."""
        return self.reported is not None and self.reported.is_alive


def gather_status(
    registration: Registration,
    source: LogDirectory,
    replica: LogDirectory | KeyfoldError,
    *,
    now_ms: int,
    wanted: Callable[[Place], bool] = lambda _place: True,
    threads: int = THREADS,
) -> ReplicaStatus:
    """Read both sides. `replica` is an error if its store could not even be opened.

    Raise what the source raises for a listing, and for the GET of the report.
    """
    reported = load_report(source.store, source.topics_dir, registration.name)
    is_alive = reported is not None and reported.is_alive
    known = {} if reported is None else reported.partitions
    host = registration.host if isinstance(replica, KeyfoldError) else replica.host
    enablement, error, replica = _load_enablement(replica)
    facts = ReplicaFacts(
        registration.name,
        registration.hold_name,
        source.host,
        host,
        is_paused=registration.is_paused,
        enablement=enablement,
        replica_url=registration.url,
        named=f"{source.url} {registration.name}",
    )

    def assessed(place: Place) -> Assessment:
        return assess(read_manifests(place, source, replica), facts, known.get(place), is_alive=is_alive)

    places = [place for place in _places(registration, source) if wanted(place)]
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(places))), thread_name_prefix="status") as pool:
        assessments = tuple(pool.map(assessed, places))
    found = summary(assessments, is_paused=registration.is_paused)
    if error is not None and not isinstance(replica, KeyfoldError):
        found = replace(found, errors=(*found.errors, FailingPartitions(failure_of(error, host), ())))
    return ReplicaStatus(registration, source.url, now_ms, found, assessments, reported)


def read_manifests(place: Place, source: LogDirectory, replica: LogDirectory | KeyfoldError) -> BothManifests:
    """Read both manifests of the partition at the source's `place`.

    The replica's is read first. So the source's is at least as new, and what is missing then is missing.
    """
    at_replica = replica if isinstance(replica, KeyfoldError) else _load_replica(place, replica)
    try:
        return BothManifests(place, _load(source.store, place), at_replica)
    except KeyfoldError as error:
        return BothManifests(place, error, at_replica)


def _load_replica(place: Place, replica: LogDirectory) -> Manifest | KeyfoldError | None:
    try:
        return _load(replica.store, replica.place(place.topic, place.partition)).manifest
    except ObjectNotFound:
        return None
    except KeyfoldError as error:
        return error


def _load(store: ObjectStore, place: Place) -> Pinned:
    blob = get_manifest(store, place)
    return Pinned(decode_manifest(blob.data, place), blob.etag, blob.date_ms, blob.last_modified_ms)


def _places(registration: Registration, source: LogDirectory) -> Iterable[Place]:
    for topic in registration.choose(catalog.topics(source.store, source.topics_dir)):
        for partition in catalog.partitions(source.store, source.topics_dir, topic):
            yield Place(source.topics_dir, topic, partition)


def _load_enablement(
    replica: LogDirectory | KeyfoldError,
) -> tuple[Enablement | None, KeyfoldError | None, LogDirectory | KeyfoldError]:
    """Return the replica's permissions or the error, and the replica or the error if it does not answer."""
    if isinstance(replica, KeyfoldError):
        return None, replica, replica
    key = enablement_key(replica.topics_dir)
    try:
        return enablement_of(_body(replica.store.get(key, DOCUMENT_BYTES_MAX).data), key), None, replica
    except ObjectNotFound:
        return Enablement(), None, replica
    except KeyfoldError as error:
        return None, error, error if error.retriable else replica


def _body(data: bytes) -> Any:
    try:
        found = load_json(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
