"""Handling of a dead Spark depends on which process started it; precedence of settings. No JVM is started here."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from keyfold.errors import ConfigError
from keyfold.runtime.clock import ManualClock
from keyfold.store.s3 import S3Location
from keyfold_compactor.job import Job, RunSelection
from keyfold_compactor.options import CompactOptions
from keyfold_compactor.report.report import RunReport
from keyfold_compactor.spark.keeper import SparkKeeper, SparkLost
from tests.support.cleaning import memory_log, record

pytest.importorskip("pyspark")
pytestmark = pytest.mark.any_spark
OPTIONS = {"s3.bucket.name": "b", "store.url": "http://127.0.0.1:9", "s3.region": "us-east-1"}


class FakeContext:
    defaultParallelism = 1  # noqa: N815 - Spark's name

    def accumulator(self, value: int) -> SimpleNamespace:
        return SimpleNamespace(value=value)


class FakeSpark:
    """A fake pyspark: it counts starts and stops, and dies on request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_given: bool = False) -> None:
        from keyfold_compactor.spark import session as module

        self.started: list[dict[str, str]] = []
        self.stopped = 0
        self.alive = True
        monkeypatch.setattr(module, "spark_session", self.spark_session)
        monkeypatch.setattr(module, "is_alive", lambda _: self.alive)
        monkeypatch.setattr(module, "is_given", lambda: is_given)

    @contextlib.contextmanager
    def spark_session(self, _name: str, settings: Mapping[str, str], _say: object) -> Iterator[Any]:
        self.started.append(dict(settings))
        self.alive = True
        yield SimpleNamespace(sparkContext=FakeContext())
        self.stopped += 1


def test_spark_is_started_once_and_stopped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark(monkeypatch)
    with SparkKeeper(CompactOptions.parse({**OPTIONS, "spark.executor.memory": "1g"})) as keeper:
        keeper.check_alive()
        assert spark.started == []
        assert keeper(1) is keeper(1)
        assert (spark.started, spark.stopped) == ([{"spark.executor.memory": "1g"}], 0)
    assert spark.stopped == 1


def test_a_dead_spark_started_by_the_process_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark(monkeypatch)
    with SparkKeeper(CompactOptions.parse(OPTIONS)) as keeper:
        first = keeper(1)
        spark.alive = False
        keeper.check_alive()
        assert (len(spark.started), spark.stopped) == (1, 1)
        assert keeper(1) is not first
        spark.alive = False
        keeper(1)
        assert (len(spark.started), spark.stopped) == (3, 2)
    assert spark.stopped == 3


def test_a_dead_given_spark_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark(monkeypatch, is_given=True)
    with SparkKeeper(CompactOptions.parse(OPTIONS)) as keeper:
        keeper(1)
        spark.alive = False
        for call in (keeper.check_alive, lambda: keeper(1)):
            with pytest.raises(SparkLost, match="has ended; restart the compactor the way it was started"):
                call()
    assert len(spark.started) == 1


def test_the_loop_ends_immediately_when_a_given_spark_died(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = memory_log([record(0, "a", "1"), record(1, "a", "2")])
    spark = FakeSpark(monkeypatch, is_given=True)
    options = CompactOptions.parse({**OPTIONS, "log.cleaner.backoff.ms": "0", "min.cleanable.dirty.ratio": "0"})
    reports: list[RunReport] = []
    with SparkKeeper(options) as keeper:
        keeper(1)
        spark.alive = False
        job = Job(
            options,
            RunSelection(),
            store,
            keeper,
            clock=ManualClock(),
            random=Random(1),
            check_executor=keeper.check_alive,
        )
        with pytest.raises(SparkLost):
            job.loop(threading.Event(), reports.append)
    assert len(reports) == 1, "what the run did is still told"
    assert "has ended" in reports[0].executor_error


def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = FakeSpark(monkeypatch)
    options = CompactOptions.parse({**OPTIONS, "store.url": "not a url"})
    with SparkKeeper(options) as keeper:
        for _ in range(2):
            with pytest.raises(ConfigError):
                keeper(1)
    assert len(spark.started) == 2


def test_tasks_use_the_drivers_location_and_get_no_keys_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-environment")
    found = S3Location("b").resolved()
    assert (found.endpoint_url, found.region) == ("http://127.0.0.1:9", "eu-west-1")
    assert (found.access_key_id, found.secret_access_key, found.session_token) == (None, None, None)


@pytest.mark.parametrize(
    ("master", "pairs", "expected"),
    [
        (None, (), {}),
        ("local[1]", (), {"spark.master": "local[1]"}),
        ("local[1]", ("spark.master=local[2]",), {"spark.master": "local[1]"}),
        (None, ("spark.a=b=c", "spark.d="), {"spark.a": "b=c", "spark.d": ""}),
    ],
)
def test_the_command_line_sets_sparks_configuration(
    master: str | None, pairs: tuple[str, ...], expected: dict[str, str]
) -> None:
    from keyfold_compactor.cli import _spark_values

    assert _spark_values(master, pairs) == expected


@pytest.mark.parametrize("pair", ["executor.memory=secret", "spark.executor.memory"])
def test_an_unknown_spark_setting_is_refused_without_showing_its_value(pair: str) -> None:
    import click

    from keyfold_compactor.cli import _spark_values

    with pytest.raises(click.BadParameter) as caught:
        _spark_values(None, (pair,))
    assert "secret" not in str(caught.value)


def test_the_zip_has_only_the_code_and_the_commands(tmp_path: Path) -> None:
    import zipfile

    import keyfold_compactor
    from keyfold_compactor.spark.code_zip import is_shipped, write_for_submit

    script, code = write_for_submit(tmp_path / "dist")
    with zipfile.ZipFile(code) as archive:
        names = archive.namelist()
    packages = {"keyfold", "keyfold_compactor", "keyfold_replicator", "keyfold_schemas"}
    assert {name.split("/")[0].split("-")[0] for name in names} == packages
    assert {"keyfold/cli/app.py", "keyfold_compactor/spark/tasks.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    assert [name for name in names if name.endswith("entry_points.txt")]
    assert code.name.endswith("-spark.zip")
    assert script.read_text() == Path(str(keyfold_compactor.__file__)).with_name("__main__.py").read_text()
    assert not is_shipped()


def test_the_zips_compactor_finds_the_zips_replicator(tmp_path: Path) -> None:
    from keyfold_compactor.spark.code_zip import write_code_zip

    code = write_code_zip(tmp_path / "keyfold.zip")
    program = (
        f"import sys; sys.path.insert(0, {str(code)!r})\n"
        "from keyfold.replicas.after_run import load_open_rounds\n"
        "print(sys.modules[load_open_rounds().__module__].__file__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == f"{code}/keyfold_replicator/cli/after_run.py", done.stderr


def test_a_runner_that_calls_a_function_sees_an_exit_only_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from keyfold_compactor.__main__ import task

    monkeypatch.setattr("sys.argv", ["keyfold-compact", "--help"])
    task()
    assert "keyfold compact" in capsys.readouterr().out
    config = tmp_path / "c.json"
    config.write_text("{}")
    monkeypatch.setattr("sys.argv", ["keyfold-compact", "run", str(config), "--once"])
    with pytest.raises(SystemExit) as caught:
        task()
    assert caught.value.code == 2
    assert "s3.bucket.name" in capsys.readouterr().err
