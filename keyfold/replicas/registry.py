"""The replicas of a log directory (in the source's bucket), and the permissions in a replica's bucket.

`ReplicaRegistry` and `EnablementStore` are the only writers of these objects. Each change is made once
(`keyfold.store.cas_document`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from keyfold.errors import KeyfoldError
from keyfold.replicas.documents import (
    ALL_TOPICS,
    CompactionEntry,
    Enablement,
    Registration,
    enablement_document,
    enablement_key,
    enablement_of,
    registration_document,
    registration_key,
    registration_of,
    replicas_prefix,
    require_sound,
    status_key,
)
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore
from keyfold.store.cas_document import CasDocument, DocumentBody, DocumentVersion, document_retry

REPLICAS_MAX: Final = 64
"""A limit, because each replica holds tombstones and has an entry in every manifest."""


class NotRegistered(KeyfoldError):
    """No replica of this name is registered at the source."""


class AlreadyRegistered(KeyfoldError):
    """Another replica of this name, or at this place, is registered at the source."""


class ReplicaRegistry:
    """The replicas of one source. Cheap to make; keeps nothing."""

    def __init__(self, store: ObjectStore, topics_dir: str, clock: Clock, random: Random) -> None:
        self._store = store
        self._topics_dir = topics_dir
        self._clock = clock
        self._random = random
        self._retry = document_retry(clock, random)

    def load(self, name: str) -> Registration:
        """Return one replica. Raise `NotRegistered` or `DocumentUnreadable`."""
        document = self._document(name)
        return self._of(document, document.read(), name)

    def names(self) -> list[str]:
        """Return the names of all registered replicas, in order, with one listing."""
        prefix = replicas_prefix(self._topics_dir)

        def listed() -> list[str]:
            return [info.key.removeprefix(prefix) for info in self._store.list(prefix)]

        found = self._retry.repeat(listed)
        return [name.removesuffix(".json") for name in found if "/" not in name and name.endswith(".json")]

    def all(self) -> tuple[Registration, ...]:
        """Return all replicas, by name: one listing, and a GET for each.

        Raise `DocumentUnreadable` if one cannot be read, because the compactor must not ignore it.
        """
        found = []
        for name in self.names():
            try:
                found.append(self.load(name))
            except NotRegistered:
                continue  # removed meanwhile
        return tuple(found)

    def check(self, registration: Registration) -> None:
        """Check whether the registration could be saved. Raise `ConfigError` or `AlreadyRegistered`."""
        require_sound(registration)
        _require_own_place(registration, self.all())

    def add(self, registration: Registration) -> Registration:
        """Register a replica. Raise `ConfigError` or `AlreadyRegistered`."""
        require_sound(registration)
        others = self.all()
        if len(others) >= REPLICAS_MAX:
            raise AlreadyRegistered(f"the source has {len(others)} replicas already, and {REPLICAS_MAX} is the maximum")
        now_ms = self._clock.now_ms()
        made = replace(registration, cursor_id=self._cursor_id(), added_at_ms=now_ms, changed_at_ms=now_ms)
        _require_own_place(made, others)

        def create(body: DocumentBody | None) -> DocumentBody:
            if body is not None:
                raise AlreadyRegistered(
                    f"a replica `{made.name}` is already registered",
                    hint=f"choose another name, or change that replica: keyfold replica edit ... {made.name}",
                )
            return registration_document(made)

        document = self._document(made.name)
        return self._of(document, document.change(create), made.name)

    def edit(self, name: str, changes: Mapping[str, str | None]) -> Registration:
        """Change values of its configuration; None removes a key. Raise `NotRegistered` or `ConfigError`."""
        cursor_id = self._cursor_id()
        others = [other for other in self.all() if other.name != name]

        def edited(before: Registration) -> Registration:
            after = before.edited(changes, new_cursor_id=cursor_id)
            require_sound(after)
            _require_own_place(after, others)
            return after

        return self._changed(name, edited)

    def pause(self, name: str) -> Registration:
        """Stop copying to a replica; tombstones are still held for it."""
        return self._changed(name, lambda before: replace(before, is_paused=True))

    def resume(self, name: str) -> Registration:
        """Undo `pause`."""
        return self._changed(name, lambda before: replace(before, is_paused=False))

    def remove(self, name: str) -> Registration:
        """Remove a registration; the replica's data stays. The caller must drop its holds in the manifests."""
        found = self.load(name)
        self._document(name).remove()
        self._retry.repeat(lambda: self._store.delete(status_key(self._topics_dir, name)))
        return found

    def _changed(self, name: str, change: Callable[[Registration], Registration]) -> Registration:
        document = self._document(name)

        def changed(body: DocumentBody | None) -> DocumentBody | None:
            before = self._of(document, DocumentVersion(body), name)
            after = change(before)
            if after == before:
                return None
            return registration_document(replace(after, changed_at_ms=self._clock.now_ms()))

        return self._of(document, document.change(changed), name)

    def _of(self, document: CasDocument, found: DocumentVersion, name: str) -> Registration:
        if found.body is None:
            raise NotRegistered(
                f"no replica `{name}` is registered in {self._store.url}/{self._topics_dir}",
                hint="`keyfold replica list` lists the registered replicas, `keyfold replica add` registers one",
            )
        return registration_of(found.body, document.key, found.version)

    def _document(self, name: str) -> CasDocument:
        return CasDocument(self._store, registration_key(self._topics_dir, name), self._clock, self._random)

    def _cursor_id(self) -> str:
        return f"{self._random.getrandbits(32):08x}"


