"""`latest_state` on a real Spark: what the Python reader takes for it, and no value ever shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from keyfold.log.record import Record
from keyfold.spark.dataframe import scan_jvm
from keyfold.spark.dataframe.snapshot_pins import pin_log
from tests.support.spark_logs import FolderLog, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.any_spark,
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),  # Spark 3.5 asks them
]


def latest(spark: SparkSession, log: FolderLog, **wanted: Any) -> DataFrame:
    from keyfold.spark import latest_state

    return latest_state(spark, log.url, log.topic, **{**log.where, **wanted})


def test_the_state_equals_the_python_readers_for_any_first_dirty_offset(
    spark: SparkSession, log: FolderLog, engine: str
) -> None:
    log.fill(0)
    log.fill(3, segments=2)
    log.made(1)
    assert rows(latest(spark, log, engine=engine)) == log.latest()  # all of it dirty
    log.clean()
    assert rows(latest(spark, log, engine=engine)) == log.latest()  # all of it clean
    log.fill(0, segments=2)
    log.fill(7, segments=1)
    assert rows(latest(spark, log, engine=engine)) == log.latest()  # clean tails, dirty heads, and one without a tail
    assert rows(latest(spark, log, engine=engine, partitions=[3, 7])) == [r for r in log.latest() if r[0] in {3, 7}]


def test_a_large_head_is_joined_instead_of_broadcast(spark: SparkSession, log: FolderLog, jvm: str) -> None:
    log.fill(0)
    log.clean()
    log.fill(0, segments=2)
    assert rows(latest(spark, log, engine=jvm, broadcast_head_records=0)) == log.latest()


def test_offsets_far_apart_and_high_partitions_do_not_collide(spark: SparkSession, log: FolderLog, jvm: str) -> None:
    for partition in (0, 999):
        made = log.made(partition)
        far = 2**46
        made.append([Record(at, 1, "CreateTime", b"%d" % (at % 7), b"v%d" % at) for at in (*range(130), far, far + 64)])
    log.clean()
    for partition in (0, 999):
        made = log.made(partition)
        at = made.sink.refresh().next_offset
        made.append([Record(at, 1, "CreateTime", b"1", None), Record(at + 1, 1, "CreateTime", b"2", b"new")])
    assert rows(latest(spark, log, engine=jvm)) == log.latest()


def test_the_first_dirty_offset_may_lie_inside_a_segment(
    spark: SparkSession, log: FolderLog, jvm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"%d" % at for at in range(20)] + [b"%d" % (at * 3 % 25) for at in range(40)]
    values = [None if at % 7 == 3 else b"v%d" % at for at in range(60)]
    made = log.made(0)
    made.append([Record(at, 1, "CreateTime", keys[at], values[at]) for at in range(30)])
    made.append([Record(at, 1, "CreateTime", keys[at], values[at]) for at in range(30, 60)])
    module = import_module(
        "keyfold.spark.dataframe.latest_state"
    )  # the package's own name `latest_state` is the function

    def pinned(*given: Any) -> tuple[Any, ...]:
        # Up to offset 20 no key comes twice, so this is a version that a compactor might have left.
        pins = pin_log(*given)
        return tuple(replace(pin, manifest=replace(pin.manifest, first_dirty_offset=20)) for pin in pins)

    monkeypatch.setattr(module, "pin_log", pinned)
    assert rows(latest(spark, log, engine=jvm)) == log.latest()


@pytest.mark.parametrize("names_max", [0, 2_000])
def test_folders_and_lists_give_the_same_state(
    spark: SparkSession, tmp_path: Path, jvm: str, names_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_jvm, "_NAMES_MAX", names_max)
    log = FolderLog(tmp_path, topics_dir="_raw/env=prod/a[b]*{c,d}", topic="_schemas.v1")
    for partition in (0, 3):
        log.fill(partition)
    log.clean()  # what it replaced is still there
    for partition in (0, 3):
        log.fill(partition, segments=2)
    with capture_logs() as events:
        assert rows(latest(spark, log, engine=jvm)) == log.latest()
    assert events == []


def test_deleted_keys_come_back_only_when_they_are_written_again(spark: SparkSession, log: FolderLog, jvm: str) -> None:
    made = log.made(0)
    made.append([Record(0, 1, "CreateTime", b"a", b"1"), Record(1, 1, "CreateTime", b"b", b"1")])
    made.append([Record(2, 1, "CreateTime", b"a", None), Record(3, 1, "CreateTime", b"c", None)])
    log.clean()
    made.append([Record(4, 1, "CreateTime", b"b", None), Record(5, 1, "CreateTime", b"a", b"2")])
    made.append([Record(6, 1, "CreateTime", None, b"keyless"), Record(7, 1, "CreateTime", b"", b"")])
    found = {(r["key"], bytes(r["value"])) for r in latest(spark, log, engine=jvm, key_format="string").collect()}
    assert found == {("a", b"2"), ("", b"")}


def test_no_value_is_shuffled(spark: SparkSession, log: FolderLog, jvm: str) -> None:
    log.fill(0)
    log.clean()
    log.fill(0, segments=2)
    frame = latest(spark, log, engine=jvm)
    moved = {column for node in exchanges(frame) for column in node}
    assert moved <= {"partition", "key", "offset", "is_tombstone", "both", "max", "word", "bits", "bit_or"}
    assert {"key", "word"} <= moved
    frame.collect()
    text = frame._jdf.queryExecution().executedPlan().toString()
    assert text.count("ReusedExchange") >= 1, text  # the head's index is aggregated once
    assert "Sort " not in text.partition("Initial Plan")[0], text


def exchanges(frame: DataFrame) -> Iterator[list[str]]:
    """The columns that each shuffle and each broadcast of a plan moves."""
    plan = frame._jdf.queryExecution().executedPlan()
    waiting = [plan.initialPlan() if "AdaptiveSparkPlan" in plan.nodeName() else plan]
    while waiting:
        node = waiting.pop()
        children = node.children()
        waiting += [children.apply(at) for at in range(children.size())]
        if "Exchange" in node.nodeName():
            output = node.output()
            yield [output.apply(at).name() for at in range(output.size())]
