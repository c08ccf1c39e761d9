"""Syncs of a table beside a writer and a cleaner, in their short form (`tests/soak` has the long one)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lake import Engines
from tests.support.moto import LocalS3Process
from tests.support.table_storm import storm


@pytest.mark.full
def test_a_table_is_right_after_each_sync_of_a_storm(
    local_s3: LocalS3Process, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines = Engines(local_s3, monkeypatch, tmp_path)
    deaths = storm(local_s3.location(bucket), syncs=3, seed=1, read=engines.duckdb)
    print(f"{deaths} deaths")
