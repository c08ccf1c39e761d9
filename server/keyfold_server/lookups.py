"""The lookups of all topics that were asked for.

A lookup answers from one moment. A request that finds it older than `refresh_s` refreshes it first. If another request
does so already, the older moment answers, unless it is too old by more than `STALE_S`: then the request waits. So many
requests for one topic cost one refresh, a refresh does not delay them, and a store that does not answer is an error and
not an old value.

The directories of keys together take up to `memory_bytes`. Beyond that, the topic that was not asked for the longest is
forgotten; its next request reads the indexes again. The topic of the present request always stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, TypeVar

from keyfold.read.log import Log
from keyfold.read.lookup import LogRecreated, Lookup
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore

T = TypeVar("T")

REFRESH_S: Final = 1.0
STALE_S: Final = 5.0
MEMORY_BYTES: Final = 1024 * 1024 * 1024


@dataclass(slots=True)
class _Topic:
    """A topic's lookup once it is open. `opening` is held while it is opened or refreshed."""

    opening: Lock = field(default_factory=Lock)
    lookup: Lookup | None = None
    refreshed_s: float = 0.0


class TopicLookups:
    """Lookups by topic. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        topics_dir: str,
        clock: Clock,
        *,
        refresh_s: float = REFRESH_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.store = store
        self.topics_dir = topics_dir
        self._clock = clock
        self._refresh_s = refresh_s
        self._limit_bytes = memory_bytes
        self._lock = Lock()
        self._topics: OrderedDict[str, _Topic] = OrderedDict()

    @property
    def memory_bytes(self) -> int:
        """About the memory that all directories take now."""
        with self._lock:
            held = [topic.lookup for topic in self._topics.values() if topic.lookup is not None]
        return sum(lookup.memory_bytes for lookup in held)

    @property
    def topic_count(self) -> int:
        """The number of topics whose lookups are open."""
        return len(self._topics)

    def log(self, topic: str) -> Log:
        """Return the log of a topic. Raises `TopicNotFound` for a name that no topic can have."""
        return Log(self.store, self.topics_dir, topic, clock=self._clock)

    def ask(self, topic: str, work: Callable[[Lookup], T]) -> T:
        """Return what `work` finds with the lookup of a topic.

        Raises `TopicNotFound`, what `work` raises, and what reading a manifest raises.
        """
        try:
            found = work(self._current(topic))
        except LogRecreated:  # the caller wants the log that is there now
            self._forget(topic)
            found = work(self._current(topic))
        self._make_room(topic)
        return found

    def _current(self, name: str) -> Lookup:
        with self._lock:
            topic = self._topics.setdefault(name, _Topic())
            self._topics.move_to_end(name)
        try:
            return self._opened(name, topic) if topic.lookup is None else self._refreshed(topic, topic.lookup)
        except Exception:
            if topic.lookup is None:  # it was never opened: names of topics that do not exist must not add up
                self._forget(name)
            raise

    def _opened(self, name: str, topic: _Topic) -> Lookup:
        with topic.opening:
            if topic.lookup is None:
                begun_s = self._clock.monotonic_s()
                topic.lookup = self.log(name).lookup()
                topic.refreshed_s = begun_s
            return topic.lookup

    def _refreshed(self, topic: _Topic, lookup: Lookup) -> Lookup:
        age_s = self._clock.monotonic_s() - topic.refreshed_s
        is_stale = age_s >= self._refresh_s + STALE_S
        if age_s >= self._refresh_s and topic.opening.acquire(blocking=is_stale):
            try:
                begun_s = self._clock.monotonic_s()
                if begun_s - topic.refreshed_s >= self._refresh_s:  # nobody else has refreshed it meanwhile
                    lookup.refresh()
                    topic.refreshed_s = begun_s
            finally:
                topic.opening.release()
        return lookup

    def _forget(self, name: str) -> None:
        with self._lock:
            self._topics.pop(name, None)

    def _make_room(self, present: str) -> None:
        while self.memory_bytes > self._limit_bytes:
            with self._lock:
                oldest = next(iter(self._topics))
                if oldest == present:
                    return
                del self._topics[oldest]
