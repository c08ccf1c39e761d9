"""Which engine does the work of a run, and when Spark is started or asked for."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, Self

import pytest

from keyfold.errors import ConfigError, ExtraMissing
from keyfold.runtime.clock import ManualClock
from keyfold_compactor.decide.batching import work_bytes
from keyfold_compactor.engine import (
    LOCAL_MAX_BYTES,
    AutoEngine,
    CompactorEngine,
    LocalEngine,
    check_engine,
    open_engine,
)
from keyfold_compactor.execute.executor import Executor
from keyfold_compactor.execute.local import LocalExecutor
from keyfold_compactor.execute.run import Run, RunSettings
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.progress import NoProgress
from keyfold_compactor.spark import versions
from keyfold_compactor.spark.keeper import SparkKeeper
from tests.support.cleaning import EAGER, PLACE, memory_log, record, retry_policy


class NamedEngine:
    """An engine that records what is asked of it; its executor is its name."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    def __enter__(self) -> Self:
        self.calls.append(f"enter {self.name}")
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(f"exit {self.name}")

    def __call__(self, due_bytes: int) -> Any:
        self.calls.append(f"{self.name} {due_bytes}")
        return SimpleNamespace(name=self.name)

    def check_alive(self) -> None:
        self.calls.append(f"check {self.name}")


def opened(**config: str) -> CompactorEngine:
    options = CompactOptions.parse({"s3.bucket.name": "b", **{k.replace("_", "."): v for k, v in config.items()}})
    return open_engine(options, ManualClock(), progress=NoProgress(), say=lambda _: None)


def checked(engine: str) -> None:
    check_engine(CompactOptions.parse({"s3.bucket.name": "b", "compactor.engine": engine}))


@pytest.fixture(autouse=True)
def _no_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_a_small_run_is_done_in_this_process_and_a_larger_one_on_spark() -> None:
    calls: list[str] = []
    with AutoEngine(NamedEngine("local", calls), NamedEngine("spark", calls)) as engine:
        small, large = engine(LOCAL_MAX_BYTES), engine(LOCAL_MAX_BYTES + 1)
        again = engine(1)
        engine.check_alive()
    names = [each.name for each in (small, large, again)]  # type: ignore[attr-defined]  # a name in place of an executor
    assert names == ["local", "spark", "local"]
    assert calls[-3:] == ["check spark", "exit spark", "exit local"]


def test_a_run_asks_for_an_executor_by_all_the_work_that_is_due() -> None:
    clock = ManualClock()
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")], clock=clock)
    asked: list[int] = []

    def executor(due_bytes: int) -> Executor:
        asked.append(due_bytes)
        return LocalExecutor(store, retry_policy(clock, Random(1)))

    run = Run(store, RunSettings(settings_of=lambda *_: EAGER), executor, clock=clock, random=Random(1))
    (review,) = run.review([PLACE])
    report = run.clean([PLACE])
    assert report.exit_code == 0
    assert asked == [work_bytes(review.size_bytes)]


def test_the_default_chooses_by_the_work() -> None:
    assert isinstance(opened(), AutoEngine)


@pytest.mark.parametrize(("engine", "kind"), [("local", LocalEngine), ("spark", SparkKeeper), ("auto", AutoEngine)])
def test_the_configuration_chooses(engine: str, kind: type[object]) -> None:
    assert isinstance(opened(compactor_engine=engine), kind)


def test_without_pyspark_this_process_does_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "found_pyspark", lambda: None)
    checked("auto")
    assert isinstance(opened(), LocalEngine)


def test_under_spark_submit_spark_does_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert isinstance(opened(), SparkKeeper)
    assert isinstance(opened(compactor_engine="local"), LocalEngine)


def test_a_pyspark_that_cannot_be_used_is_refused_before_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "found_pyspark", lambda: "2.4.8")
    checked("local")
    for engine in ("auto", "spark"):
        with pytest.raises(ConfigError, match=r"2\.4\.8"):
            checked(engine)


def test_spark_that_is_asked_for_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "found_pyspark", lambda: None)
    with pytest.raises(ExtraMissing):
        checked("spark")


def test_a_pass_within_a_byte_rate_reads_nothing_between_blocks() -> None:
    config = {"s3.bucket.name": "b"}
    free = CompactOptions.parse(config)
    paced = CompactOptions.parse({**config, "log.cleaner.io.max.bytes.per.second": "1000000"})
    assert [given.settings_of("users", {}).encoding.gap_bytes for given in (free, paced)] == [None, 0]
