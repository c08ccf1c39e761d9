"""A manifest with malformed names: nothing is read, deleted or copied under such a name."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from keyfold.errors import Corrupt
from keyfold.log.gc import delete_names
from keyfold.log.manifest import Manifest, Replaced
from keyfold.log.manifest_codec import decode_manifest
from keyfold.log.names import Place, is_index_name, is_segment_name, parse_name, partition_of_folder
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import FaultyStore
from keyfold_compactor.report.report import PartitionOutcome
from keyfold_replicator.copy.jobs import CopyJob
from keyfold_replicator.state.states import SyncState
from tests.support.cleaning import EAGER, memory_log, new_run, record
from tests.support.hostile import forged, plant_manifest
from tests.support.logs import records
from tests.support.manifests import empty_manifest, entry, sink_name
from tests.support.replica_rounds import Worlds
from tests.support.transfers import transfer

PLACE = Place("topics", "users", 0)
SEGMENT = str(sink_name(0))
INDEX = str(sink_name(0).index)

NO_NAMES = [
    "",
    "_manifest.avro",
    "../partition=1/_manifest.avro",
    f"../partition=1/{SEGMENT}",
    f"../../../outside/{SEGMENT}",
    f"/{SEGMENT}",
    f"_index/{SEGMENT}",
    f"_index/../{INDEX}",
    INDEX.removeprefix("_index/"),
    f"{SEGMENT}\n",
    f"{SEGMENT}\0",
    SEGMENT.replace("-00000001-", "-000000001-"),
    SEGMENT.replace("-00000001-", f"-{'9' * 20}-"),
    SEGMENT.replace("-00000001-", f"-{'1' * 5000}-"),
    SEGMENT.replace("00000000000000000000-", "0000000000000000000\N{ARABIC-INDIC DIGIT THREE}-"),
    SEGMENT.replace("-s", "-r"),
    SEGMENT.upper(),
]


@pytest.mark.parametrize("name", NO_NAMES, ids=range(len(NO_NAMES)))
def test_a_manifest_with_a_malformed_object_name_is_corrupt(name: str) -> None:
    segment = entry(sink_name(0), 0, 3)
    whole = empty_manifest(last_epoch=1, next_offset=3, segments=(segment,))
    forgeries = {
        "segment": replace(whole, segments=(replace(segment, name=name),)),
        "index": replace(whole, segments=(replace(segment, index_name=name),)),
        "replaced": replace(whole, replaced=(Replaced(name, 1, 0),)),
    }
    assert decode_manifest(forged(whole), PLACE).segments == whole.segments
    for forgery in forgeries.values():
        with pytest.raises(Corrupt, match="name"):
            decode_manifest(forged(forgery), PLACE)


@pytest.mark.parametrize(("name", "index_name"), [(INDEX, SEGMENT), (SEGMENT, SEGMENT), (INDEX, INDEX)])
def test_a_segment_cannot_have_an_indexs_name_or_vice_versa(name: str, index_name: str) -> None:
    segment = replace(entry(sink_name(0), 0, 3), name=name, index_name=index_name)
    with pytest.raises(Corrupt, match=r"is not the name of a segment|is not the name of an index"):
        decode_manifest(forged(empty_manifest(last_epoch=1, next_offset=3, segments=(segment,))), PLACE)


def test_only_names_that_keyfold_generates_are_parsed() -> None:
    for name in (SEGMENT, INDEX, SEGMENT.replace("-00000001-", "-100000001-")):
        assert str(parse_name(name)) == name
    assert is_segment_name(SEGMENT)
    assert is_index_name(INDEX)
    assert partition_of_folder("partition=2147483647") == 2147483647
    for folder in ("partition=00", "partition=\N{ARABIC-INDIC DIGIT THREE}", f"partition={'9' * 5000}"):
        assert partition_of_folder(folder) is None


def poisoned() -> tuple[MemoryStore, Manifest, set[str]]:
    """A log, a victim outside its folder, and a manifest that calls the victim and itself replaced."""
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")])
    store.put("elsewhere/secret", b"keep me", Create())
    pinned = PartitionLog(store, PLACE, clock=ManualClock(), random=Random(1)).load()
    victims = ("_manifest.avro", "../../../elsewhere/secret")
    before = {info.key for info in store.list("")}
    return store, replace(pinned.manifest, replaced=tuple(Replaced(v, 1, 0) for v in victims)), before


def test_the_compactor_deletes_nothing_that_a_forged_manifest_lists_as_replaced() -> None:
    store, manifest, before = poisoned()
    plant_manifest(store, PLACE, manifest)
    watched = FaultyStore(store)
    report = new_run(watched, EAGER).clean([PLACE])
    assert report.by_place[PLACE].outcome is PartitionOutcome.FAILED
    assert [call.key for call in watched.calls if call.operation in {"delete", "put"}] == []
    assert {info.key for info in store.list("")} == before


@pytest.mark.parametrize("name", NO_NAMES, ids=range(len(NO_NAMES)))
def test_the_deletion_itself_refuses_a_malformed_name(name: str) -> None:
    store = FaultyStore(MemoryStore())
    with pytest.raises(Corrupt, match="nothing was changed"):
        delete_names(store, PLACE, [SEGMENT, name])
    assert store.calls == []


@pytest.mark.parametrize("name", NO_NAMES, ids=range(len(NO_NAMES)))
def test_the_copy_itself_refuses_a_malformed_name(name: str) -> None:
    source, target = FaultyStore(MemoryStore()), FaultyStore(MemoryStore())
    with transfer(source, target) as copying, pytest.raises(Corrupt, match="nothing was changed"):
        list(copying.copy([CopyJob(PLACE, name, 1, bytes(32))]))
    assert source.calls == target.calls == []


def test_the_replicator_writes_no_malformed_name_of_a_forged_source_and_continues_with_other_partitions() -> None:
    worlds = Worlds.new()
    forged_log, other = worlds.log(), worlds.log(partition=1)
    forged_log.append(records("a=1 b=2"))
    other.append(records("a=1"))
    manifest = forged_log.manifest
    data = worlds.source.get(PLACE.key(manifest.segments[0].name)).data
    stray = f"../../../elsewhere/{manifest.segments[0].name}"
    worlds.source.put(PLACE.key(stray), data, Create())
    plant_manifest(worlds.source, PLACE, replace(manifest, segments=(replace(manifest.segments[0], name=stray),)))
    with worlds.running() as running:
        states = {state.place.partition: state for state in running.once()}
        assert states[0].state is SyncState.BROKEN
        assert "is not the name of a segment" in states[0].message
        assert worlds.is_equal(partition=1)
    assert [info.key for info in worlds.replica.list("") if "/partition=1/" not in info.key] == []
