"""The examples of docs/converters.md work, and its lists match the code."""

from __future__ import annotations

import re

import pytest

from keyfold.log import catalog
from keyfold.log.names import Place, schema_key
from keyfold.log.record import CREATE_TIME, Record, RecordColumns
from keyfold.read.log import Log
from keyfold.store.memory import MemoryStore
from keyfold_sink.config.registry_settings import AVRO_KEYS
from tests.support.avro_cases import framed
from tests.support.avro_checks import ALICE, USER, judged, opened
from tests.support.columns import batch
from tests.support.logs import MadeLog
from tests.support.root import ROOT
from tests.support.schema_registry import StubRegistry

PAGE = (ROOT / "docs" / "converters.md").read_text()


PLACE = Place("logs", "users", 0)


def record_of(columns: RecordColumns, at: int) -> Record:
    return Record(columns.offsets[at], 0, CREATE_TIME, b"k", columns.values[at])


def test_every_cause_is_explained() -> None:
    code = "".join(path.read_text() for path in (ROOT / "sink/keyfold_sink/validate/convert").glob("*.py"))
    tables = re.findall(r"\| cause \| what it is \|\n(.*?)\n\n", PAGE, re.DOTALL)
    explained = {cause for table in tables for cause in re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)}
    given = set(
        re.findall(r'(?:ColumnFailure\(index, |RefusedSchema\(|NotFramed\(\s*|        return )"([a-zA-Z -]+)", ', code)
    )
    assert given - {"wrong size", "not UTF-8"} == explained


def test_every_setting_on_the_page_exists() -> None:
    table = PAGE[PAGE.index("| setting | meaning |") : PAGE.index("### The kept schemas")]
    first = "".join(line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|"))
    for name in re.findall(r"`([a-z.]+)`", first):
        own = name if name == "schema.registry.url" else name.removeprefix("schema.registry.").removeprefix(".")
        assert own in AVRO_KEYS, name


def test_the_example_reads_a_log_with_only_the_archived_schemas(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    with StubRegistry(first_id=300) as registry, opened(registry.url, store=store) as checks:
        number = registry.register("users-value", USER)
        columns = batch([framed(number, USER, ALICE), None])
        assert judged(checks, columns) == []
    MadeLog(store, PLACE).append([record_of(columns, n) for n in range(2)])
    monkeypatch.setattr("keyfold.read.log.open_log", lambda _url, topic: Log(store, "logs", topic))
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    exec(compile(example[1], "docs/converters.md", "exec"), {})  # noqa: S102 - an example of this page
    assert capsys.readouterr().out == "0 {'id': 1, 'mail': 'alice@example.org'}\n"


def test_the_schema_archive_is_no_topic() -> None:
    store = MemoryStore()
    with StubRegistry() as registry, opened(registry.url, store=store) as checks:
        columns = batch([framed(registry.register("users-value", USER), USER, ALICE)])
        assert judged(checks, columns) == []
    MadeLog(store, PLACE).append([record_of(columns, 0)])
    assert [info.key for info in store.list("logs/_schemas/")] == [schema_key("logs", 1)]
    assert list(catalog.topics(store, "logs")) == ["users"]
