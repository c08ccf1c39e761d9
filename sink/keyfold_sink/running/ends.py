"""Where logs end, read from the bucket, and moving an end forward because somebody asks for it.

An end may go forward only: a log holds each offset once, so what lies before its end can be read from it, and is never
read from Kafka again. What is skipped is written down as a gap that says that it was asked for. Everything is checked
before anything is moved; each partition is then moved under the sink's epoch, as an append would be, so that a task
that should be there after all is fenced and loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, Protocol, TypeVar

from keyfold.clock import Clock
from keyfold.errors import CommitUnknown, Fenced, KeyfoldError, LogNotFound, SourceError
from keyfold.log import catalog
from keyfold.log.commit import Pinned
from keyfold.log.manifest import Gap
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog, SinkSession
from keyfold.store.api import ObjectStore
from keyfold_sink.kafka.source import ASKED_REASON, SourceFacts, TopicGone, check_identity
from keyfold_sink.service import NotStopped, OffsetRefused
from keyfold_sink.writing.batch import TopicPartitionKey

T = TypeVar("T")

_READERS: Final = 16
_PATIENCE_S: Final = 15.0
_TRIES: Final = 5


class Cluster(Protocol):
    """What is asked of Kafka. All raise `SourceUnavailable`, `SourceForbidden` and `TopicGone`."""

    def partitions(self, topics: Iterable[str]) -> list[TopicPartitionKey]:
        """All partitions of these topics."""

    def facts(self, topic: str, partition: int) -> SourceFacts:
        """Ids and offsets of one partition."""


class Ends:
    """The ends of a sink's logs."""

    def __init__(self, store: ObjectStore, topics_dir: str, cluster: Cluster, clock: Clock, random: Random) -> None:
        self._store = store
        self._topics_dir = topics_dir
        self._cluster = cluster
        self._clock = clock
        self._random = random

    def topics(self) -> list[str]:
        """Topics that have logs below `topics.dir`, whoever wrote them."""
        return catalog.topics(self._store, self._topics_dir)

    def places(self, topics: Iterable[str]) -> list[TopicPartitionKey]:
        """Partitions of these topics that have a folder."""
        return [
            (topic, partition)
            for topic in topics
            for partition in catalog.partitions(self._store, self._topics_dir, topic)
        ]

    def read(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        """`next_offset` of each log, from its manifest. Partitions without a log are left out."""
        keys = list(keys)
        if not keys:
            return {}
        with ThreadPoolExecutor(min(_READERS, len(keys)), thread_name_prefix="keyfold-ends") as pool:
            found = zip(keys, pool.map(self._pinned, keys), strict=True)
            return {key: pinned.manifest.next_offset for key, pinned in found if pinned is not None}

    def move(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Check all, then move each. Raises `OffsetRefused`, or `NotStopped` where a task is in the way."""
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
            raise OffsetRefused(f"{error.message}; nothing was moved") from error
        for topic, partition in keys:
            if (topic, partition) not in known:
                raise OffsetRefused(f"{topic} has no partition {partition}; nothing was moved")

    def _check(self, key: TopicPartitionKey, wanted: int) -> SourceFacts:
        """Raise `OffsetRefused` where the end must not go there."""
        facts = self._cluster.facts(*key)
        pinned = self._pinned(key)
        end = facts.earliest_offset if pinned is None else pinned.manifest.next_offset
        topic, partition = key
        if pinned is not None:
            try:
                check_identity(pinned.manifest, topic_id=facts.topic_id, cluster_id=facts.cluster_id)
            except SourceError as error:
                raise OffsetRefused(f"{error.message}; nothing was moved", hint=error.hint) from error
        if wanted < end:
            raise OffsetRefused(
                f"{topic}-{partition} ends at offset {end} and cannot go back to {wanted}: a log holds each offset "
                "once; nothing was moved",
                hint="what lies before its end can be read from the log",
            )
        if wanted > facts.end_offset:
            raise OffsetRefused(
                f"offset {wanted} of {topic}-{partition} is beyond the topic's end {facts.end_offset}: records that "
                "are yet to come would be lost; nothing was moved"
            )
        return facts

    # Moving

    def _move(self, key: TopicPartitionKey, wanted: int, facts: SourceFacts) -> bool:
        """Move one end; False where it was there already."""
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
        return PartitionLog(self._store, place, clock=self._clock, random=self._random, patience_s=_PATIENCE_S)


def _advance(session: SinkSession, wanted: int) -> None:
    """Move the end to `wanted` over a gap, wherever it is now below that."""

    def advance() -> None:
        end = session.refresh().next_offset  # what had no answer may have landed
        if end > wanted:
            raise OffsetRefused(f"{session.place} went on to offset {end} meanwhile")
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
    before = f"moved before it: {', '.join(moved)}" if moved else "nothing was moved before it"
    message = f"{key[0]}-{key[1]} was not moved ({before}): {error.message}"
    if isinstance(error, Fenced):
        return NotStopped(
            message, hint="a task has taken the partition; wait until every task has ended, and ask again"
        )
    return OffsetRefused(message, hint=error.hint or "asking for the same again does no harm")