class EnablementStore:
    """The permissions in one replica's bucket."""

    def __init__(self, store: ObjectStore, topics_dir: str, clock: Clock, random: Random) -> None:
        self._stored = CasDocument(store, enablement_key(topics_dir), clock, random)
        self._clock = clock

    def load(self) -> Enablement:
        """Return the current permissions; by default nothing is enabled. One GET. Raise `DocumentUnreadable`."""
        return self._of(self._stored.read())

    def enable(self, format_version: int, topic: str = ALL_TOPICS, *, is_only: bool = False) -> Enablement:
        """Accept compacted logs of a topic, up to a format version. `is_only`: remove the entries of other topics."""
        return self._set(topic, enabled=True, format_version=format_version, is_only=is_only)

    def disable(self, format_version: int, topic: str = ALL_TOPICS, *, is_only: bool = False) -> Enablement:
        """Stop accepting compacted logs; copied records stay. `is_only`: remove the entries of other topics."""
        return self._set(topic, enabled=False, format_version=format_version, is_only=is_only)

    def undo(self, made: Enablement, before: Enablement) -> None:
        """Set the permissions back to what they were before a change, unless somebody has changed them since."""

        def changed(body: DocumentBody | None) -> DocumentBody | None:
            now = self._of(DocumentVersion(body))
            if now.compaction != made.compaction or made.compaction == before.compaction:
                return None
            return enablement_document(replace(now, compaction=before.compaction))

        self._stored.change(changed)

    def _set(self, topic: str, *, enabled: bool, format_version: int, is_only: bool) -> Enablement:
        def changed(body: DocumentBody | None) -> DocumentBody | None:
            before = self._of(DocumentVersion(body))
            entry = before.compaction.get(topic)
            others = {} if is_only else {t: e for t, e in before.compaction.items() if t != topic}
            if entry is None or (entry.enabled, entry.format) != (enabled, format_version):
                entry = CompactionEntry(enabled, format_version, self._clock.now_ms())
            after = {**others, topic: entry}
            return None if after == before.compaction else enablement_document(replace(before, compaction=after))

        return self._of(self._stored.change(changed))

    def _of(self, found: DocumentVersion) -> Enablement:
        if found.body is None:
            return Enablement()
        return enablement_of(found.body, self._stored.key, found.version)


def _require_own_place(registration: Registration, others: tuple[Registration, ...] | list[Registration]) -> None:
    """Refuse two names for one place, which would fence each other forever."""
    place = (registration.url, registration.config.get("store.url"))
    for other in others:
        if other.name != registration.name and (other.url, other.config.get("store.url")) == place:
            raise AlreadyRegistered(
                f"{registration.url} is already registered as the replica `{other.name}`",
                hint=f"add the topics to that replica: keyfold replica edit ... {other.name}",
            )
