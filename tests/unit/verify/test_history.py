"""What the folder and its replaced objects tell of versions before: an older manifest, a pass that took too much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyfold.log.index import read_index
from keyfold.log.manifest import Ancestor
from keyfold.log.partition_log import Replacement
from tests.support.logs import MadeLog, records
from tests.unit.verify.test_planted_damage import World, batch, made_log, one


def test_an_older_manifest_put_back_is_found_despite_the_same_sink(capsys: pytest.CaptureFixture[str]) -> None:
    """Epochs do not show it; but a sink uploads no segment before the previous one is committed."""
    world = World(made_log(), capsys)
    world.made.delete_replaced(forget=True)
    key = world.made.place.manifest_key
    old = world.data(key)
    world.made.append(batch(160, 5))
    one_more = world.data(key)
    world.overwrite(key, old)
    assert world.verify() == []  # an upload that is not committed yet looks the same
    world.overwrite(key, one_more)
    world.made._sink = None
    world.made.append(batch(165, 5))
    newer = world.data(key)
    for start in (170, 175):
        world.made.append(batch(start, 5))
    world.overwrite(key, newer)
    found = one(world.verify(), "manifest-outdated")
    assert (found["object"], found["lost"]) == (key, "everything that was committed since that version")
    assert "it ends at offset 170, but " in found["what"]
    ancestor = Ancestor("before", 9, 170, world.made.manifest.last_epoch)
    world.put_manifest(lambda m: replace(m, lineage=(ancestor,)))
    assert world.verify() == []  # promoted: what a round had brought already, and had not committed yet


@pytest.mark.parametrize(("newer", "kind"), [("a=", "key-resurrected"), ("a=2", "record-lost")])
def test_a_value_that_survived_its_removal_is_found(capsys: pytest.CaptureFixture[str], newer: str, kind: str) -> None:
    """However high `purged_to` is: where a tombstone was purged nothing may be left that it deletes."""
    made = MadeLog()
    for batch_number, text in enumerate(("a=1 b=2", f"{newer} c=3", "d= e=5")):
        made.append(records(text, 2 * batch_number))
    session = made.log.claim_compactor(lease_ms=1000, holder="test")
    entry = session.manifest.segments[1]
    pair = entry, read_index(made.store, made.place, entry)
    swap = made._swap(session, [pair], {b"a": -1, b"c": 3}, [], purge=False)
    session.replace(Replacement((swap,), first_dirty_offset=6, purged_to=4, purged_epoch=1))
    world = World(made, capsys)
    found = one(world.verify(), kind)
    assert (found["object"], found["offset"]) == (world.key(0), 0)
    assert "b'a' at offset 2" in found["lost"]
