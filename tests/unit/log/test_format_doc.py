"""docs/format.md names every field, column and finding that there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyfold.log.index import ROWS, BlockTable
from keyfold.verify.findings import FindingKind
from keyfold_schemas import schema_text
from tests.support.cleaning import PLACE, load, memory_log, record
from tests.support.root import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "format.md"


def field_names(schema: Any) -> set[str]:
    """Names of all fields in a schema, nested ones too."""
    if isinstance(schema, list):
        return set().union(*map(field_names, schema))
    if not isinstance(schema, dict):
        return set()
    names = {field["name"] for field in schema.get("fields", ())}
    inner = [field["type"] for field in schema.get("fields", ())] + [schema.get("items"), schema.get("type")]
    return names.union(*map(field_names, inner))


def test_every_field_column_and_finding_is_described() -> None:
    told = set(re.findall(r"`([a-z0-9_.-]+)`", PAGE.read_text()))
    for name in ("record", "manifest"):
        assert field_names(json.loads(schema_text(name, 1))) <= told
    assert {*ROWS.names, *BlockTable.__slots__} <= told
    assert {kind.value for kind in FindingKind} <= told


@pytest.fixture
def segment(tmp_path: Path) -> str:
    """A segment of three records in the local file system."""
    store, _ = memory_log([record(0, "a", "1"), record(1, "b", None), record(2, None, "3")])
    path = tmp_path / load(store).segments[0].name
    path.write_bytes(store.get(PLACE.key(path.name)).data)
    return str(path)


def example(word: str) -> str:
    """The Python block of the page that names `word`."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if word in code]
    return str(found)


def run(code: str, **names: object) -> dict[str, Any]:
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - code of this page
    return names


def test_fastavro_reads_a_segment_as_documented(segment: str) -> None:
    found = run(example("fastavro"), path=segment)["records"]
    assert [(r["offset"], r["key"], r["value"]) for r in found] == [(0, b"a", b"1"), (1, b"b", None), (2, None, b"3")]


@pytest.mark.spark
def test_spark_reads_segments_as_documented(segment: str, spark: SparkSession) -> None:
    """With what PySpark comes with: no package is added for it."""
    frame = run(example("spark.read"), spark=spark, pinned_list=[segment])["frame"]
    rows = frame.orderBy("offset").select("offset", "key", "value").collect()
    assert [(r.offset, r.key, r.value) for r in rows] == [(0, b"a", b"1"), (1, b"b", None), (2, None, b"3")]
