"""The two stages of `keyfold log verify --spark`, without a JVM: rows in any order give the same report."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest

from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.arrow_types import values_of
from keyfold.spark.verify import _answer_batch, _checker, _deal, _Gathered, _suspector, _take
from keyfold.store.api import ObjectStore
from keyfold.store.memory import MemoryStore
from keyfold.verify.findings import Finding, FindingKind, VerifyReport
from keyfold.verify.key_rules import Suspect, Suspected, Suspects
from keyfold.verify.partition import verify_partition
from keyfold.verify.round import Round, SegmentResult
from tests.support.logs import MadeLog
from tests.unit.verify.test_planted_damage import World, made_log


@dataclass
class Here:
    """A location in this process."""

    store: ObjectStore

    def open(self) -> ObjectStore:
        return self.store


def staged(logs: list[MadeLog], groups: int) -> list[VerifyReport]:
    """What `verify_on_spark` makes of these logs, with the shuffle done by hand."""
    store, random = logs[0].store, Random(0)
    rounds = [Round.begin(PartitionLog(store, log.place, clock=log.clock, random=random)) for log in logs]
    assert all(isinstance(one, Round) for one in rounds)
    begun = [one for one in rounds if isinstance(one, Round)]
    tasks = _deal(begun)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(tasks)), pa.int64())], names=["id"])
    rows = pa.Table.from_batches(_checker(cast("Any", Here(store)), tasks)([numbers]))
    shuffled = rows.take(random.sample(range(len(rows)), len(rows)))
    gathered = [_Gathered() for _ in begun]
    keys = values_of(shuffled.column("hash"))
    for group in range(groups):
        part = shuffled.filter(pa.array([key % groups == group for key in keys]))
        stage = _suspector([one.promises for one in begun], len(rows) // groups)
        for batch in stage(part.combine_chunks().to_batches(max_chunksize=37)):
            for row in batch.to_pylist():
                _take(gathered[row["log"]], row["result"])
    for one in gathered:
        one.results.sort(key=lambda result: result.entry.base_offset)
        assert not one.has_moved
    return [one.report(found.results, found.suspected) for one, found in zip(begun, gathered, strict=True)]


@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("damage", ["nothing", "segment", "index", "manifest", "superseded", "gone"])
def test_the_spark_stages_report_what_one_process_reports(groups: int, damage: str) -> None:
    store = MemoryStore()
    logs = [made_log(store, Place("topics", "users", p), seed=p + 20) for p in range(2)]
    world = World(logs[1], None)  # type: ignore[arg-type]  # this world needs no broker
    if damage == "segment":
        world.flip(world.key(2), -30)
    elif damage == "index":
        store.delete(world.index_key(0))
    elif damage == "manifest":
        world.put_entry(1, lambda e: replace(e, record_count=7))
    elif damage == "superseded":
        world.rewrite(0, lambda rs: [replace(r, key=b"key-090") if r.offset == 13 else r for r in rs])
    elif damage == "gone":
        world.rewrite(1, lambda rs: [r for r in rs if r.offset not in {50, 61}])
    there = staged(logs, groups)
    here = [verify_partition(store, log.place, clock=log.clock, random=Random(0)) for log in logs]
    assert [r.is_sound for r in here] == [True, damage == "nothing"]
    assert there == here


def test_a_tasks_answer_cannot_run_code_in_the_driver(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    with pytest.raises(ValueError, match="JSON"):
        _take(_Gathered(), pickle.dumps(Harmful()))
    assert not (tmp_path / "ran").exists()


def test_a_tasks_answer_arrives_unchanged(tmp_path: Path) -> None:
    entry = made_log(MemoryStore(), Place("topics", "users", 0), seed=3).log.load().manifest.segments[0]
    finding = Finding(FindingKind.BLOCK_DAMAGED, "topics/ü", "a block", block=2, offset=2**62)
    result = SegmentResult(entry, bytes(range(224, 256)), 7, has_index=True, knows_keys=False, findings=(finding,))
    suspected = Suspected(gone=Suspects([Suspect(5, -1, 1)], 9))
    gathered = _Gathered()
    for answer in ((result, None), (None, suspected), (None, None)):
        (row,) = _answer_batch(0, answer).to_pylist()
        _take(gathered, row["result"])
    assert gathered == _Gathered([result], suspected, has_moved=True)
