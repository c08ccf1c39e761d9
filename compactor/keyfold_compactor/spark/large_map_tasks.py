"""The three steps of `keyfold_compactor.execute.large_map`, each in tasks of its own, with two shuffles in between.

Every step follows the log's list of segments. So a segment from which nothing is superseded, or of which nothing is
left, is in the result like every other. A failed step says so in its result and never fails other logs. A segment that
could not be split reports that to every bucket. Otherwise Spark could run that task again for other readers of its
output, with success, and a map without this segment's keys would keep what they supersede and mark their tombstones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from pyspark import RDD, Broadcast, SparkContext, StorageLevel

from keyfold.runtime.throttle import ThrottleLost
from keyfold.store.wrappers.counting import CountedStore
from keyfold_compactor.decide import plan
from keyfold_compactor.decide.work import LogJob, Traffic, reason
from keyfold_compactor.execute.large_map import Candidates, Superseded, decide, match, split
from keyfold_compactor.spark.tasks import Counter, Mask, SegmentFound, TaskEnvironment

# With more tasks, Spark spends more time on them than they do on the work.
BUCKETS_MAX: Final = 2_000


def map_large(
    context: SparkContext,
    environment: TaskEnvironment,
    counter: Counter,
    shared: Broadcast[LogJob],
    map_bytes: int,
    slots: int,
) -> tuple[RDD[Any], RDD[Any]]:
    """Return an RDD of `SegmentFound` (at least one per segment) and `Mask`, and the cached RDD below it.

    `counter` counts each finished segment and each finished bucket.
    """
    job = shared.value
    buckets = max(slots, min(BUCKETS_MAX, math.ceil(4 * job.index_bytes / map_bytes)))
    costs = [e.index_size_bytes for e in job.entries]
    portions = plan.distribute(costs, buckets)
    steps = partial(_split_task, environment, counter, shared, buckets)
    found = context.parallelize(portions, len(portions)).mapPartitions(steps).persist(StorageLevel.MEMORY_AND_DISK)
    matched = (
        found.filter(_is_candidate).partitionBy(buckets, _same).mapPartitions(partial(_match_task, counter, shared))
    )
    rest = found.filter(_is_rest).map(_unkeyed)
    portion_of = {position: number for number, portion in enumerate(portions) for position in portion}
    parts = context.union([matched, rest, context.parallelize(_listed(portions), len(portions))])
    by_portion = parts.map(partial(_to_portion, portion_of)).partitionBy(len(portions), _same)
    return by_portion.mapPartitions(partial(_decide_task, environment, counter, shared)), found


def _split_task(
    environment: TaskEnvironment, counter: Counter, shared: Any, buckets: int, portions: Iterable[list[int]]
) -> Iterator[tuple[int, Candidates | Superseded | SegmentFound]]:
    """Yield candidates under their bucket, and everything else under -1."""
    job: LogJob = shared.value
    with environment.open() as (store, _):
        for portion in portions:
            for position in portion:
                counted = CountedStore(store)
                try:
                    for item in split(job, position, counted, environment.retry_policy(), buckets):
                        yield (-1, item) if isinstance(item, Superseded) else item
                    error = ""
                except ThrottleLost:
                    raise
                except Exception as failure:  # noqa: BLE001 - one log's fault must not fail the others
                    error = reason(failure)
                    failed = SegmentFound(job.number, position, None, error, Traffic())
                    yield from ((bucket, failed) for bucket in range(buckets))
                counter.add(1)
                yield -1, SegmentFound(job.number, position, None, error, Traffic(counted.bytes_read))


def _match_task(
    counter: Counter, shared: Any, pairs: Iterable[tuple[int, Candidates | SegmentFound]]
) -> Iterator[Superseded | SegmentFound]:
    job: LogJob = shared.value
    parts = [part for _, part in pairs]
    failed = [part for part in parts if isinstance(part, SegmentFound)]
    if failed:
        yield from failed[:1]
        return
    try:
        yield from match(job, (part for part in parts if isinstance(part, Candidates)))
    except Exception as failure:  # noqa: BLE001 - one log's fault must not fail the others
        yield SegmentFound(job.number, 0, None, reason(failure), Traffic())
    counter.add(1)


def _decide_task(
    environment: TaskEnvironment,
    counter: Counter,
    shared: Any,
    parts: Iterable[tuple[int, Superseded | SegmentFound | int]],
) -> Iterator[SegmentFound | Mask]:
    job: LogJob = shared.value
    positions: list[int] = []
    superseded: dict[int, list[bytes]] = {}
    for _, part in parts:
        if isinstance(part, int):
            positions.append(part)
        elif isinstance(part, Superseded):
            superseded.setdefault(part.position, []).append(part.rows)
        else:
            yield part
    with environment.open() as (store, pacer):
        for position in positions:
            counter.add(1)
            counted = CountedStore(store)
            wait_s = pacer.wait_s if pacer else 0.0
            try:
                _, stats, bits = decide(
                    job, position, superseded.get(position, []), counted, environment.retry_policy()
                )
            except ThrottleLost:
                raise
            except Exception as failure:  # noqa: BLE001 - one log's fault must not fail the others
                yield SegmentFound(job.number, position, None, reason(failure), Traffic(counted.bytes_read))
                continue
            waited_s = (pacer.wait_s if pacer else 0.0) - wait_s
            yield SegmentFound(job.number, position, stats, "", Traffic(counted.bytes_read, 0, waited_s))
            if bits is not None:
                yield Mask((job.number, position), bits)


def _listed(portions: list[list[int]]) -> list[int]:
    return [position for portion in portions for position in portion]


def _is_candidate(pair: tuple[int, object]) -> bool:
    return pair[0] >= 0


def _is_rest(pair: tuple[int, object]) -> bool:
    return pair[0] < 0


def _unkeyed(pair: tuple[int, Any]) -> Any:
    return pair[1]


def _to_portion(portion_of: dict[int, int], part: Superseded | SegmentFound | int) -> tuple[int, Any]:
    return portion_of[part if isinstance(part, int) else part.position], part


def _same(key: int) -> int:
    return key
