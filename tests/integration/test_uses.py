"""The pages of docs/uses run as they are written: files are written, blocks of commands run in order, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kafka import KafkaBroker
from tests.support.moto import LocalS3Process

PAGES = Path(__file__).parents[2] / "docs" / "uses"
BLOCK = re.compile(r"^```(?P<kind>\w*)(?: file=(?P<file>\S+))?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
WRITES = re.compile(r"^TOPIC=(\S+) keyfold sink run", re.MULTILINE)
LINK = re.compile(r"\]\((?P<path>[^)#:]+)(?P<anchor>#[^)]*)?\)")


class Reader:
    """A user who follows the pages."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self.said: list[str] = []
        self.promised: list[str] = []

    def follow(self, page: Path, before: str = "") -> None:
        """Do all of a page, or all before a heading. `promised` are its blocks of output."""
        text = page.read_text()
        if before:
            text, heading, _ = text.partition(f"\n## {before}\n")
            assert heading, f"{page.name} has no heading {before!r}"
        for block in BLOCK.finditer(text):
            if block["file"]:
                (self._folder / block["file"]).write_text(block["text"])
            elif block["kind"] == "sh":
                self.said.append(self._run(block["text"]))
            else:
                self.promised.append(block["text"])

    def _run(self, text: str) -> str:
        answer = subprocess.run(
            ["bash", "-euc", text],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,  # against a hang; a machine that does other things takes its time
        )
        seen = "".join(f"{file.name}:\n{file.read_text()}" for file in self._folder.glob("*.txt"))
        assert answer.returncode == 0, f"{text}\n{answer.stdout}{answer.stderr}{seen}"
        return answer.stdout


@contextmanager
def own_s3() -> Iterator[LocalS3Process]:
    """One of its own: the bucket's name is in the pages."""
    with LocalS3Process() as running:
        running.create_bucket("keyfold-demo")
        yield running


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3Process]:
    with own_s3() as running:
        yield running


@pytest.fixture
def reader(broker: KafkaBroker, s3: LocalS3Process, tmp_path: Path) -> Reader:
    return reader_of(broker, s3, tmp_path)


def reader_of(broker: KafkaBroker, s3: LocalS3Process, tmp_path: Path) -> Reader:
    environment = {
        **os.environ,
        **s3.environment,
        "BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }
    found = Reader(tmp_path, environment)
    found.follow(PAGES / "README.md")
    return found


def a_cache_is_loaded_and_kept_current(reader: Reader) -> None:
    reader.follow(PAGES / "cache.md")
    assert reader.said[-1] == reader.promised[-1]


def a_search_index_goes_on_where_it_was_killed(reader: Reader) -> None:
    reader.follow(PAGES / "search-index.md", before="With Spark")
    check_search_index(reader, *reader.said[-2:])


def check_search_index(reader: Reader, first: str, second: str) -> None:
    assert first == "[('p1', 'green tea'), ('p3', 'tea pot')]\n"
    assert second == reader.promised[-1]


def a_search_index_and_a_stream_go_on_where_they_ended(reader: Reader) -> None:
    reader.follow(PAGES / "search-index.md")
    first, second, spark = reader.said[-3:]
    check_search_index(reader, first, second)
    batches = [line for line in spark.splitlines() if line.startswith("batch")]
    assert batches == [
        "batch 0 [('p2', 'white tea'), ('p3', 'tea pot')]",
        "batch 1 [('p2', 'white tea'), ('p3', 'coffee pot')]",
    ]


def balances_are_computed_from_events_up_to_a_moment_and_after_some_are_forgotten(reader: Reader) -> None:
    reader.follow(PAGES / "event-sourcing.md")
    assert reader.said[-2] == reader.promised[-1]
    lines = reader.said[-1].splitlines()
    assert [line.split("\t")[0].partition("@")[2] for line in lines if "\t" in line] == ["0", "2", "3", "4"]
    assert lines[-1] == "{'account-1': 50}"


def a_processor_goes_on_as_if_nothing_had_happened(reader: Reader) -> None:
    reader.follow(PAGES / "stream-processor.md")
    state, counts = reader.said[-1].splitlines()
    promised_state, promised_counts = reader.promised[-1].splitlines()
    assert (state, counts) == (promised_state, promised_counts)


def an_audit_sees_every_record_of_a_key(reader: Reader) -> None:
    reader.follow(PAGES / "audit.md")
    assert reader.said[-2:] == reader.promised[-2:]


def a_service_answers_by_key_and_says_what_is_unchanged(reader: Reader) -> None:
    reader.follow(PAGES / "answer-by-key.md")
    assert reader.said[-2:] == reader.promised[-2:]


def a_model_gets_the_newest_features_of_many_entities(reader: Reader) -> None:
    reader.follow(PAGES / "features.md")
    assert reader.said[-1] == reader.promised[-1]


PROMISES = {
    "answer-by-key": a_service_answers_by_key_and_says_what_is_unchanged,
    "audit": an_audit_sees_every_record_of_a_key,
    "cache": a_cache_is_loaded_and_kept_current,
    "event-sourcing": balances_are_computed_from_events_up_to_a_moment_and_after_some_are_forgotten,
    "features": a_model_gets_the_newest_features_of_many_entities,
    "search-index": a_search_index_and_a_stream_go_on_where_they_ended,
    "stream-processor": a_processor_goes_on_as_if_nothing_had_happened,
}


QUICK = {
    **{page: promise for page, promise in PROMISES.items() if page != "search-index"},
    "search-index without Spark": a_search_index_goes_on_where_it_was_killed,
}


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("page", QUICK)
def test_a_use_case_page_does_what_it_promises(reader: Reader, page: str) -> None:
    QUICK[page](reader)


@pytest.mark.full  # two streams of Spark take as long as all else; `test_spark_stream` has them in `make test`
@pytest.mark.kafka
@pytest.mark.spark
def test_the_whole_search_index_page_does_what_it_promises(private_broker: KafkaBroker, tmp_path: Path) -> None:
    with own_s3() as s3:  # the topic and the bucket of the shorter test have the same names
        PROMISES["search-index"](reader_of(private_broker, s3, tmp_path))


def test_no_two_pages_use_one_topic() -> None:
    """A reader follows one page after another in the same Kafka cluster and the same bucket."""
    topics = [topic for page in PROMISES for topic in set(WRITES.findall((PAGES / f"{page}.md").read_text()))]
    assert sorted(topics) == sorted(set(topics))
    assert len(topics) >= len(PROMISES)


def test_each_page_has_a_test_and_working_links() -> None:
    pages = sorted(PAGES.glob("*.md"))
    assert {page.stem for page in pages} == {"README", *PROMISES}
    lost: list[str] = []
    for page in pages:
        for link in LINK.finditer(BLOCK.sub("", page.read_text())):
            target = (page.parent / link["path"]).resolve()
            text = target.read_text() if target.is_file() else None
            heads = re.findall(r"^#+ (.*)$", text or "", re.MULTILINE)
            anchors = {"#" + re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            if text is None or link["anchor"] not in {None, *anchors}:
                lost.append(f"{page.name}: {link[0]}")
    assert not lost
