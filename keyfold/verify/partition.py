"""Prove one partition's log: read all of it back, and compare every part with every other.

    manifest    can be read, is sound in itself (`keyfold.log.manifest.faults`), and is not older than the objects
    objects     every listed one is there, with its size and SHA-256
    segments    see `verify_segment`: blocks, records and index row by row, counts, times, marks, sync marker
    keys        see `verify_keys`: nothing superseded below the first dirty offset, nothing under a marked tombstone,
                nothing gone that replaced objects still know
    the rest    orphans, replaced objects that wait for their deletion, unfinished uploads: notes, no damage

Everything is read once; only what is damaged is read again, to say what is lost. `parallel` segments are read at a
time. Memory is bounded, whatever the log's size: an index and a range per segment that is being read, and the rows of
`verify_hashes`. `keyfold.spark.verify` does the same with tasks of Spark.

The log may be in use: when an object of the version under test has been collected meanwhile, the newest version is
verified from the beginning (`verify_round`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from keyfold.errors import ObjectNotFound
from keyfold.log.names import Place
from keyfold.log.partition_log import PartitionLog
from keyfold.runtime.clock import Clock
from keyfold.store.api import ObjectStore
from keyfold.verify.findings import Finding, FindingKind, VerifyReport
from keyfold.verify.key_hashes import ROWS_AT_ONCE, HashedRows
from keyfold.verify.key_rules import add_replaced, suspects_of
from keyfold.verify.round import Round, SegmentJob, SegmentResult, VerifiedVersionGone, check_segment
from keyfold.verify.segment import Progress

__all__ = ["Finding", "FindingKind", "VerifyReport", "verify_partition"]


def verify_partition(
    store: ObjectStore,
    place: Place,
    *,
    clock: Clock,
    random: Random,
    progress: Progress = lambda _: None,
    parallel: int = 1,
    rows_at_once: int = ROWS_AT_ONCE,
) -> VerifyReport:
    """Verify the newest version of a partition's log.

    Damage is in the report, not raised. `progress` may be called from `parallel` threads. Raises `LogNotFound` where
    no log is, `FormatTooNew` where this version cannot judge, and `StoreError` where the store cannot be asked.
    """
    log = PartitionLog(store, place, clock=clock, random=random)
    while True:
        try:
            begun = Round.begin(log)
            if isinstance(begun, VerifyReport):
                return begun
            return _verify(store, begun, progress, parallel, rows_at_once)
        except (VerifiedVersionGone, ObjectNotFound):
            continue  # what is missing for good is a finding in the next round


def _verify(store: ObjectStore, begun: Round, progress: Progress, parallel: int, rows_at_once: int) -> VerifyReport:
    manifest, place = begun.manifest, begun.place
    with HashedRows(begun.expected_rows, rows_at_once) as rows:
        results = _check_all(store, begun.jobs, rows, progress, parallel)
        for name in begun.replaced:
            add_replaced(store, place, manifest.log_start_offset, name, rows)
        suspects = suspects_of(rows, begun.promises)
    return begun.report(results, suspects)


def _check_all(
    store: ObjectStore, jobs: Sequence[SegmentJob], rows: HashedRows, progress: Progress, parallel: int
) -> list[SegmentResult]:
    def check(job: SegmentJob) -> SegmentResult:
        return check_segment(store, job, progress, rows.add)

    if parallel == 1:
        return [check(job) for job in jobs]
    with ThreadPoolExecutor(parallel, thread_name_prefix="verify") as pool:
        return list(pool.map(check, jobs))
