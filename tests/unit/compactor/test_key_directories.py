"""Directories of keys beside the compactor: when they are written, what a run says of them, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

import pytest

from keyfold.errors import StoreUnavailable
from keyfold.log.manifest import Manifest
from keyfold.log.partition_log import PartitionLog
from keyfold.read.log import Log
from keyfold.read.stored_directory import StoredDirectory, directories
from keyfold.runtime.clock import ManualClock
from keyfold.store.api import MIN_PART_BYTES, Create
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.key_directories import keeping
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import RunReport
from keyfold_compactor.report.report_text import text_lines
from keyfold_compactor.report.show import report_document
from tests.support.cleaning import PLACE, Sink, memory_log, record, retry_policy
from tests.support.untyped import untyped

DAY_S = 86_400


class Kept:
    """A log with two versions of a key, and runs that keep its directory."""

    def __init__(self) -> None:
        self.clock = ManualClock(2 * 10**12)
        log, self.sink = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=self.clock)
        self.store = CountedStore(log)
        self.random = Random(1)

    def run(
        self, config: Mapping[str, str] | None = None, topics: Iterable[str] = (), partitions: Iterable[int] = ()
    ) -> RunReport:
        given = {"s3.bucket.name": "b", "min.cleanable.dirty.ratio": "0", "keys.directory": "true"}
        options = CompactOptions.parse({**given, **(config or {})})
        limits = frozenset(topics), frozenset(partitions)
        with keeping(options, *limits, clock=self.clock, random=self.random, opener=lambda *_: self.store) as step:
            return Job(
                options,
                RunSelection(),
                self.store,
                lambda _: LocalExecutor(self.store, retry_policy(self.clock, Random(1))),
                clock=self.clock,
                random=Random(2),
                keep_directories=step,
            ).once()

    @property
    def manifest(self) -> Manifest:
        return PartitionLog(self.store, PLACE, clock=self.clock, random=Random(1)).load().manifest

    @property
    def next_offset(self) -> int:
        return self.manifest.next_offset

    @property
    def names(self) -> list[str]:
        return [info.key for info in directories(self.store, PLACE)]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_run_leaves_a_directory_of_what_it_has_left(kept: Kept) -> None:
    report = kept.run()
    (name,) = kept.names
    (found,) = untyped(report_document(report))["key_directories"]
    assert (found["topic"], found["partition"], found["error"]) == (PLACE.topic, 0, "")
    assert (found["object"], found["records"], found["segments"]) == (name, 1, 1)
    assert f"{PLACE}: a directory of the keys of 1 records, {found['bytes']} bytes" in text_lines(report)
    assert report.exit_code == 0
    lookup = Log(kept.store, PLACE.topics_dir, PLACE.topic, clock=kept.clock, random=Random(1)).lookup()
    assert lookup.get(b"a").value == b"2"


def test_only_a_tenth_of_new_records_is_worth_a_new_one(kept: Kept) -> None:
    kept.sink.append([record(n, f"k{n}", "v") for n in range(2, 100)])
    kept.run()
    first = kept.names
    kept.sink.append([record(n, f"k{n}", "v") for n in range(100, 105)])
    report = kept.run({"min.cleanable.dirty.ratio": "1"})
    assert (report.key_directories, kept.names) == ((), first)
    kept.sink.append([record(n, f"k{n}", "v") for n in range(105, 112)])
    (found,) = kept.run({"min.cleanable.dirty.ratio": "1"}).key_directories
    assert found.document["segments_read"] == 2
    assert len(kept.names) == 1, "its predecessor is deleted"
    assert kept.names != first


def test_a_log_that_was_made_again_gets_its_own_directory(kept: Kept) -> None:
    for n in range(2, 6):
        kept.sink.append([record(n, f"k{n}", "v")])
    kept.run()
    (old,) = kept.names
    for info in list(kept.store.list(PLACE.folder)):
        kept.store.delete(info.key)
    Sink.open(kept.store, clock=kept.clock, seed=9).append([record(0, "z", "1")])
    kept.run({"min.cleanable.dirty.ratio": "1"})
    (new,) = kept.names
    assert new < old, "the new log has a lower version"
    log_id = kept.manifest.log_id
    assert (found := StoredDirectory.newest(kept.store, PLACE, log_id)) is not None
    assert (found.key, found.log_id) == (new, log_id)
    assert kept.run({"min.cleanable.dirty.ratio": "1"}).key_directories == ()


def test_topics_and_partitions_can_be_left_out(kept: Kept) -> None:
    assert kept.run(topics=["orders"]).key_directories == ()
    assert kept.run(partitions=[1]).key_directories == ()
    assert kept.run({f"topic.{PLACE.topic}.keys.directory": "false"}).key_directories == ()
    assert kept.run({"keys.directory": "false"}).key_directories == ()
    own = {"keys.directory": "false", f"topic.{PLACE.topic}.keys.directory": "true"}
    assert len(kept.run(own).key_directories) == 1


def test_a_damaged_directory_is_replaced(kept: Kept) -> None:
    kept.run()
    (name,) = kept.names
    data = bytearray(kept.store.get(name).data)
    data[0] ^= 1  # of a chunk, which is read when the next directory is written
    for wrong in (b"x" * 100, bytes(data)):
        kept.store.delete(name)
        kept.store.put(name, wrong, Create())
        kept.sink.append([record(kept.next_offset, "b", "3")])
        report = kept.run()
        assert (report.exit_code, name in kept.names) == (0, False)
        said, written = report.key_directories[0].lines
        assert name in said
        assert said.endswith("; it is replaced")
        assert written.startswith(f"{PLACE}: a directory of the keys of 2 records, ")
        (name,) = kept.names
        data = bytearray(kept.store.get(name).data)
        data[0] ^= 1


def test_a_damaged_log_has_no_directory(kept: Kept) -> None:
    (entry,) = kept.manifest.segments
    kept.store.delete(PLACE.key(entry.index_name))
    report = kept.run({"cleanup.policy": "delete"})
    assert (report.exit_code, kept.names) == (0, [])
    kept.store.put(PLACE.key(entry.index_name), b"x" * entry.index_size_bytes, Create())
    report = kept.run({"cleanup.policy": "delete"})
    assert (report.exit_code, kept.names) == (1, [])
    assert report.key_directories[0].lines[-1].startswith(f"{PLACE}: no directory of keys: ")


def test_uploads_of_killed_processes_are_ended_after_a_day(kept: Kept) -> None:
    key = f"{PLACE.key_directories}{0:020d}-{0:016x}.keys"
    kept.store.start_upload(key).write(b"x" * MIN_PART_BYTES)
    kept.run()
    assert len(list(kept.store.list_uploads(PLACE.key_directories))) == 1
    kept.clock.sleep(DAY_S + 1)
    kept.sink.append([record(n, f"k{n}", "v") for n in range(2, 10)])
    kept.run()
    assert list(kept.store.list_uploads(PLACE.key_directories)) == []


def test_nothing_half_written_is_visible(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.run()
    before = kept.names
    kept.sink.append([record(n, f"k{n}", "v") for n in range(2, 10)])

    def refused(_store: object, key: str, *_rest: object) -> None:
        raise StoreUnavailable(key, "no answer", code="503")

    with monkeypatch.context() as patch:
        patch.setattr("keyfold.log.objects.ObjectUpload.finish", lambda *_: refused(None, "x"))
        report = kept.run()
    assert (report.exit_code, kept.names) == (1, before)
    directory = StoredDirectory.newest(kept.store, PLACE, kept.manifest.log_id)
    assert directory is not None
    assert directory.key == before[0]
    assert len(kept.run().key_directories) == 1
