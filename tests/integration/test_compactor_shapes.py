"""Logs of unusual shapes on Spark, mapped in one task each and in many, against a dict.

Logs are made in memory and copied, since a segment costs an append. One run cleans all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from keyfold.log.names import Place, Role, parse_name
from keyfold.runtime.clock import SystemClock
from keyfold.store.api import Create, ObjectInfo
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location, S3Store
from keyfold_compactor.decide.settings import Encoding
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.run import Run, RunSettings
from tests.support.cleaning import EAGER, Sink, load, read_all
from tests.support.moto import LocalS3Process
from tests.support.shapes import Batches, Expected, again, one_after_another, shapes

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]

SHAPES = shapes()
# A log that is mapped by many tasks costs a second by itself, so most shapes share one there.
SPLIT = {
    "one key": SHAPES["one key"],
    "one key in half of the records": SHAPES["one key in half of the records"],
    "all of them in one log": one_after_another(b for name, b in SHAPES.items() if name != "values of 20 MB"),
}
ENCODING = Encoding("zstandard", 1, 4096, part_bytes=6 << 20)


@pytest.fixture(scope="module")
def location() -> Iterator[S3Location]:
    with LocalS3Process() as server:
        server.create_bucket("shapes")
        yield server.location("shapes")


@pytest.fixture
def store(location: S3Location) -> Iterator[S3Store]:
    opened = location.open()
    yield opened
    opened.close()


def same(executor: Executor, _due_bytes: int) -> Executor:
    return executor


@pytest.mark.full
def test_two_passes_leave_the_dicts_records_if_one_task_maps_a_log(
    spark: Any, location: S3Location, store: S3Store
) -> None:
    places = {name: Place("whole", "users", number) for number, name in enumerate(SHAPES)}
    expected = fill(store, {places[name]: batches for name, batches in SHAPES.items()})
    for seed in (1, 2):
        clean(spark, location, store, list(places.values()), seed, map_bytes=10**9)
        for name, place in places.items():
            assert read_all(store, place=place) == expected[place].clean(), name
    assert list(store.list_uploads("")) == []
    place = places["values of 20 MB"]
    largest = max(load(store, place).segments, key=lambda e: e.size_bytes)
    assert largest.size_bytes > 20 << 20
    assert getattr(parse_name(largest.name), "role", None) is Role.COMPACTOR
    assert store.head(place.key(largest.name)).etag.endswith('-4"'), "it went up in parts of 6 MiB"


@pytest.mark.sharded
@pytest.mark.parametrize("name", SPLIT)
def test_two_passes_leave_the_dicts_records_if_many_tasks_map_a_log(
    spark: Any, location: S3Location, store: S3Store, name: str
) -> None:
    place = Place("split", "users", list(SPLIT).index(name))
    expected = fill(store, {place: SPLIT[name]})
    for seed in (1, 2):
        index_bytes = sum(e.index_size_bytes for e in load(store, place).segments)
        clean(spark, location, store, [place], seed, map_bytes=index_bytes // 2)
        assert read_all(store, place=place) == expected[place].clean()


def clean(
    spark: Any, location: S3Location, store: S3Store, places: Sequence[Place], seed: int, *, map_bytes: int
) -> None:
    """One run. Logs with more index bytes than `map_bytes` are mapped by many tasks."""
    from keyfold_compactor.spark.executor import SparkExecutor
    from keyfold_compactor.spark.tasks import TaskEnvironment

    executor = SparkExecutor(spark, TaskEnvironment(location, None, 20.0), map_bytes=map_bytes)
    settings = RunSettings(settings_of=lambda *_: replace(EAGER, encoding=ENCODING))
    run = Run(store, settings, partial(same, executor), clock=SystemClock(), random=Random(seed))
    report = run.clean(places)
    assert report.exit_code == 0, report.document()


def fill(store: S3Store, logs: Mapping[Place, Batches]) -> dict[Place, Expected]:
    """Make logs, each written to once more at its end, and what is expected of them."""
    memory = MemoryStore()
    expected = {place: Expected() for place in logs}
    for place, batches in logs.items():
        sink = Sink.open(memory, place, clock=SystemClock(), seed=place.partition)
        for batch in [*batches, again(batches)]:
            sink.append(batch, codec="zstandard", block_bytes=65_536)
            expected[place].append(batch)

    def copy(info: ObjectInfo) -> None:
        store.put(info.key, memory.get(info.key).data, Create())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, memory.list("")))
    return expected
