"""Keep directories of keys beside the logs after each run of the compactor, if configured (`keys.directory`).

`keyfold.read.stored_directory` has the format, and says why an old directory does no harm. A directory is written again
when a tenth of the log's records are in segments that it does not name; it takes the entries of the others from its
predecessor. The predecessors are deleted then: a reader that still has one open goes on with the newest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from keyfold.errors import FirstCopyUnfinished, KeyfoldError, LogNotFound, ObjectNotFound
from keyfold.log import catalog
from keyfold.log.manifest import Manifest
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.read.stored_directory import (
    DirectoryDamaged,
    DirectoryReplaced,
    StoredDirectory,
    Written,
    directories,
    opened,
    write,
)
from keyfold.replicas.after_run import AfterRunResult, AfterRunStep
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.throttle import paced
from keyfold.store.api import ObjectInfo, ObjectStore
from keyfold.store.location import OpenLocation, open_location
from keyfold_compactor.options import CompactOptions

DUE_SHARE: Final = 0.1
_OLD_UPLOAD_MS: Final = 86_400_000


@contextlib.contextmanager
def keeping(
    options: CompactOptions,
    topics: frozenset[str] = frozenset(),
    partitions: frozenset[int] = frozenset(),
    *,
    clock: Clock,
    random: Random,
    opener: OpenLocation = open_location,
) -> Iterator[AfterRunStep]:
    """Yield the function to call after each run. `topics` and `partitions` limit it; empty: all."""
    pacer = paced(options.io_max_bytes_per_second, clock)
    store = opener(options.location(), pacer)
    try:
        yield _Keeper(options, topics, partitions, store, clock, random)
    finally:
        getattr(store, "close", lambda: None)()


def is_due(manifest: Manifest, known: StoredDirectory | None) -> bool:
    """Return whether a new directory is worth its bytes: the known one lacks a tenth of the log's records, or more."""
    total = sum(entry.record_count for entry in manifest.segments)
    named = frozenset[str]() if known is None else known.segments.keys()
    missing = sum(entry.record_count for entry in manifest.segments if entry.name not in named)
    return total > 0 and missing >= DUE_SHARE * total


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Looks at all partitions at each call. Errors are in the result."""

    options: CompactOptions
    topics: frozenset[str]
    partitions: frozenset[int]
    store: ObjectStore
    clock: Clock
    random: Random

    def __call__(self, should_stop: Callable[[], bool]) -> Sequence[AfterRunResult]:
        """See `AfterRunStep`."""
        done: list[AfterRunResult] = []
        for place in self._places():
            if should_stop():
                break
            said: list[str] = []
            try:
                written = self._kept(place, said.append)
            except KeyfoldError as error:
                done.append(_result(place, str(error), {}, [*said, f"{place}: no directory of keys: {error}"]))
            else:
                if written is not None:
                    done.append(_result(place, "", _figures(written), [*said, f"{place}: {_text(written)}"]))
        return done

    def _places(self) -> Iterator[Place]:
        options, repeat = self.options, self._retries.repeat
        listed = [*options.topics] or repeat(lambda: catalog.topics(self.store, options.topics_dir))
        for topic in listed:
            if not options.wants(topic) or (self.topics and topic not in self.topics):
                continue
            if not options.for_topic(topic).keys_directory:
                continue
            for number in repeat(partial(catalog.partitions, self.store, options.topics_dir, topic)):
                if not self.partitions or number in self.partitions:
                    yield Place(options.topics_dir, topic, number)

    @property
    def _retries(self) -> RetryPolicy:
        return RetryPolicy(self.clock, self.random)

    def _kept(self, place: Place, announce: Callable[[str], None]) -> Written | None:
        """Write the directory of a partition if it is due, and delete those before it. A damaged one is replaced."""
        try:
            manifest = self._retries.repeat(
                lambda: PartitionLog(self.store, place, clock=self.clock, random=self.random).load()
            ).manifest
        except (LogNotFound, FirstCopyUnfinished):  # a folder without a log
            return None
        try:
            try:
                known = self._retries.repeat(lambda: StoredDirectory.newest(self.store, place, manifest.log_id))
                written = self._written(place, manifest, known)
            except DirectoryDamaged as error:
                announce(f"{error}; it is replaced")
                written = self._written(place, manifest, None)
        except (DirectoryReplaced, ObjectNotFound):
            return None  # another compactor was faster, or the log has moved on: the next run does it
        if written is None:
            return None
        for info in directories(self.store, place):
            if info.key < written.key or (info.key > written.key and self._is_of_another_log(place, info, manifest)):
                self._retries.repeat(partial(self.store.delete, info.key))
        return written

    def _is_of_another_log(self, place: Place, info: ObjectInfo, manifest: Manifest) -> bool:
        """Return whether a directory is of a log that was here before: its versions may be higher."""
        try:
            found = opened(self.store, place, info)
        except (DirectoryDamaged, DirectoryReplaced):
            return False
        return found is not None and found.log_id != manifest.log_id

    def _written(self, place: Place, manifest: Manifest, known: StoredDirectory | None) -> Written | None:
        if not is_due(manifest, known):
            return None
        self._end_old_uploads(place)
        return write(self.store, place, manifest, known, retries=self._retries, random=self.random)

    def _end_old_uploads(self, place: Place) -> None:
        """End uploads of processes that were killed: those that began a day ago."""
        before_ms = self.clock.now_ms() - _OLD_UPLOAD_MS
        for upload in self.store.list_uploads(place.key_directories):
            if upload.started_ms < before_ms:
                self.store.abort_upload(upload.key, upload.upload_id)


def _figures(written: Written) -> dict[str, str | int]:
    return {
        "object": written.key,
        "records": written.record_count,
        "bytes": written.size_bytes,
        "segments": written.segment_count,
        "segments_read": written.read_count,
    }


def _text(written: Written) -> str:
    return f"a directory of the keys of {written.record_count} records, {written.size_bytes} bytes"


def _result(place: Place, error: str, figures: dict[str, str | int], lines: Sequence[str]) -> AfterRunResult:
    document = {"topic": place.topic, "partition": place.partition, "error": error, **figures}
    return AfterRunResult(str(place), bool(error), True, document, tuple(lines))
