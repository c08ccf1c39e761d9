"""The order and the grouping of the files of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.order import uses_spark


@pytest.mark.parametrize(
    ("text", "is_used"),
    [
        ("def test_a(spark: SparkSession, log: FolderLog) -> None: ...", True),
        ('@pytest.mark.usefixtures("spark")\ndef test_a() -> None: ...', True),
        ("def test_a(\n    location: S3Location, spark: SparkSession\n) -> None: ...", True),
        ("@pytest.mark.spark\ndef test_a(tmp_path: Path) -> None: ...", False),
        ('config = {"spark.master": "local[2]"}', False),
    ],
)
def test_files_with_the_session_spark_are_found(tmp_path: Path, text: str, is_used: bool) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(text)
    assert uses_spark(path) is is_used
