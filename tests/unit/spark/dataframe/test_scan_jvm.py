"""Which paths the engine jvm gives to Spark, and what it makes of what Spark finds there. No Spark runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from keyfold.errors import SnapshotLost
from keyfold.read.log import Log
from keyfold.spark.dataframe import scan_jvm
from keyfold.spark.dataframe.paths import Root
from keyfold.spark.dataframe.read_log import at_one_moment
from keyfold.spark.dataframe.scan_jvm import JvmEngine
from keyfold.spark.dataframe.snapshot_pins import PartitionSnapshot, pin_log
from tests.support.logs import MadeLog, record

FOLDER = "s3a://bucket/topics/users/partition=0"
WARNING = "Spark's listing differs from the manifests; Spark asks for each object"


@dataclass
class FakeSpark:
    """A session whose listings have `objects`; `loads` are the paths that it was given."""

    objects: set[str] = field(default_factory=set)
    loads: list[list[str]] = field(default_factory=list)
    version: str = "4.3.0"

    @property
    def read(self) -> FakeReader:
        return FakeReader(self)


@dataclass
class FakeReader:
    """A `DataFrameReader`, and the `DataFrame` that it loads."""

    spark: FakeSpark
    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def option(self, name: str, value: str) -> FakeReader:
        if name == "pathGlobFilter":
            self.names = value.removeprefix("{").removesuffix("}").split(",")
        return self

    def options(self, **_: str) -> FakeReader:
        return self

    def format(self, _: object) -> FakeReader:
        return self

    schema = format

    def load(self, paths: list[str]) -> FakeReader:
        self.spark.loads.append(paths)
        in_folder = [
            o for o in self.spark.objects if o.rpartition("/")[0] in paths and o.rpartition("/")[2] in self.names
        ]
        self.files = in_folder + [path for path in paths if path in self.spark.objects]
        return self

    def select(self, *_: str) -> FakeReader:
        return self

    def inputFiles(self) -> list[str]:  # noqa: N802 - Spark's name
        return self.files


@pytest.fixture
def pin() -> PartitionSnapshot:
    made = MadeLog()
    for at in range(4):
        made.append([record(at, "a", "1")])
    return pin_log(Log(made.store, "topics", "users"))[0]


@pytest.fixture
def spark(pin: PartitionSnapshot) -> FakeSpark:
    return FakeSpark({f"{FOLDER}/{name}" for name in pin.manifest.object_names()})


def read(spark: FakeSpark, pin: PartitionSnapshot) -> Any:
    return JvmEngine(cast("SparkSession", spark), Root("s3a://bucket")).records([pin])


def paths(pin: PartitionSnapshot) -> list[str]:
    return [f"{FOLDER}/{entry.name}" for entry in pin.entries]


def test_the_folder_is_listed_and_has_the_pinned_objects(spark: FakeSpark, pin: PartitionSnapshot) -> None:
    one = pin.cut(1, 3)
    assert sorted(read(spark, one).inputFiles()) == paths(one)
    assert sorted(read(spark, pin).inputFiles()) == paths(pin)
    assert spark.loads == [[FOLDER], [FOLDER]]


def test_a_long_list_stays_a_list(spark: FakeSpark, pin: PartitionSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_jvm, "_NAMES_MAX", 3)
    read(spark, pin)
    read(spark, pin.cut(1, 4))
    assert spark.loads == [paths(pin), [FOLDER]]


def test_a_few_objects_of_a_large_folder_stay_a_list(
    spark: FakeSpark, pin: PartitionSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_jvm, "_SEGMENTS_PER_LISTING", 2)  # the folder takes two listings more
    read(spark, pin.cut(1, 4))
    read(spark, pin)
    assert spark.loads == [paths(pin.cut(1, 4)), [FOLDER]]


@pytest.mark.parametrize("count", [1, 3])
def test_an_object_that_spark_does_not_find_is_never_passed_over(
    spark: FakeSpark, pin: PartitionSnapshot, count: int
) -> None:
    """Spark checks that the paths of a list exist, and lists them later: what is deleted between is just not there."""
    spark.objects.remove(paths(pin)[0])
    pins: list[PartitionSnapshot] = []

    def pinned() -> tuple[PartitionSnapshot, ...]:
        pins.append(pin.cut(0, count))
        return (pins[-1],)

    with capture_logs() as events, pytest.raises(SnapshotLost, match=rf"users-0.*{pin.entries[0].name}.*is missing"):
        at_one_moment(pinned, lambda found: read(spark, found[0]))
    assert len(pins) == 3
    assert [(e["event"], e["cause"]) for e in events] == [(WARNING, "2 of 3 objects were found")] * (
        3 if count > 1 else 0
    )
