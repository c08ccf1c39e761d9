"""docs/reading.md: its code runs as it stands, and what it says of types and errors is so."""

from __future__ import annotations

import contextlib
import re
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

import keyfold
import keyfold.store.location
from keyfold.log.arrow import RECORDS
from keyfold.store.memory import MemoryStore
from tests.support.logs import MadeLog, record
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "reading.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


class Soon(Event):
    """An event that is set while a follower waits. A thread that starts waits for such an event without a timeout."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return super().wait()
        self.set()
        return True


class OpenStore(MemoryStore):
    def close(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> MadeLog:
    store = OpenStore()
    made = MadeLog(store=store)
    at = 1_700_000_000_000
    made.append([record(o, f"k{o % 9}", f"value {o}", timestamp=at + o) for o in range(30)])
    made.append([record(o, f"k{o % 9}", None if o == 36 else f"value {o}", timestamp=at + o) for o in range(30, 40)])
    monkeypatch.setattr(keyfold.store.location, "open_store", lambda url: store)
    return made


def test_the_pages_code_runs_from_top_to_bottom(made: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Event", Soon)
    names: dict[str, Any] = {}
    for number, block in enumerate(BLOCKS):
        if "stop" in names:
            names["stop"].clear()
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)  # noqa: S102 - an example of this page
    assert len(names["cache"]) == 8
    assert names["found"].offset == 0
    assert names["table"].num_rows == names["sizes"] == names["rows"] == 40
    assert names["kept"]
    assert names["answer"].value == names["before"] == names["after"][b"k7"].value == b"value 34"
    assert set(names["start"]) == {0}


def test_the_page_names_all_columns_and_errors(made: MadeLog) -> None:
    told = PAGE.read_text()
    for name in RECORDS.names:
        assert f"`{name}`" in told
    assert RECORDS.field("timestamp").type == pa.timestamp("ms", "UTC")
    named = set(re.findall(r"`([A-Z][A-Za-z]+)`", told[told.index("## When it fails") :]))
    assert named <= set(keyfold.__all__)
    with contextlib.suppress(keyfold.OffsetOutOfRange):
        keyfold.open_log("s3://bucket/topics", "users").read(0, from_offset=41)
        pytest.fail("offset 41 is outside")
