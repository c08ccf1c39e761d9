"""A lost manifest is brought back with the same latest state, whatever else lies in the folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from keyfold.errors import Corrupt, Fenced, LogError, LogNotFound, ManifestLost, StoreError
from keyfold.log.manifest import faults
from keyfold.log.names import ObjectName, Role
from keyfold.log.record import Record
from keyfold.log.segment import SegmentWriter
from keyfold.read.log import Log
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import Create, ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.store.wrappers.faults import FaultyStore, SimulatedCrash, every_fault
from keyfold.verify.partition import verify_partition
from keyfold.verify.repair import RepairPlan, apply_repair, plan_repair
from keyfold.verify.surviving_segments import Candidate, choose_cover
from tests.support.logs import MadeLog, columns, latest_of, record, records


def lose(made: MadeLog) -> None:
    made.store.delete(made.place.manifest_key)


def repair(made: MadeLog) -> RepairPlan:
    plan = plan_repair(made.store, made.place, clock=made.clock, random=made.random)
    apply_repair(made.store, plan, clock=made.clock, random=made.random)
    report = verify_partition(made.store, made.place, clock=made.clock, random=made.random)
    assert report.is_sound, report.damage
    assert not faults(made.manifest)
    return plan


def upload_only(made: MadeLog, batch: list[Record]) -> str:
    """What a sink leaves that crashed between upload and commit."""
    writer = SegmentWriter(sync_marker=made.sink.manifest.sync_marker)
    writer.append(columns(batch))
    base = made.sink.manifest.next_offset
    return made.upload(writer.finish(), made.sink.new_name(base), base, batch[-1].offset + 1).name


def test_a_never_compacted_log_is_repaired_completely() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2"))
    made.append(records("c=1 _ b= =x", 3), next_offset=9)
    before, whole = made.manifest, list(Log(made.store, "topics", "users").read())
    lose(made)
    plan = repair(made)
    after = made.manifest
    assert list(Log(made.store, "topics", "users").read()) == whole
    assert plan.new_indexes == ()
    assert after.log_id != before.log_id
    assert after.sync_marker == before.sync_marker
    assert [(s.name, s.index_name, s.checksum) for s in after.segments] == [
        (s.name, s.index_name, s.checksum) for s in before.segments
    ]
    assert (after.log_start_offset, after.next_offset, after.first_dirty_offset) == (0, 7, 0)
    assert after.last_epoch > before.last_epoch


def test_writers_of_the_lost_manifest_are_fenced_and_new_ones_continue() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1"))
    zombie = made.sink
    lose(made)
    repair(made)
    with pytest.raises(Fenced):
        zombie.refresh()
    made._sink = None
    made.append(records("a=2", 2))
    made.compact()
    assert [r.offset for r in Log(made.store, "topics", "users").read()] == [1, 2]


def test_replaced_segments_that_still_exist_are_left_out() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2"))
    made.append(records("c=1 b= c=2", 3))
    made.compact(merge=True)
    whole = list(Log(made.store, "topics", "users").read())
    lose(made)
    plan = repair(made)
    assert list(Log(made.store, "topics", "users").read()) == whole
    assert len(plan.left_out) == 2
    # The compactor's index has marks; a repaired log has none, so that delete horizons start again.
    assert len(plan.new_indexes) == 1
    assert [s.unmarked_tombstone_count for s in made.manifest.segments] == [1]


def test_a_partly_uploaded_uncommitted_pass_is_harmless() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2"))
    made.append(records("c=1 b= c=2", 3))
    made.append(records("d=1 a=3", 6))
    state = latest_of(Log(made.store, "topics", "users").read())
    made.compact(commit=False)
    outputs = sorted(k for k in made.object_keys() if "-c" in k and k.endswith(".avro"))
    made.store.delete(outputs[1])
    lose(made)
    repair(made)
    assert latest_of(Log(made.store, "topics", "users").read()) == state


def test_a_fenced_sinks_upload_is_left_out() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1"))
    orphan = upload_only(made, records("a=2 a=3 a=4 a=5", 2))
    made._sink = made.log.claim_sink()
    made.append(records("a=2 a=3", 2))
    whole = list(Log(made.store, "topics", "users").read())
    lose(made)
    plan = repair(made)
    assert plan.left_out == ((orphan, "a sink's upload that was never committed"),)
    assert list(Log(made.store, "topics", "users").read()) == whole


def test_a_key_in_a_replaced_and_emptied_segment_stays_deleted() -> None:
    made = MadeLog()
    made.append(records("k=old"))
    made.append(records("k= x=1", 1))
    made.compact()  # empties the first segment and marks the tombstone
    made.compact(purge=True)  # nothing has been collected: k=old and its tombstone still lie there
    lose(made)
    repair(made)
    assert {r.key for r in Log(made.store, "topics", "users").latest()} == {b"x"}


@pytest.mark.sharded
@pytest.mark.parametrize("seed", range(60))
def test_the_latest_state_survives_any_history_of_passes_crashes_and_gc(seed: int) -> None:
    random = Random(seed)
    keys = (None, *(f"k{n}" for n in range(7)))
    source = [record(o, random.choice(keys), random.choice((None, f"v{o}"))) for o in range(200)]
    made = MadeLog(random=Random(seed), block_bytes=random.choice((64, 4096)))

    def append(most: int) -> None:
        begin = made.sink.refresh().next_offset
        made.append(source[begin : begin + random.randrange(1, most)])

    append(8)
    for _ in range(random.randrange(2, 14)):
        choice = random.random()
        if choice < 0.45:
            append(8)
        elif choice < 0.7:
            made.compact(purge=random.random() < 0.5, merge=random.random() < 0.5)
        elif choice < 0.8:
            made.compact(commit=False, merge=random.random() < 0.5)
        elif choice < 0.9:
            begin = made.sink.refresh().next_offset
            upload_only(made, source[begin : begin + random.randrange(1, 8)])
            made._sink = made.log.claim_sink()
            append(random.choice((2, 12)))
        else:
            made.delete_replaced(most=random.choice((None, 1, 3)))
    log = Log(made.store, "topics", "users")
    end = made.manifest.next_offset
    assert latest_of(log.read()) == latest_of(source[:end])
    objects = set(made.object_keys())
    lose(made)
    plan = repair(made)
    # Records of an upload that nobody committed may be taken in: the source has them, and the sink would fetch them.
    after = made.manifest.next_offset
    assert latest_of(log.read()) == latest_of(source[: max(end, after)])
    keyless = [r for r in source[: max(end, after)] if r.key is None]
    assert [r for r in log.read() if r.key is None] == keyless
    kept = {made.place.key(n) for s in made.manifest.segments for n in (s.name, s.index_name)}
    assert kept <= objects | {made.place.key(name) for name, _ in plan.new_indexes}
    made._sink = None
    append(8)
    made.compact(merge=True)
    assert latest_of(log.read()) == latest_of(source[: made.manifest.next_offset])


def test_nothing_is_repaired_if_a_manifest_exists_or_no_log() -> None:
    made = MadeLog()
    with pytest.raises(LogNotFound):
        repair(made)
    made.append(records("a=1"))
    with pytest.raises(LogError, match="there is nothing to repair"):
        repair(made)
    lose(made)
    plan = plan_repair(made.store, made.place, clock=made.clock, random=made.random)
    made.log.restore(plan.manifest)
    with pytest.raises(LogError, match="there is nothing to repair"):
        apply_repair(made.store, plan_of_another(plan, made), clock=made.clock, random=made.random)


def plan_of_another(plan: RepairPlan, made: MadeLog) -> RepairPlan:
    """The same plan as another operator would have made it: with another log id."""
    from dataclasses import replace

    return replace(plan, manifest=replace(plan.manifest, log_id="another"))


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b""])
def test_a_damaged_manifest_is_not_treated_as_lost(damage: Callable[[bytes], bytes]) -> None:
    made = MadeLog()
    made.append(records("a=1"))
    data = damage(made.store.get(made.place.manifest_key).data)
    made.store.delete(made.place.manifest_key)
    made.store.put(made.place.manifest_key, data, Create())
    with pytest.raises(Corrupt, match="log repair <url> users --partition 0 --replace-damaged`, which keeps a copy"):
        repair(made)
    assert made.store.get(made.place.manifest_key).data == data


def lost_log() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2"))
    made.compact()
    made.append(records("b= c=1", 3))
    made.compact()
    made.append(records("d=1", 5))
    lose(made)
    return made


def try_repair(store: ObjectStore, made: MadeLog, seed: int) -> None:
    clock, random = ManualClock(), Random(seed)
    plan = plan_repair(store, made.place, clock=clock, random=random)
    apply_repair(store, plan, clock=clock, random=random)


def test_a_repair_that_fails_at_any_store_call_can_be_repeated() -> None:
    clean = FaultyStore((made := lost_log()).store)
    try_repair(clean, made, 1)
    faults = list(every_fault(clean.calls))
    assert len(faults) > 30
    for fault in faults:
        made = lost_log()
        faulty = FaultyStore(made.store, [fault])
        with contextlib.suppress(SimulatedCrash, StoreError, LogError):
            try_repair(faulty, made, 1)
        with contextlib.suppress(LogError):  # a manifest that is there already
            try_repair(made.store, made, 2)
        faulty.land()
        assert {r.key: r.value for r in Log(made.store, "topics", "users").latest()} == {
            b"a": b"2", b"c": b"1", b"d": b"1",
        }, fault  # fmt: skip
        assert verify_partition(made.store, made.place, clock=made.clock, random=made.random).is_sound


def test_a_damaged_segment_and_one_of_another_log_are_named_and_nothing_is_written() -> None:
    made = MadeLog()
    made.append(records("a=1 b=1"))
    entry = made.append(records("c=1", 2))
    lose(made)
    objects = set(made.object_keys())
    key = made.place.key(entry.name)
    data = made.store.get(key).data
    made.store.delete(key)
    made.store.put(key, data[:-3], Create())
    with pytest.raises(Corrupt, match=f"{entry.name}.*cut off"):
        repair(made)
    other = MadeLog(store=MemoryStore(), random=made.random)
    theirs = other.append(records("z=1"))
    made.store.delete(key)
    made.store.put(key, other.store.get(other.place.key(theirs.name)).data, Create())
    with pytest.raises(
        ManifestLost, match=f"2 different logs, according to their sync markers: .*1 such as {entry.name}"
    ):
        repair(made)
    assert set(made.object_keys()) == objects


def test_an_offset_with_two_records_is_refused() -> None:
    made = MadeLog()
    made.append(records("a=1"))
    upload_only(made, records("b=1", 1))
    made.append(records("c=1", 1))
    lose(made)
    with pytest.raises(ManifestLost, match="offset 1 is a different record in"):
        repair(made)


def candidate(base: int, epoch: int, role: str, offsets: list[int], keys: str, dead: str = "") -> Candidate:
    name = ObjectName(base, epoch, Role(role), "0" * 16)
    return Candidate(name, np.array(offsets), [k.encode() for k in keys], [k in dead for k in keys])


def test_an_ambiguous_choice_is_reported() -> None:
    a = candidate(0, 1, "s", [0, 1, 2], "abc")
    b = candidate(2, 1, "s", [2, 3], "cd")
    cover = choose_cover([a, b])
    assert cover.chosen == (a,)
    assert cover.missing == (3,)


def test_a_deleted_key_whose_tombstone_is_gone_is_not_brought_back() -> None:
    old = candidate(0, 1, "s", [0], "k")
    tombstone = candidate(1, 1, "s", [1, 2], "kx", dead="k")
    purged = candidate(1, 5, "c", [2], "x")
    cover = choose_cover([old, tombstone, purged])
    assert cover.chosen == (purged,)
    assert (cover.missing, cover.resurrected) == ((), ())
