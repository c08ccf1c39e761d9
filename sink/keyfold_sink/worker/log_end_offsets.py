"""Read the log end offsets from the bucket, and move them forward on request.

An end only moves forward: a log holds each offset once, so records before its end are read from the log, and never from
Kafka again. The skipped offsets are recorded as a gap whose cause is the request. All partitions are checked before any
end is moved. Each end is then moved under the sink's epoch, like an append. So a task that still runs is fenced and
loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, Protocol, TypeVar

from keyfold.errors import CommitUnknown, Fenced, KeyfoldError, LogNotFound, SourceError
from keyfold.log import catalog
from keyfold.log.commit import Pinned
from keyfold.log.manifest import Gap
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog, SinkSession
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore
from keyfold_sink.control import NotStopped, OffsetRefused
from keyfold_sink.kafka.source import ASKED_REASON, SourceFacts, TopicGone, check_identity
from keyfold_sink.topic_partition import TopicPartitionKey

T = TypeVar("T")

_READERS: Final = 16
_TIMEOUT_S: Final = 15.0
_TRIES: Final = 5


class OffsetSource(Protocol):
    """Requests to Kafka. All raise `SourceUnavailable`, `SourceForbidden` and `TopicGone`."""

    def partitions(self, topics: Iterable[str]) -> list[TopicPartitionKey]:
        """Return all partitions of these topics."""

    def facts(self, topic: str, partition: int) -> SourceFacts:
        """Return the ids and offsets of one partition."""


class LogEndOffsets:
    """The end offsets of a sink's logs."""

    def __init__(
        self, store: ObjectStore, topics_dir: str, cluster: OffsetSource, clock: Clock, random: Random
    ) -> None:
        self._store = store
        self._topics_dir = topics_dir
        self._cluster = cluster
        self._clock = clock
        self._random = random

    def topics(self) -> list[str]:
        """Return the topics with logs under `topics.dir`, including those of other sinks."""
        return catalog.topics(self._store, self._topics_dir)

    def places(self, topics: Iterable[str]) -> list[TopicPartitionKey]:
        """Return the partitions of these topics that have a folder."""
        return [
            (topic, partition)
            for topic in topics
            for partition in catalog.partitions(self._store, self._topics_dir, topic)
        ]

    def read(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        """Return `next_offset` of each log from its manifest. Partitions without a log are left out."""
        keys = list(keys)
        if not keys:
            return {}
        with ThreadPoolExecutor(min(_READERS, len(keys)), thread_name_prefix="keyfold-ends") as pool:
            found = zip(keys, pool.map(self._pinned, keys), strict=True)
            return {key: pinned.manifest.next_offset for key, pinned in found if pinned is not None}

    def move(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Check all offsets, then move each end.

        Raise `OffsetRefused`, or `NotStopped` if a task has claimed a partition.
        """
        keys = list(offsets)
        self._require_partitions(keys)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="keyfold-ends") as pool:
            checked = list(pool.map(lambda key: self._check(key, offsets[key]), keys))
        moved: list[str] = []
        for key, facts in zip(keys, checked, strict=True):
            try:
                if self._move(key, offsets[key], facts):
                    moved.append(f"{key[0]}-{key[1]}")
            except KeyfoldError as error:
                raise _say_what_moved(error, key, moved) from error

    # Checking

    def _require_partitions(self, keys: Iterable[TopicPartitionKey]) -> None:
        topics = sorted({topic for topic, _ in keys})
        try:
            known = set(self._cluster.partitions(topics))
        except TopicGone as error:
            raise OffsetRefused(f"{error.message}; no offset was changed") from error
        for topic, partition in keys:
            if (topic, partition) not in known:
                raise OffsetRefused(f"topic {topic} has no partition {partition}; no offset was changed")

    def _check(self, key: TopicPartitionKey, wanted: int) -> SourceFacts:
        """Return the facts of a partition. Raise `OffsetRefused` if its end must not move to `wanted`."""
        facts = self._cluster.facts(*key)
        pinned = self._pinned(key)
        end = facts.earliest_offset if pinned is None else pinned.manifest.next_offset
        topic, partition = key
        if pinned is not None:
            try:
                check_identity(pinned.manifest, topic_id=facts.topic_id, cluster_id=facts.cluster_id)
            except SourceError as error:
                raise OffsetRefused(f"{error.message}; no offset was changed", hint=error.hint) from error
        if wanted < end:
            raise OffsetRefused(
                f"the log of {topic}-{partition} ends at offset {end} and cannot move back to {wanted}, because a log "
                "holds each offset once; no offset was changed",
                hint="records below the log's end can be read from the log",
            )
        if wanted > facts.end_offset:
            raise OffsetRefused(
                f"offset {wanted} of {topic}-{partition} is beyond the topic's end {facts.end_offset}, so future "
                "records would be lost; no offset was changed"
            )
        return facts

    # Moving

    def _move(self, key: TopicPartitionKey, wanted: int, facts: SourceFacts) -> bool:
        """Move one end. Return False if it was there already."""
        log = self._log(key)
        pinned = self._pinned(key) or log.create(
            topic_id=facts.topic_id,
            cluster_id=facts.cluster_id,
            start_offset=facts.earliest_offset,
            settings=facts.settings,
        )
        if pinned.manifest.next_offset == wanted:
            return False
        session = _repeat(log.claim_sink)
        _advance(session, wanted)
        return True

    def _pinned(self, key: TopicPartitionKey) -> Pinned | None:
        try:
            return self._log(key).load()
        except LogNotFound:
            return None

    def _log(self, key: TopicPartitionKey) -> PartitionLog:
        place = Place(self._topics_dir, *key)
        return PartitionLog(self._store, place, clock=self._clock, random=self._random, retry_timeout_s=_TIMEOUT_S)


def _advance(session: SinkSession, wanted: int) -> None:
    """Move the end to `wanted` over a gap, from any offset below it."""

    def advance() -> None:
        end = session.refresh().next_offset  # a request without an answer may have taken effect
        if end > wanted:
            raise OffsetRefused(f"the log of {session.place} grew to offset {end} meanwhile")
        if end < wanted:
            session.advance(wanted, gaps=(Gap(end, wanted, ASKED_REASON),))

    _repeat(advance)


def _repeat(call: Callable[[], T]) -> T:
    for _ in range(_TRIES - 1):
        try:
            return call()
        except CommitUnknown:
            continue
    return call()


def _say_what_moved(error: KeyfoldError, key: TopicPartitionKey, moved: list[str]) -> KeyfoldError:
    before = f"already changed: {', '.join(moved)}" if moved else "no offset was changed before it"
    message = f"the offset of {key[0]}-{key[1]} was not changed ({before}): {error.message}"
    if isinstance(error, Fenced):
        return NotStopped(
            message, hint="a task has claimed the partition; wait until every task has ended, then retry the request"
        )
    return OffsetRefused(message, hint=error.hint or "the request can be retried safely")
