"""docs/read-with.md: its code runs as it stands and returns the latest state, and its table of codecs is true."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import duckdb_extension_avro
import fastavro
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from keyfold.log.names import Place
from keyfold.runtime.clock import SystemClock
from keyfold.store.memory import MemoryStore
from keyfold.store.s3 import S3Location
from tests.support.logs import MadeLog, record
from tests.support.moto import LocalS3Process
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "read-with.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
LATEST = {b"k0": b"value 9", b"k1": b"value 10", b"k3": b"value 11"}
"""Of the log below: k2 is deleted, and its older value must not come back."""
CODECS = ("null", "deflate", "zstandard", "snappy")


@pytest.fixture
def url(location: S3Location, local_s3: LocalS3Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A log of three segments with a tombstone, a keyless record, and a replaced segment that is not deleted yet."""
    for name, value in local_s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))  # where DuckDB keeps extensions
    with closing(location.open()) as store:
        place = Place("topics", "users", 0)
        made = MadeLog(store=store, place=place, clock=SystemClock(), random=Random(7), codec="deflate")
        made.append([record(o, f"k{o % 4}", f"value {o}") for o in range(8)])
        made.compact()
        later = [record(o, f"k{k}", f"value {o}") for o, k in ((9, 0), (10, 1), (11, 3))]
        made.append([record(8, None, "keyless"), *later])
        made.append([record(12, "k2", None)])
    return f"s3://{location.bucket}"


def _chdb() -> Any:
    """ClickHouse, whose import takes a second that only two tests need."""
    import chdb  # which has no types

    return chdb


def run_page(url: str, folder: Path, *, is_spark: bool, **names: Any) -> tuple[dict[str, Any], list[Any]]:
    """Run the blocks of the page, with or without those for Spark; return the names, and each `state`."""
    names["folder"] = folder
    states: list[Any] = []
    for number, block in enumerate(BLOCKS):
        code = block.replace("s3://bucket", url).replace('f"bucket/', f'f"{url.removeprefix("s3://")}/')
        if ("spark." in code) <= is_spark:
            exec(compile(code, f"{PAGE.name}, block {number}", "exec"), names)  # noqa: S102 - an example of this page
            if "state" in names:
                states.append(names.pop("state"))
    return names, states


def duckdb_extension() -> str:
    """Return the file that INSTALL downloads."""
    (path,) = Path(duckdb_extension_avro.__file__).parent.rglob("avro.duckdb_extension")
    return str(path)


def test_the_code_returns_the_latest_state(url: str, tmp_path: Path) -> None:
    duckdb.connect().install_extension(duckdb_extension())
    names, states = run_page(url, tmp_path, is_spark=False)
    assert names["users"] == LATEST
    assert [as_dict(state) for state in states] == [LATEST] * 4
    assert len(names["paths"]) == 3
    assert len(list((tmp_path / url.removeprefix("s3://")).rglob("*.avro"))) == 3


@pytest.mark.spark
def test_the_code_for_spark_returns_the_latest_state(url: str, tmp_path: Path, spark: Any) -> None:
    duckdb.connect().install_extension(duckdb_extension())
    _, states = run_page(url, tmp_path, is_spark=True, spark=spark)
    rows = next(state for state in states if hasattr(state, "collect") and not isinstance(state, pl.DataFrame))
    assert {bytes(row.key): bytes(row.value) for row in rows.collect()} == LATEST


def as_dict(state: Any) -> dict[bytes, bytes]:
    """Return the keys and values of a result of any tool."""
    if isinstance(state, pd.Series):
        pairs: Iterator[tuple[Any, ...]] = iter(state.items())
    elif isinstance(state, pl.DataFrame):
        pairs = state.select("key", "value").iter_rows()
    elif isinstance(state, pa.Table):
        pairs = zip(state["key"].to_pylist(), state["value"].to_pylist(), strict=True)
    else:
        pairs = (row[:2] for row in state)
    return {to_bytes(key): to_bytes(value) for key, value in pairs}


def to_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def segment(folder: Path, codec: str) -> Path:
    """Write a segment of forty records."""
    store = MemoryStore()
    made = MadeLog(store=store, place=Place("topics", "users", 0), clock=SystemClock(), random=Random(7), codec=codec)
    made.append([record(o, f"k{o % 4}", f"value {o}" * 50) for o in range(40)])
    (found,) = (info for info in store.list("topics/users/") if info.key.endswith(".avro") and "_m" not in info.key)
    path = folder / f"{codec}.avro"
    path.write_bytes(store.get(found.key).data)
    return path


def counted_by_fastavro(path: Path) -> int:
    with path.open("rb") as file:
        return len(list(fastavro.reader(file)))


def counted_by_duckdb(path: Path) -> int:
    connection = duckdb.connect()
    connection.load_extension(duckdb_extension())
    found = connection.execute("SELECT count(*) FROM read_avro($1)", [str(path)]).fetchone()
    assert found is not None
    return int(found[0])


def counted_by_clickhouse(path: Path) -> int:
    clickhouse = _chdb()
    return int(str(clickhouse.query(f"SELECT count(value) FROM file('{path}', Avro)")))  # noqa: S608 - a test's path


TOOLS: dict[str, Callable[[Path], int]] = {
    "fastavro": counted_by_fastavro,
    "Polars": lambda path: len(pl.read_avro(path)),
    "DuckDB": counted_by_duckdb,
    "ClickHouse": counted_by_clickhouse,
}


def table_of_codecs() -> dict[str, dict[str, str]]:
    rows = re.findall(r"^\| (\w+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    cells = {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}
    return {name: dict(zip(CODECS, row, strict=True)) for name, row in cells.items() if name in {*TOOLS, "Spark"}}


@pytest.mark.parametrize("codec", CODECS)
def test_the_table_of_codecs_is_true(codec: str, tmp_path: Path) -> None:
    path = segment(tmp_path, codec)
    for name, count in TOOLS.items():
        told = table_of_codecs()[name][codec]
        if told == "yes":
            assert count(path) == 40, name
        elif told == "no":  # what needs another package depends on which are installed
            with pytest.raises((ValueError, pl.exceptions.ComputeError, duckdb.Error)):
                count(path)


@pytest.mark.spark
def test_the_table_of_codecs_is_true_of_spark(tmp_path: Path, spark: Any) -> None:
    avro = "org.apache.spark.sql.avro.AvroFileFormat"
    for codec in CODECS:
        assert table_of_codecs()["Spark"][codec] == "yes"
        assert spark.read.format(avro).load(str(segment(tmp_path, codec))).count() == 40


def test_aggregates_that_ignore_nulls_bring_deleted_keys_back() -> None:
    """The page warns of them."""
    assert duckdb.sql("SELECT arg_max(v, o) FROM (VALUES ('old', 1), (NULL, 2)) t(v, o)").fetchall() == [("old",)]
    clickhouse = _chdb()
    found = clickhouse.query("SELECT argMax(v, o) FROM values('v Nullable(String), o Int64', ('old', 1), (NULL, 2))")
    assert str(found).strip() == '"old"'
