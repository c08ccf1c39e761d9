"""`keyfold log map`: what the page shows, also of logs that cannot be read and of names with markup in them."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from keyfold.cli.app import run
from keyfold.cli.context import CliContext
from keyfold.cli.log_map import MappedLog, bars, page
from keyfold.log.manifest import Gap, Hold, Manifest
from keyfold.log.names import Place
from keyfold.store.api import Update
from tests.support.logs import MadeLog, records

PLACE = Place("topics", "users", 0)
URL = "s3://bucket/topics"


@pytest.fixture
def made() -> MadeLog:
    made = MadeLog()
    made.append(records("a=1 b=2 a= c=3"))
    made.append(records("a=4 b=5", 4))
    made.compact()
    made.append(records("c=6 b=", 6))
    return made


class Tags(HTMLParser):
    """Checks that every tag that is opened is closed, and notes what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]
        assert not [name for name, _ in attrs if name.startswith("on")], attrs
        if tag not in {"meta", "rect"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.links == []
    assert "script" not in tags.seen
    return tags


def drawn(manifest: Manifest, **more: object) -> str:
    return page("logs", [MappedLog(PLACE, manifest, **more)], now_ms=10**13)  # type: ignore[arg-type]  # fields by name


def test_a_page_shows_each_segment_and_its_state(made: MadeLog) -> None:
    text = drawn(made.manifest, garbage=[1, 0, 0])
    parsed(text)
    kinds = re.findall(r'<rect class="(\w+)"', text)
    assert kinds.count("clean") == 2
    assert kinds.count("dirty") == 1
    assert kinds.count("garbage") == 1
    assert "offsets 0 to 8, 3 segments" in text
    assert text.count("<tr>") == 1 + 3
    assert "1 superseded record" in text


def test_gaps_and_replicas_are_lines(made: MadeLog) -> None:
    manifest = replace(
        made.manifest, gaps=(Gap(2, 4, "retention"),), holds=(Hold("dr", 1, 0, received_to=6), Hold("new", 1, 0))
    )
    text = drawn(manifest)
    parsed(text)
    assert re.findall(r'<title>([^<]*)</title><rect class="(gap|hold)"', text) == [
        ("gap from 2 to 4: retention", "gap"), ("replica dr has received the log up to 6", "hold"),
    ]  # fmt: skip


def test_many_segments_are_drawn_together(made: MadeLog) -> None:
    manifest = made.manifest
    many = replace(manifest, segments=manifest.segments * 400)
    found = list(bars(MappedLog(PLACE, many), now_ms=0, bars_max=100))
    assert len(found) <= 100
    assert sum(len(bar.entries) for bar in found) == len(many.segments)
    assert found[-1].x + found[-1].width == pytest.approx(1)
    text = drawn(many)
    parsed(text)
    assert "The 300 newest segments; 900 more are not listed." in text


def test_markup_in_what_others_have_written_is_text(made: MadeLog) -> None:
    manifest = replace(made.manifest, settings={"<b>": "<script>alert(1)</script>"}, gaps=(Gap(0, 1, "</title><svg>"),))
    text = page("<i>", [MappedLog(PLACE, manifest), MappedLog(PLACE, None, error="<img src=x>")], now_ms=0)
    tags = parsed(text)
    assert "img" not in tags.seen
    assert "&lt;script&gt;" in text


def test_an_empty_log_and_no_log_are_pages_too() -> None:
    parsed(page("logs", [], now_ms=0))
    parsed(drawn(Manifest("users", 0, "id", b"m" * 16)))


def test_the_command_writes_the_page_and_names_what_it_could_not_read(
    made: MadeLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = CliContext(lambda _url: (made.store, "topics"), made.clock, made.random)
    other = MadeLog(store=made.store, clock=made.clock, place=Place("topics", "orders", 3))
    other.append(records("a=1"))
    path = tmp_path / "map.html"
    assert run(["log", "map", URL, "--html", str(path), "--exact"], context) == 0
    assert capsys.readouterr().out == f"wrote {path}: 2 partitions\n"
    text = path.read_text()
    parsed(text)
    assert text.index("orders-3") < text.index("users-0")
    blob = made.store.get(other.place.manifest_key)
    made.store.put(other.place.manifest_key, b"damaged", Update(blob.etag))
    assert run(["log", "map", URL, "--html", str(path)], context) == 1
    assert "not drawn: orders-3" in capsys.readouterr().err
    assert '<p class="bad"><b>orders-3</b>' in path.read_text()
    assert run(["log", "map", URL, "users", "--html", str(path)], context) == 0
