"""A small log, and places to export it to: each test with them runs with a bucket and with a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfold.store.memory import MemoryStore
from tests.support.exports import Bucket, ExportPlace, Folder, MakePlace
from tests.support.logs import MadeLog, records


@pytest.fixture(params=["bucket", "folder"])
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    kept = MemoryStore("lake")
    if request.param == "bucket":
        return lambda run="0000abcd": Bucket(run, kept)
    return lambda run="0000abcd": Folder(tmp_path / "out", run)


@pytest.fixture
def place(make_place: MakePlace) -> ExportPlace:
    return make_place()


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=1 a=2 =x"))
    made.append(records("c=1 b= _ a=3", 4))
    return made
