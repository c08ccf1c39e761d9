"""A slow garbage collection: it found unnamed objects, and deletes them while another replicator is about to use them.

The objects are those of a version of the source that was replaced. Somebody who has seen that version finds them at
the replica, and must not build on them: not if it claims after garbage collection has looked for claims. If it had
claimed before, garbage collection must notice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from keyfold.log.names import Place
from keyfold.store.api import Create
from keyfold.store.wrappers.faults import Call
from keyfold_replicator.state.states import SyncState
from tests.support.logs import MadeLog, records
from tests.support.replica_rounds import Running, Worlds

NEAR, FAR = Place("topics", "users", 0), Place("far/logs", "users", 0)


class SlowGarbageCollection:
    """A process whose search for orphans is held up before it lists, before it reads the source, before it deletes."""

    def __init__(self, running: Running) -> None:
        self._reached = {at: threading.Event() for at in ("list", "get", "delete")}
        self._may = {at: threading.Event() for at in self._reached}
        running.replica.on_call = lambda call: self._hold_up(call, "list", "delete")
        running.source.on_call = lambda call: self._hold_up(call, "get")
        self._thread = threading.Thread(target=running.once)
        self._thread.start()

    def _hold_up(self, call: Call, *ats: str) -> None:
        for at in ats:
            if call.operation == at and not self._reached[at].is_set() and (at != "get" or self._may["list"].is_set()):
                self._reached[at].set()
                assert self._may[at].wait(60)

    def wait_for(self, at: str) -> None:
        assert self._reached[at].wait(60)

    def let(self, *ats: str) -> None:
        for at in ats:
            self._may[at].set()

    def end(self) -> None:
        self.let("list", "get", "delete")
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def searching() -> Iterator[tuple[Worlds, MadeLog, SlowGarbageCollection]]:
    """A replica in sync, whose replicator has just listed objects that the source names only now."""
    worlds = Worlds.new()
    log = worlds.log()
    log.append(records("a=1 b=1"))
    with worlds.running() as running:
        running.once()
        worlds.clock.advance(3_600_000)
        gc = SlowGarbageCollection(running)
        gc.wait_for("list")
        entry = log.append(records("a=2", 2))
        # The last requests of a process that is gone bring them there.
        for name in (entry.name, entry.index_name):
            worlds.replica.put(FAR.key(name), worlds.source.get(NEAR.key(name)).data, Create())
        gc.let("list")
        gc.wait_for("get")
        try:
            yield worlds, log, gc
        finally:
            gc.end()


def missing(worlds: Worlds) -> set[str]:
    return set(worlds.manifests()[1].object_names() - worlds.folder())


@pytest.mark.parametrize("is_claimed", [False, True], ids=["before his claim", "after his claim"])
def test_no_replicator_commits_objects_that_are_being_deleted(*, is_claimed: bool) -> None:
    found: set[str] = set()
    is_awake = threading.Event()
    with searching() as (worlds, log, gc), worlds.running() as late:
        had = worlds.manifests()[1].log_version

        def has_seen_it_and_sleeps(call: Call) -> None:
            """Before the claim reads the replica's manifest; or, claimed, before the commit writes it."""
            if call.key != FAR.manifest_key or late.source.calls[-1].operation == "list_folders":
                return
            commits = sum(c.operation == "put" and c.key == FAR.manifest_key for c in late.replica.calls)
            if not is_claimed or commits == 2:
                late.replica.on_call = wakes
                log.compact(merge=True)
                gc.let("get")
                if is_claimed:
                    gc.end()
                else:
                    gc.wait_for("delete")

        def wakes(_call: Call) -> None:
            if worlds.manifests()[1].log_version > had:
                is_awake.set()
                late.replica.on_call = None
                gc.end()
                found.update(missing(worlds))

        late.replica.on_call = has_seen_it_and_sleeps
        late.once()
        gc.end()
        assert is_awake.is_set()
        assert not found
        late.once()
        assert late.state().state is SyncState.IN_SYNC
    assert not missing(worlds)
    assert worlds.is_equal()


def test_objects_newly_listed_by_the_source_are_not_deleted_at_the_replica() -> None:
    with searching() as (worlds, _log, gc):
        there = worlds.folder()
        gc.end()
        assert worlds.folder() >= there
        assert not worlds.is_equal()
    with worlds.running() as running:
        assert running.state().state is SyncState.IN_SYNC
        assert running.runner.tally.totals.objects_sent == 0
    assert worlds.is_equal()
