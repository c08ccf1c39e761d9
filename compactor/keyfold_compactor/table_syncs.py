"""Bring Iceberg tables up to date after each run of the compactor, if configured (`tables.sync`).

`keyfold table sync` makes a table and fixes its options; the compactor repeats that sync. It follows the run instead of
running beside it, so both stay within the configured byte rate. For tables that must be fresher than the runs are
frequent, use `keyfold table sync --follow`, a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from keyfold.errors import KeyfoldError
from keyfold.read.log import Log
from keyfold.replicas.after_run import AfterRunResult, AfterRunStep
from keyfold.runtime.clock import Clock
from keyfold.runtime.retry import RetryPolicy
from keyfold.runtime.throttle import paced
from keyfold.store.api import ObjectStore
from keyfold.store.location import OpenLocation, open_location, parse_url
from keyfold.table.maintain import maintain
from keyfold.table.open import existing_table
from keyfold.table.request import request_of, topic_of
from keyfold.table.sync import sync
from keyfold_compactor.options import CompactOptions


@contextlib.contextmanager
def syncing(
    options: CompactOptions,
    topics: frozenset[str] = frozenset(),
    *,
    clock: Clock,
    random: Random,
    opener: OpenLocation = open_location,
) -> Iterator[AfterRunStep]:
    """Yield the function to call after each run. It syncs the tables of `topics`, of all if there are none.

    Tables in other buckets than the logs' have the same endpoint and credentials.
    """
    pacer = paced(options.io_max_bytes_per_second, clock)
    with contextlib.ExitStack() as exits:

        @functools.cache
        def opened(bucket: str) -> ObjectStore:
            store = opener(options.model_copy(update={"bucket": bucket}).location(), pacer)
            exits.callback(getattr(store, "close", None) or (lambda: None))
            return store

        def open_url(url: str) -> tuple[ObjectStore, str]:
            bucket, prefix = parse_url(url)
            return opened(bucket), prefix

        yield _Syncs(options, topics, open_url, clock, random)


@dataclass(frozen=True, slots=True)
class _Syncs:
    """One sync of every table at each call. Errors are in the result."""

    options: CompactOptions
    topics: frozenset[str]
    open_url: Callable[[str], tuple[ObjectStore, str]]
    clock: Clock
    random: Random

    def __call__(self, should_stop: Callable[[], bool]) -> Sequence[AfterRunResult]:
        """See `AfterRunStep`."""

        def go_on(_rows: int = 0) -> None:
            if should_stop():
                raise _Stopped

        done: list[AfterRunResult] = []
        with contextlib.suppress(_Stopped):
            for name in self.options.tables_sync:
                go_on()
                found = self._synced(name, go_on)
                if found is not None:
                    done.append(found)
        return done

    def _synced(self, name: str, progress: Callable[[int], None]) -> AfterRunResult | None:
        """Sync and maintain one table; None if it is of another topic."""
        said: list[str] = []
        try:
            table, loaded = existing_table(name, self.open_url, RetryPolicy(self.clock, self.random))
            topic = topic_of(loaded.metadata.properties, name)
            if self.topics and topic not in self.topics:
                return None
            store, topics_dir = self.open_url(self.options.url)
            log = Log(store, topics_dir, topic, clock=self.clock, random=self.random)
            request = request_of(loaded.metadata.properties, name)
            done = sync(
                *(log, table, request),
                clock=self.clock,
                random=self.random,
                progress=progress,
                announce=said.append,
            )
            maintain(table, self.clock, self.random)
        except KeyfoldError as error:
            text = f"{name}: {error}"
            return AfterRunResult(name, True, True, {"table": name, "error": str(error)}, (*said, text))
        is_news = any(each.added or each.hidden for each in done.partitions)
        document = {"table": name, "error": "", **done.as_json()}
        return AfterRunResult(name, False, is_news, document, (*said, *done.lines(name)))


class _Stopped(Exception):
    """The process is to end. What a sync has written so far, no snapshot names."""
