"""The worlds that hold are not vacuous: they reach the difficult states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from keyfold.log.manifest import Manifest
from tests.model import truth
from tests.model.book import GONE
from tests.model.protocol import CREATES, DELETES, LANDS, State, Step
from tests.model.rules import Bounds
from tests.model.search import explore
from tests.model.world import World

LIMIT_STATES = 40_000


class Watched(World):
    """A world that counts which steps it takes and which facts it meets."""

    def __init__(self, kafka: truth.KafkaLog = truth.FOUR, *, bounds: Bounds) -> None:
        super().__init__(kafka, bounds=bounds)
        self.taken: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()

    def steps(self, state: State) -> Iterator[Step]:
        for label, after in super().steps(state):
            self.taken[re.sub(r"\d+|(uploads|times out): .*", r"\1", str(label[0]))] += 1
            yield label, after

    def see(self, state: State) -> None:
        kinds = {kind for kind, _ in state.requests}
        for kind, words in ((LANDS, "late commit"), (CREATES, "late upload"), (DELETES, "late DELETE")):
            self.facts[f"{words} on the way"] += kind in kinds
        if state.manifest == GONE:
            self.facts["manifest lost"] += 1
            return
        manifest = self.book.manifest[state.manifest]
        for fact in _facts(manifest):
            self.facts[fact] += 1
        self.facts["a reader is open while objects are replaced"] += state.reader.step == 1 and bool(manifest.replaced)

    def explored(self) -> Watched:
        assert explore(self, limit=LIMIT_STATES, see=self.see).holds
        return self


def _facts(manifest: Manifest) -> Iterator[str]:
    if manifest.purged_epoch:
        yield "tombstone purged"
    if any(s.cleaned_epochs for s in manifest.segments):
        yield "tombstone marked"
    if any(p.committed_at_ms >= 0 for p in manifest.passes):
        yield "pass stamped"
    if any(s.name.split("-")[1:] != s.index_name.removesuffix(".parquet").split("-")[1:] for s in manifest.segments):
        yield "segment with another index than it came with"
    if any(s.next_offset - s.base_offset > s.record_count for s in manifest.segments):
        yield "hole inside a range"
    if manifest.next_offset == len(truth.FOUR) and len(manifest.segments) == 1:
        yield "one merged segment"
    if manifest.next_offset and not manifest.segments:
        yield "emptied log"
    if manifest.sink.epoch and manifest.compactor.epoch:
        yield "both roles have claimed"
    if manifest.log_start_offset:
        yield from _expired_facts(manifest)


def _expired_facts(manifest: Manifest) -> Iterator[str]:
    yield "log start moved"
    yield "whole log expired" if manifest.log_start_offset == manifest.next_offset else "log expired in part"
    if manifest.last_pass_epoch:
        yield "log start moved, and a pass"


def missing(counted: Counter[str], *wanted: str) -> list[str]:
    """The wanted states that were not reached."""
    return [w for w in wanted if not any(w in name and count for name, count in counted.items())]


@pytest.mark.full
def test_passes_purge_merge_mark_and_their_garbage_is_deleted() -> None:
    world = Watched(bounds=Bounds(compactors=1, passes=3, stored=(1, 2, 4))).explored()
    assert not missing(
        world.facts,
        *("tombstone purged", "tombstone marked", "pass stamped", "segment with another index", "hole inside a range"),
        *("one merged segment", "late DELETE", "a reader is open while objects are replaced"),
    )
    assert not missing(
        world.taken,
        *("begins a pass", "uploads", "commits its replace", "commits its forget", "has nothing to do"),
        *("gc deletes replaced", "DELETE of"),
        *("the reader pins", "the reader reads", "the reader goes on", "the reader ends"),
    )


@pytest.mark.full
def test_faults_of_two_sinks_and_their_consequences_are_reached() -> None:
    world = Watched(bounds=Bounds(sinks=2, faults=1, reader=False)).explored()
    assert not missing(world.facts, "late commit", "late upload", "late DELETE")
    assert not missing(
        world.taken,
        *("crashes", "claim times out", "append times out", "upload of", "a late manifest PUT lands"),
        *(
            "finds its claim landed",
            "finds its append landed",
            "gets CommitUnknown and calls again",
            "gives its claim up",
        ),
        *("a late upload", "(there): takes it", "cuts again under another name", "is sent again"),
        "Fenced, stops",
    )


@pytest.mark.full
def test_faults_of_two_compactors_are_reached() -> None:
    world = Watched(bounds=Bounds(compactors=2, stored=(1, 4), faults=1, leases=True)).explored()
    assert not missing(
        world.taken,
        *("is fenced", "replace times out", "upload times out", "plans again", "LeaseHeld", "the lease has run out"),
        *("finds its replace landed", "gc deletes orphan"),
    )


def test_readers_are_refused_if_no_delay_protects_them() -> None:
    world = Watched(bounds=Bounds(compactors=1, passes=2, stored=(1, 2, 3, 4), timely=False, gc=False)).explored()
    assert not missing(world.taken, "the reader is refused", "the reader goes on")


@pytest.mark.full
def test_sinks_and_compactors_meet() -> None:
    world = Watched(bounds=Bounds(sinks=1, compactors=1, faults=1, cuts=(2,))).explored()
    assert not missing(world.facts, "both roles have claimed")
    assert not missing(world.taken, "applies its append again", "applies its replace again")


@pytest.mark.full
def test_segments_expire_before_during_and_after_passes() -> None:
    world = Watched(bounds=Bounds(compactors=2, parts=1, expires=1, stored=(1, 2), timely=False, gc=False)).explored()
    assert not missing(
        world.facts, "log start moved", "whole log expired", "log expired in part", "log start moved, and a pass"
    )
    assert not missing(world.taken, "past retention", "commits its expire", "the reader is overtaken")
    rivals = Watched(bounds=Bounds(compactors=2, expires=1, stored=(1, 4), faults=1, reader=False)).explored()
    assert not missing(rivals.taken, "expire times out", "finds its expire landed", "reads: Fenced, stops")
    beside = Watched(bounds=Bounds(sinks=1, compactors=1, expires=1, stored=(1, 2), reader=False)).explored()
    assert not missing(beside.taken, "applies its expire again", "applies its append again")


@pytest.mark.full
def test_logs_are_emptied_and_manifests_lost() -> None:
    emptied = Watched(
        truth.EMPTIED,
        bounds=Bounds(sinks=1, compactors=1, passes=2, stored=(1, 2), timely=False, gc=False),
    ).explored()
    assert not missing(emptied.facts, "emptied log")
    lost = Watched(bounds=Bounds(sinks=1, starts=2, compactors=1, faults=1, cuts=(2,), manifest_may_be_lost=True))
    lost.explored()
    assert not missing(lost.facts, "manifest lost")
    assert not missing(lost.taken, "finds the manifest gone")
